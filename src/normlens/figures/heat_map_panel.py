"""One heat map: its values, its colours, and its title."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from normlens import analysis
from normlens.errors import InputError, valid_choice
from normlens.figures.canvas import FAINT, FRAME, INK, TITLE
from normlens.figures.fonts import Fonts

if TYPE_CHECKING:
    from normlens.results.maps import Maps

COLOUR_SCALES = {"linear": "linear", "sqrt": "square-root"}  # as an option, and in words


def masked(maps: Maps, normalise: str) -> dict[str, Any]:
    """Blank pairs that have no part: scope → masked array (layer, i, j).

    They are those that attention does not allow and, of two sequences, those of the one that a
    scope has nothing of.
    """
    arrays = {}
    for scope, array in maps.arrays.items():
        places = [maps.layers.index(layer) for layer in maps.layers_of(scope)]
        blank = ~maps.pairs_of(scope)[places]
        arrays[scope] = np.ma.masked_where(blank, analysis.normalise(array, normalise))
    return arrays


def largest(values: Any) -> float:
    """Find the top of a colour scale for a masked array; 1 where nothing is above 0."""
    top = float(values.max()) if values.count() else 0.0
    return top if top > 0 else 1.0


def colour_norm(colour: str, top: float) -> Any:
    from matplotlib.colors import Normalize, PowerNorm

    valid_choice(colour, tuple(COLOUR_SCALES), "colour scale")
    return Normalize(0, top) if colour == "linear" else PowerNorm(0.5, 0, top)


@dataclass(frozen=True)
class Panel:
    """One heat map and what is written around it."""

    values: Any  # masked array (i, j)
    title: str
    added: str
    norm: Any
    cmap: str
    caption: str = ""
    grey: Any = None  # (i, j), pairs that attention allows but the picture leaves out
    divided: float | None = None  # where a line between two sequences of sources stands


def draw_panel(axes: Any, panel: Panel) -> Any:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    if panel.cmap not in colormaps:
        raise InputError(
            f"unknown colour map {panel.cmap!r}; matplotlib has viridis, cividis, magma, RdBu_r, …"
        )
    # Blank means "not allowed"; zero has a colour of its own.
    colours = colormaps[panel.cmap].with_extremes(bad=(1.0, 1.0, 1.0, 0.0))
    image = axes.imshow(
        panel.values, cmap=colours, norm=panel.norm, interpolation="nearest", aspect="auto"
    )
    if panel.grey is not None:
        grey = np.ma.masked_where(~panel.grey, np.zeros(panel.grey.shape))
        axes.imshow(grey, cmap=ListedColormap(["#d5d5d5"]), interpolation="nearest", aspect="auto")
    divide(axes, panel.divided)
    for spine in axes.spines.values():
        spine.set_linewidth(0.5)
        spine.set_color(FRAME)
    return image


def divide(axes: Any, place: float | None) -> None:
    """Draw a thin line between two sequences of sources, visible on any colour."""
    from matplotlib.patheffects import withStroke

    if place is not None:
        halo = [withStroke(linewidth=1.6, foreground="white")]
        axes.axvline(place, color=INK, linewidth=0.6, path_effects=halo)


@dataclass(frozen=True)
class Titles:
    """The scope in bold and what it adds: in one line, or stacked above a small panel."""

    size: float
    stacked: bool
    fonts: Fonts

    @classmethod
    def fitting(cls, panels: Sequence[Panel], room: float, fonts: Fonts, stacked: bool) -> Titles:
        """Choose the largest size that the longest title allows, the same for all."""
        titles = cls(7.0 if stacked else TITLE, stacked, fonts)
        longest = max(map(titles._width, panels))
        return cls(min(titles.size, max(4.0, titles.size * room / longest)), stacked, fonts)

    def _width(self, panel: Panel) -> float:
        title = self.fonts.width(panel.title, self.size, "bold")
        if self.stacked or not panel.added:
            return title
        return title + 0.07 + self.fonts.width(panel.added, self.size - 1)

    def draw(self, axes: Any, panel: Panel, side: float) -> None:
        def write(x: float, y: float, text: str, size: float, **style: Any) -> None:
            axes.text(
                x / side,
                1 + y / side,
                text,
                transform=axes.transAxes,
                fontproperties=self.fonts.properties(size),
                color=FAINT,
                **style,
            )

        if panel.title:
            axes.set_title(
                panel.title,
                loc="left",
                fontproperties=self.fonts.properties(self.size, "bold"),
                color=INK,
                pad=72 * 0.27 if self.stacked else 4,
            )
        if panel.caption:
            write(side, 0.025, panel.caption, 5.0, ha="right")
        if self.stacked:
            write(0, 0.14, panel.added, 6.5)
        else:
            start = self.fonts.width(panel.title, self.size, "bold") + 0.07
            write(start, 4 / 72, panel.added, self.size - 1)
