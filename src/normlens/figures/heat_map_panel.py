"""One heat map: its values, its colours, and its title."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens import analysis
from normlens.errors import InputError
from normlens.figures.canvas import FAINT, FRAME, INK, TITLE
from normlens.figures.colour_scales import (
    beyond,
    beyond_colour,
    colour_norm,
    scale_end,
    scale_notes,
)
from normlens.figures.fonts import Fonts

if TYPE_CHECKING:
    from normlens.results.maps import Maps


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


@dataclass(frozen=True)
class Look:
    """How maps are coloured, and whether the pairs i = j are shown."""

    colour: str
    cmap: str
    diagonal: bool
    same_token: NDArray[np.bool_]  # (i, j)

    def shown(self, values: Any) -> Any:
        """A masked array (…, i, j) without what is left out."""
        if self.diagonal:
            return values
        return np.ma.masked_where(np.broadcast_to(self.same_token, values.shape), values)

    def end(self, values: Any) -> float:
        """Where the scale of a masked array (…, i, j) ends."""
        return scale_end(self.shown(values), self.same_token, self.colour)

    def panel(self, values: Any, end: float, title: str, added: str, **more: Any) -> Panel:
        """The panel of a map (i, j) on a scale up to `end`."""
        grey = None if self.diagonal else self.same_token & ~np.ma.getmaskarray(values)
        norm = colour_norm(self.colour, end)
        return Panel(self.shown(values), title, added, norm, self.cmap, grey=grey, **more)

    def notes(self, panels: Sequence[Panel]) -> list[str]:
        """Sentences about the scale and about what is left out."""
        grey = [] if self.diagonal or not self.same_token.any() else ["Grey: i = j, left out."]
        return [*scale_notes(self.colour, self.cmap, any(map(is_beyond, panels))), *grey]


def is_beyond(panel: Panel) -> bool:
    """Whether any value of a panel is beyond the end of its scale."""
    return bool(beyond(panel.values, panel.norm).any())


def draw_panel(axes: Any, panel: Panel) -> Any:
    """Draw a panel; return what a colour bar needs."""
    from matplotlib import colormaps

    if panel.cmap not in colormaps:
        raise InputError(
            f"unknown colour map {panel.cmap!r}; matplotlib has viridis, cividis, magma, RdBu_r, …"
        )
    # Blank means "not allowed"; zero has a colour of its own.
    colours = colormaps[panel.cmap].with_extremes(bad=(1.0, 1.0, 1.0, 0.0))
    image = axes.imshow(
        panel.values, cmap=colours, norm=panel.norm, interpolation="nearest", aspect="auto"
    )
    if is_beyond(panel):
        paint(axes, beyond(panel.values, panel.norm), beyond_colour(panel.cmap))
    if panel.grey is not None:
        paint(axes, panel.grey, "#d5d5d5")
    divide(axes, panel.divided)
    for spine in axes.spines.values():
        spine.set_linewidth(0.5)
        spine.set_color(FRAME)
    return image


def paint(axes: Any, pairs: NDArray[np.bool_], colour: str) -> None:
    """Give some pairs (i, j) of a heat map one colour."""
    from matplotlib.colors import ListedColormap

    flat = np.ma.masked_where(~pairs, np.zeros(pairs.shape))
    axes.imshow(flat, cmap=ListedColormap([colour]), interpolation="nearest", aspect="auto")


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
