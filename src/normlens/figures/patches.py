"""Values of patches over the picture that they are cut from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from normlens.errors import InputError, valid_choice
from normlens.figures import canvas
from normlens.figures.colours import COLOUR_SCALES, colour_bar, colour_norm
from normlens.figures.heat_maps import Look, Panel, draw_panel, write_titles
from normlens.results.axes import PatchGrid, Token
from normlens.scopes import layers_in_words, resolve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps


# Values of patches as colours over the picture that they are cut from.


#: How much of a patch's colour covers the picture.
COVER = 0.62
#: The darkest grey of the picture, so that colours stay what they are on dark patches, too.
_DARKEST = 0.35
#: The grey below a colour bar.
MIDDLING = str((1 + _DARKEST) / 2)


def shape_of(grid: PatchGrid) -> tuple[float, float]:
    """The width and the height of the picture, the longer being 1."""
    height, width = (grid.rows, grid.columns) if grid.picture is None else grid.picture.shape[:2]
    longest = max(height, width)
    return width / longest, height / longest


def draw_patches(axes: Any, grid: PatchGrid, panel: Panel, framed: int | None = None) -> None:
    """Draw a panel of values (row, column) over the picture in grey.

    The axes count patches from the upper left corner. The token `framed` gets a frame if it is a
    patch.
    """
    from matplotlib.patches import Rectangle

    extent = (0, grid.columns, grid.rows, 0)
    axes.set_facecolor("white")
    if grid.picture is not None:
        brightness = grid.picture @ np.array([0.299, 0.587, 0.114]) / 255
        black = -_DARKEST / (1 - _DARKEST)
        axes.imshow(brightness, cmap="gray", vmin=black, vmax=1, extent=extent)
    draw_panel(axes, panel, alpha=COVER, extent=extent)
    if framed is not None and (place := grid.place(framed)) is not None:
        # A dark line between two bright ones is seen on any colour.
        for colour, width in (("white", 2.6), (canvas.INK, 1.1)):
            frame = Rectangle(place[::-1], 1, 1, fill=False, edgecolor=colour, linewidth=width)
            axes.add_patch(frame)
    across, down = shape_of(grid)
    axes.set(xticks=[], yticks=[], box_aspect=down / across, anchor="NW")


def picture_note(grid: PatchGrid) -> str:
    """Say why there is no picture, if there is none."""
    if grid.picture is not None:
        return "The picture that the model saw lies in grey below the colours."
    return "The picture is not known: pixel values came without a processor that explains them."


# Rows or columns of maps over the picture whose patches are the tokens.


_IN_A_ROW = 4
_ALONE, _SMALL = 3.6, 1.6  # inches of a picture's longer side


def plot_patches(
    maps: Maps,
    layers: int | Iterable[int] | None = None,
    scope: str | None = None,
    *,
    target: Token | None = None,
    source: Token | None = None,
    scale: str = "map",
    colour: str = "clipped",
    cmap: str = "viridis",
    diagonal: bool = True,
    ax: Axes | None = None,
) -> Figure:
    """Draw a row or a column of a scope's map over the picture, in one or in several layers.

    `target` shows its row: what it receives from each patch; `source` its column: what each patch
    receives of it. Either is a token's place or its name ("[CLS]", "3,4" for a patch by row and
    column from 1); by default the target is the first token. `scope` is the last of the maps unless
    it is named. `scale` "map" gives each layer its own colours, "shared" all the same; `colour` is
    that of `plot_layer`, over the patches of the row or the column. Without `diagonal` the token's
    own patch has no colour. What tokens that are no patches give or receive is written below each
    picture. `ax` takes one layer into axes of yours.
    """
    canvas.require_matplotlib()
    valid_choice(scale, ("map", "shared"), "scale")
    grid = maps.grid
    if grid is None:
        raise InputError(
            "these maps are of no picture, or not of all of its patches, so nothing can be laid "
            "over it; plot(…) draws them"
        )
    name = maps.scopes[-1] if scope is None else resolve(scope, maps.scopes)
    chosen = maps.choose(layers, name)
    if target is not None and source is not None:
        raise InputError("give a target or a source, not both: a row or a column is shown")
    is_row = source is None
    token = grid.named(source if source is not None else target or 0, maps.tokens)
    arrays = [chosen.at(name, layer) for layer in chosen.layers]
    lines = [array[token] if is_row else array[:, token] for array in arrays]
    own = grid.of(np.arange(float(len(maps.tokens)))) == token  # (row, column)
    look = Look(own, colour, cmap, diagonal)
    shared = scale == "shared"
    items = [
        (np.ma.asarray(grid.of(line)), f"layer {layer}", "", shared or layer)
        for layer, line in zip(chosen.layers, lines, strict=True)
    ]
    panels = look.panels(items, captions=True)
    called = maps.tokens[token]
    called = called if called.startswith("[") else f"patch {called}"
    what = f"what each patch receives from {called}"
    if is_row:
        what = f"what {called} receives from each patch"
    one = len(lines) == 1
    if ax is not None:
        if not one:
            raise InputError(f"one pair of axes takes one layer, not {len(lines)}; name a layer")
        draw_patches(ax, grid, panels[0], token)
        title = "\n".join(filter(None, [f"{name} · {what}", maps.origin_in_words]))
        return canvas.finish_axes(ax, title=title)

    width, height = ((_ALONE if one else _SMALL) * share for share in shape_of(grid))
    columns = min(len(lines), _IN_A_ROW)
    rows = math.ceil(len(lines) / columns)
    page = canvas.Page(
        maps,
        layers_in_words(chosen.layers),
        [*[width] * columns, canvas.BAR],
        [height] * rows,
        [f"{name}: {what}"],
    )
    others = [k for k in range(len(maps.tokens)) if k not in grid.tokens]
    for place, (panel, line) in enumerate(zip(panels, lines, strict=True)):
        axes = page.axes(*divmod(place, columns))
        draw_patches(axes, grid, panel, token)
        if not one:
            write_titles(axes, panel, canvas.TITLE)
        words = [f"{maps.tokens[k]} {canvas.number(float(line[k]))}" for k in others]
        [below] = canvas.wrap("  ".join(words), canvas.NOTE, width, 1)
        axes.set_xlabel(below, loc="left", size=canvas.NOTE, labelpad=2)
    absolute = one or shared
    bar = page.axes(slice(0, rows), columns)
    bar.set_facecolor(MIDDLING)
    colour_bar(
        bar,
        panels[0].norm if absolute else colour_norm(colour, 1.0),
        cmap,
        rows * height,
        max(panel.beyond_colour for panel in panels),
        "" if absolute else "share of the end",
        alpha=COVER,
    )
    share = "; the bar is a share of each scale's end; above a picture: its largest value"
    return page.finish(
        [
            f"Colour: {canvas.unit(maps, name, 'none')}; {COLOUR_SCALES[colour]} scale"
            f"{'' if absolute else share}.",
            *look.notes(panels, "the token itself and the few largest patches"),
            picture_note(grid),
        ]
    )
