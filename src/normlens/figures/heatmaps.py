"""Heat maps in a grid: tokens at its edges, a title above and a colour bar beside the panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from normlens import analysis
from normlens.errors import InputError, valid_choice
from normlens.figures.canvas import (
    FAINT,
    FRAME,
    INK,
    LARGEST_TICK,
    MARGIN,
    NOTE,
    SMALLEST_TICK,
    TITLE,
    Head,
    Notes,
    Sheet,
)
from normlens.figures.captions import cut_label, provenance, text_lines, tick
from normlens.figures.fonts import Fonts, fonts_for
from normlens.figures.pairs import Listing
from normlens.figures.ticks import Ticks, label_edges, left_out_note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normlens.maps import Maps

COLOUR_SCALES = {"linear": "linear", "sqrt": "square-root"}  # as an option, and in words
_AXIS_WORD = 0.2
_BAR_GAP, _BAR_WIDTH, _BAR_TICKS = 0.06, 0.07, 0.36


def masked(maps: Maps, normalise: str) -> dict[str, Any]:
    """Every map, blank where attention allows no pair: scope → masked array (layer, i, j)."""
    blank = dict(zip(maps.layers, ~maps.allowed, strict=True))
    return {
        scope: np.ma.masked_where(
            np.stack([blank[layer] for layer in maps.layers_of(scope)]),
            analysis.normalise(array, normalise),
        )
        for scope, array in maps.arrays.items()
    }


def largest(values: Any) -> float:
    """The top of a colour scale for a masked array; 1 where nothing is above 0."""
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


def heat_maps(
    maps: Maps,
    rows: Sequence[Sequence[Panel | None]],
    *,
    side: float,
    heading: str,
    notes: list[str],
    max_label: int,
    row_labels: Sequence[str] = (),
    bar: tuple[str, Any] | None = None,
    pairs: tuple[list[analysis.Pair], list[analysis.Pair]] | None = None,
) -> Figure:
    """Panels in a grid: labels at its left and lower edges, a colour bar at each panel or one.

    A place of the grid without a panel (None) stays empty.
    """
    if max_label < 1:
        raise InputError(f"max_label must be at least 1, not {max_label}")
    labels = [cut_label(token, max_label) for token in maps.tokens]
    source_labels = [cut_label(token, max_label) for token in maps.source_tokens]
    fonts = fonts_for(
        [*labels, *source_labels, heading, *text_lines(maps), *notes, provenance(maps), "□…→"]
    )
    overview = bar is not None
    largest_tick = SMALLEST_TICK if overview else LARGEST_TICK
    targets, sources = (
        Ticks.fitting(names, side, fonts, largest_tick) for names in (labels, source_labels)
    )
    notes = [*notes, *left_out_note(targets, sources)]
    listing = Listing(pairs, labels, source_labels, fonts) if pairs is not None else None

    left = MARGIN + (0.2 if row_labels else 0.0) + _AXIS_WORD + targets.room
    bar_room = 0.0 if overview else _BAR_GAP + _BAR_WIDTH + _BAR_TICKS
    pitch_x = side + bar_room + (0.12 if overview else 0.08)
    caption_room = 0.11 if overview else 0.0
    title_room = caption_room + (0.32 if overview else 0.24)
    pitch_y = side + (caption_room + 0.06 if overview else title_room + 0.1)
    panels = [panel for row in rows for panel in row if panel is not None]
    titles = _Titles.fitting(
        panels, side + (0.06 if overview else bar_room - 0.05), fonts, overview
    )
    word_size = NOTE if overview else TITLE
    columns = max(map(len, rows))
    right = _BAR_GAP + 0.55 if overview else 0.0
    width = left + columns * pitch_x + right + (listing.width if listing else 0.0) + 0.05
    width = max(width, 4.2)

    head = Head(maps, heading, fonts, width)
    foot = Notes([*notes, provenance(maps)], fonts, width)
    top = MARGIN + head.height + title_room
    below = top + (len(rows) - 1) * pitch_y + side  # lower edge of the last row
    bottom = below + sources.room + _AXIS_WORD
    sheet = Sheet(width, bottom + foot.height + MARGIN, fonts)
    head.draw(sheet)
    foot.draw(sheet, bottom)
    for r, row in enumerate(rows):
        first = next((c for c, panel in enumerate(row) if panel is not None), None)
        for c, panel in enumerate(row):
            x, y = left + c * pitch_x, top + r * pitch_y
            if c == 0 and row_labels:
                style = {"rotation": 90, "va": "center"}
                sheet.text(MARGIN, y + side / 2, row_labels[r], TITLE, "bold", **style)
            if panel is None:
                continue
            axes = sheet.axes(x, y, side, side)
            image = _draw(axes, panel)
            lowest = all(c >= len(under) or under[c] is None for under in rows[r + 1 :])
            edge = targets if c == first else None, sources if lowest else None
            label_edges(axes, *edge, fonts, side, word_size)
            if listing is not None:
                listing.mark(axes, panel.cmap, panel.norm, side / max(panel.values.shape))
            titles.draw(axes, panel, side)
            if not overview:
                _colour_bar(sheet, image, x + side + _BAR_GAP, y, side)
    if bar is not None:
        from matplotlib.cm import ScalarMappable

        name, norm = bar
        image = ScalarMappable(norm, panels[0].cmap)
        x = left + columns * pitch_x + _BAR_GAP - 0.12
        _colour_bar(sheet, image, x, top, min(2 * side, below - top), name)
    if listing is not None:
        listing.draw(sheet, left + pitch_x + 0.1, top)
    return sheet.figure


def _draw(axes: Any, panel: Panel) -> Any:
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
    for spine in axes.spines.values():
        spine.set_linewidth(0.5)
        spine.set_color(FRAME)
    return image


@dataclass(frozen=True)
class _Titles:
    """The scope in bold and what it adds: in one line, or stacked above a small panel."""

    size: float
    stacked: bool
    fonts: Fonts

    @classmethod
    def fitting(cls, panels: Sequence[Panel], room: float, fonts: Fonts, stacked: bool) -> _Titles:
        """As large as the longest title allows, and the same for all."""
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


def _colour_bar(
    sheet: Sheet, image: Any, x: float, y: float, height: float, name: str = ""
) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes = sheet.axes(x, y, _BAR_WIDTH, height)
    bar = sheet.figure.colorbar(image, cax=axes)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(tick))
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=NOTE, length=1.5, width=0.5, pad=1.5, colors=INK)
    bar.outline.set_linewidth(0.4)
    if name:
        bar.set_label(name, fontsize=NOTE, color=INK)
