"""Values of patches as colours over the picture that they are cut from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.figures.canvas import FRAME, INK
from normlens.figures.colour_scales import beyond, beyond_colour

if TYPE_CHECKING:
    from normlens.results.patches import PatchGrid

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
