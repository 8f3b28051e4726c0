"""Values of patches over the picture that they are cut from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, valid_choice
from normlens.figures import canvas
from normlens.figures.colours import (
    COLOUR_SCALES,
    beyond,
    beyond_colour,
    colour_bar,
    colour_norm,
    largest,
    palette_named,
    scale_end,
    scale_notes,
)
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
#: The colour over a patch that is left out.
_BARE = "#d5d5d5"
#: Pixels of a patch where the picture is not known.
_PIXELS = 8


def shape_of(grid: PatchGrid) -> tuple[float, float]:
    """The width and the height of the picture, the longer being 1."""
    height, width = (grid.rows, grid.columns) if grid.picture is None else grid.picture.shape[:2]
    longest = max(height, width)
    return width / longest, height / longest


def overlay(grid: PatchGrid, colours: NDArray[np.floating]) -> NDArray[np.floating]:
    """The picture in grey below the patches' `colours` (row, column, 3): RGB (height, width, 3)."""
    if grid.picture is None:
        grey = np.full((grid.rows * _PIXELS, grid.columns * _PIXELS), 1.0)
    else:
        brightness = grid.picture @ np.array([0.299, 0.587, 0.114]) / 255
        grey = _DARKEST + (1 - _DARKEST) * brightness
    height, width = grey.shape
    rows = np.arange(height) * grid.rows // height
    columns = np.arange(width) * grid.columns // width
    spread = colours[rows][:, columns]  # (height, width, 3)
    mixed: NDArray[np.floating] = (1 - COVER) * grey[..., None] + COVER * spread
    return mixed


def _on_grey(colours: Any) -> Any:
    """Colours (…, 3) as they look on a picture of a middling grey."""
    below = (1 - COVER) * (1 + _DARKEST) / 2
    return (COVER * np.asarray(colours) + below).clip(0, 1)


def draw_overlay(
    axes: Any, grid: PatchGrid, values: Any, norm: Any, cmap: str, framed: int | None = None
) -> Any:
    """Draw a masked array (row, column) over the picture; return the palette of a colour bar.

    What is masked has no colour, and what is beyond the scale one of its own. The axes count
    patches from the upper left corner. The token `framed` gets a frame if it is a patch.
    """
    from matplotlib.colors import ListedColormap, to_rgb
    from matplotlib.patches import Rectangle

    palette = palette_named(cmap).with_extremes(bad=_BARE)
    colours = palette(norm(np.ma.asarray(values)))[..., :3]
    colours[beyond(values, norm)] = to_rgb(beyond_colour(cmap))
    axes.imshow(
        overlay(grid, colours),
        extent=(0, grid.columns, grid.rows, 0),
        interpolation="nearest",
        aspect="auto",
    )
    if framed is not None and (place := grid.place(framed)) is not None:
        row, column = place
        # A dark line between two bright ones is seen on any colour.
        for colour, width in (("white", 2.6), (canvas.INK, 1.1)):
            axes.add_patch(
                Rectangle((column, row), 1, 1, fill=False, edgecolor=colour, linewidth=width)
            )
    across, down = shape_of(grid)
    axes.set(xlim=(0, grid.columns), ylim=(grid.rows, 0), xticks=[], yticks=[])
    axes.set(box_aspect=down / across, anchor="NW")
    return ListedColormap(_on_grey(palette(np.linspace(0, 1, 256))[:, :3]))


def picture_note(grid: PatchGrid) -> list[str]:
    """Say why there is no picture, if there is none."""
    if grid.picture is not None:
        return ["The picture that the model saw lies in grey below the colours."]
    return ["The picture is not known: pixel values came without a processor that explains them."]


# Rows or columns of maps over the picture whose patches are the tokens.


_IN_A_ROW = 4
_ALONE, _SMALL = 3.6, 1.6  # inches of a picture's longer side
_PREFIX = 6  # values beside the picture that are written


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
    from matplotlib.colors import to_hex, to_rgb

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
    shown = [np.ma.masked_where(own & (not diagonal), grid.of(line)) for line in lines]
    tops = [scale_end(each, own, colour) for each in shown]
    if scale == "shared":
        tops = [max(tops)] * len(tops)
    called = maps.tokens[token]
    called = called if called.startswith("[") else f"patch {called}"
    what = f"what each patch receives from {called}"
    if is_row:
        what = f"what {called} receives from each patch"
    one = len(lines) == 1
    if ax is not None:
        if not one:
            raise InputError(f"one pair of axes takes one layer, not {len(lines)}; name a layer")
        draw_overlay(ax, grid, shown[0], colour_norm(colour, tops[0]), cmap, token)
        title = "\n".join(filter(None, [f"{name} · {what}", maps.origin_in_words]))
        return canvas.finish_axes(ax, title=title)

    width, height = ((_ALONE if one else _SMALL) * share for share in shape_of(grid))
    columns = min(len(lines), _IN_A_ROW)
    rows = math.ceil(len(lines) / columns)
    page = canvas.Page(
        canvas.model_and(maps, layers_in_words(chosen.layers)),
        [f"{name}: {what}"],
        [*[width] * columns, canvas.BAR],
        [height] * rows,
    )
    for place, (layer, line, values) in enumerate(zip(chosen.layers, lines, shown, strict=True)):
        axes = page.axes(*divmod(place, columns))
        norm = colour_norm(colour, tops[place])
        palette = draw_overlay(axes, grid, values, norm, cmap, token)
        if not one:
            canvas.bold_title(axes, f"layer {layer}")
            caption = f"max {canvas.number(largest(values))}"
            axes.set_title(caption, loc="right", size=canvas.NOTE)
        others = [k for k in range(len(line)) if k not in grid.tokens]
        words = [f"{maps.tokens[k]} {canvas.number(float(line[k]))}" for k in others[:_PREFIX]]
        words += ["…"] * (len(others) > _PREFIX)
        if words:
            [below] = canvas.wrap("  ".join(words), canvas.NOTE, width, 1)
            axes.set_xlabel(below, loc="left", size=canvas.NOTE, labelpad=2)
    has_beyond = any(largest(each) > top for each, top in zip(shown, tops, strict=True))
    absolute = one or scale == "shared"
    end, of_end = ("the end of its scale", "share of the end")
    if colour != "clipped":
        end, of_end = ("its largest patch", "share of the largest")
    colour_bar(
        page.axes(slice(0, rows), columns),
        norm if absolute else colour_norm(colour, 1.0),
        palette,
        rows * height,
        name="" if absolute else of_end,
        beyond=to_hex(_on_grey(to_rgb(beyond_colour(cmap)))) if has_beyond else "",
    )
    share = "" if absolute else f", as a share of {end}; the largest stands above each picture"
    return page.finish(
        [
            f"Colour: {canvas.unit(maps, name, 'none')}{share}; {COLOUR_SCALES[colour]} scale.",
            *scale_notes(colour, cmap, has_beyond, "the token itself and the few largest patches"),
            *picture_note(grid),
            canvas.provenance(maps),
        ]
    )
