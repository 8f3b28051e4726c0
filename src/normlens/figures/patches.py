"""Values of patches over the picture that they are cut from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, valid_choice
from normlens.figures.canvas import (
    FRAME,
    INK,
    MARGIN,
    NOTE,
    TITLE,
    Head,
    Notes,
    Sheet,
    fonts_for,
    model_and,
    number,
    provenance,
    require_matplotlib,
    unit,
)
from normlens.figures.colours import (
    BAR_GAP,
    BAR_TICKS,
    BAR_WIDTH,
    COLOUR_SCALES,
    beyond,
    beyond_colour,
    colour_bar,
    colour_norm,
    largest,
    scale_end,
    scale_notes,
)
from normlens.figures.heat_maps import figure_of, titled
from normlens.results.routing import PatchGrid, Token
from normlens.scopes import layers_in_words, resolve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps
    from normlens.results.routing import PatchGrid


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


def draw_overlay(
    axes: Any,
    grid: PatchGrid,
    values: Any,
    norm: Any,
    cmap: str,
    outlined: Sequence[int] = (),
) -> Any:
    """Draw a masked array (row, column) over the picture; return what a colour bar needs.

    What is masked has no colour, and what is beyond the scale one of its own. The axes count
    patches from the upper left corner. `outlined` are tokens; those that are patches get a frame.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, to_rgb
    from matplotlib.patches import Rectangle

    palette = colormaps[cmap].with_extremes(bad=_BARE)
    colours = palette(norm(np.ma.asarray(values)))[..., :3]
    colours[beyond(values, norm)] = to_rgb(beyond_colour(cmap))
    axes.imshow(
        overlay(grid, colours),
        extent=(0, grid.columns, grid.rows, 0),
        interpolation="nearest",
        aspect="auto",
    )
    for token in outlined:
        if (place := grid.place(token)) is not None:
            row, column = place
            # A dark line between two bright ones is seen on any colour.
            for colour, width in (("white", 2.6), (INK, 1.1)):
                axes.add_patch(
                    Rectangle((column, row), 1, 1, fill=False, edgecolor=colour, linewidth=width)
                )
    axes.set_xlim(0, grid.columns)
    axes.set_ylim(grid.rows, 0)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_linewidth(0.5)
        spine.set_color(FRAME)
    # The bar shows the colours as they look on a picture of a middling grey.
    below = (1 - COVER) * (1 + _DARKEST) / 2
    shown = COVER * palette(np.linspace(0, 1, 256))[:, :3] + below
    return ScalarMappable(norm, ListedColormap(shown.clip(0, 1)))


def covering(colour: str) -> tuple[float, float, float]:
    """A colour as it looks on a picture of a middling grey."""
    from matplotlib.colors import to_rgb

    below = (1 - COVER) * (1 + _DARKEST) / 2
    red, green, blue = (min(1.0, COVER * part + below) for part in to_rgb(colour))
    return red, green, blue


def picture_note(grid: PatchGrid) -> list[str]:
    """Say why there is no picture, if there is none."""
    if grid.picture is not None:
        return ["The picture that the model saw lies in grey below the colours."]
    return ["The picture is not known: pixel values came without a processor that explains them."]


# Rows or columns of maps over the picture whose patches are the tokens.


_IN_A_ROW = 4
_ALONE, _SMALL = 3.6, 1.6  # inches of a picture's longer side
_SHORTEST_BAR = 1.2
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
    require_matplotlib()
    valid_choice(scale, ("map", "shared"), "scale")
    grid = grid_of(maps)
    name = maps.scopes[-1] if scope is None else resolve(scope, maps.scopes)
    chosen = maps.choose(layers, name)
    if target is not None and source is not None:
        raise InputError("give a target or a source, not both: a row or a column is shown")
    is_row = source is None
    token = grid.named(source if source is not None else target or 0, maps.tokens)
    values = [_line(chosen.at(name, layer), token, is_row) for layer in chosen.layers]
    own = grid.of(np.arange(float(len(maps.tokens)))) == token  # (row, column)
    shown = [np.ma.masked_where(own & (not diagonal), grid.of(line)) for line in values]
    tops = [scale_end(each, own, colour) for each in shown]
    captions = [f"max {number(largest(each))}" for each in shown]
    if scale == "shared":
        tops = [max(tops)] * len(tops)
    beyond = any(largest(each) > top for each, top in zip(shown, tops, strict=True))
    if ax is not None:
        if len(values) != 1:
            raise InputError(f"one pair of axes takes one layer, not {len(values)}; name a layer")
        draw_overlay(ax, grid, shown[0], colour_norm(colour, tops[0]), cmap, [token])
        ax.set_title(titled(maps, f"{name} · {_what(maps, token, is_row)}"), parse_math=False)
        return figure_of(ax)

    from matplotlib.colors import to_hex

    one = len(values) == 1
    side = _ALONE if one else _SMALL
    width, height = (side * share for share in shape_of(grid))
    columns = min(len(values), _IN_A_ROW)
    rows = math.ceil(len(values) / columns)
    heading = model_and(maps, layers_in_words(chosen.layers))
    about = [f"{name}: {_what(maps, token, is_row)}"]
    own_bars = one or scale == "shared"
    measured = unit(maps, name, "none")
    end = "the end of its scale" if colour == "clipped" else "its largest patch"
    share = "" if own_bars else f", as a share of {end}; the largest stands above each picture"
    notes = [
        f"Colour: {measured}{share}; {COLOUR_SCALES[colour]} scale.",
        *scale_notes(colour, cmap, beyond, "the token itself and the few largest patches"),
        *picture_note(grid),
        provenance(maps),
    ]
    below = [_beside(maps, grid, line) for line in values]
    fonts = fonts_for([heading, *about, *notes, *below, "□…"])
    bar_room = BAR_GAP + BAR_WIDTH + BAR_TICKS + 0.2
    pitch_x, pitch_y = width + 0.14, height + 0.24 + (0.16 if any(below) else 0.0)
    sheet_width = max(2 * MARGIN + columns * pitch_x + bar_room, 4.4)
    head, foot = Head(heading, about, fonts, sheet_width), Notes(notes, fonts, sheet_width)
    top = MARGIN + head.height + 0.2
    bottom = top + max(rows * pitch_y - 0.2, _SHORTEST_BAR)
    sheet = Sheet(sheet_width, bottom + foot.height + MARGIN, fonts)
    head.draw(sheet)
    foot.draw(sheet, bottom)
    for place, layer in enumerate(chosen.layers):
        r, c = divmod(place, columns)
        x, y = MARGIN + c * pitch_x, top + r * pitch_y
        norm = colour_norm(colour, tops[place])
        axes = sheet.axes(x, y, width, height)
        image = draw_overlay(axes, grid, shown[place], norm, cmap, [token])
        if not one:
            sheet.text(x, y - 0.04, f"layer {layer}", TITLE, "bold", va="bottom")
            style: dict[str, Any] = {"va": "bottom", "ha": "right"}
            sheet.text(x + width, y - 0.04, captions[place], NOTE, **style)
        if below[place]:
            text = fonts.cut(below[place], NOTE, pitch_x - 0.05)
            sheet.text(x, y + height + 0.04, text, NOTE)
        if place == 0:
            bar_x = MARGIN + columns * pitch_x - 0.14 + BAR_GAP
            if not own_bars:
                image.set_norm(colour_norm(colour, 1.0))
            tall = max(height, _SHORTEST_BAR)
            of_end = "share of the end" if colour == "clipped" else "share of the largest"
            word = "" if own_bars else of_end
            extra = to_hex(covering(beyond_colour(cmap))) if beyond else ""
            colour_bar(sheet, image, bar_x, top, tall, word, beyond=extra)
    return sheet.figure


def grid_of(maps: Maps) -> PatchGrid:
    """The grid of maps of a picture."""
    if maps.grid is None:
        raise InputError(
            "these maps are of no picture, or not of all of its patches, so nothing can be laid "
            "over it; plot(…) draws them"
        )
    return maps.grid


def _line(array: NDArray[np.floating], token: int, is_row: bool) -> NDArray[np.floating]:
    line: NDArray[np.floating] = array[token] if is_row else array[:, token]
    return line


def _what(maps: Maps, token: int, is_row: bool) -> str:
    """The row or the column in words."""
    name = maps.tokens[token]
    called = name if name.startswith("[") else f"patch {name}"
    return (
        f"what {called} receives from each patch"
        if is_row
        else f"what each patch receives from {called}"
    )


def _beside(maps: Maps, grid: PatchGrid, line: NDArray[np.floating]) -> str:
    """The values of tokens that are no patches."""
    others = [place for place in range(len(line)) if place not in grid.tokens]
    words = [f"{maps.tokens[place]} {number(float(line[place]))}" for place in others[:_PREFIX]]
    return "  ".join([*words, *(["…"] if len(others) > _PREFIX else [])])
