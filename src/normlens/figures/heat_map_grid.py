"""Heat maps in a grid: tokens at its edges, a title above and a colour bar beside the panels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normlens.analysis import Pair
from normlens.errors import InputError
from normlens.figures.canvas import (
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
from normlens.figures.heat_map_panel import Panel, Titles, draw_panel
from normlens.figures.pair_list import Listing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normlens.maps import Maps

TARGET = "target i (output)"
SOURCE = "source j (input)"
_AXIS_WORD = 0.2
_BAR_GAP, _BAR_WIDTH, _BAR_TICKS = 0.06, 0.07, 0.36


@dataclass(frozen=True)
class _Ticks:
    """Which tokens are labelled, how, and the room that the labels take."""

    positions: list[int]
    labels: list[str]
    size: float
    room: float
    stride: int

    @classmethod
    def fitting(cls, labels: list[str], side: float, fonts: Fonts, largest: float) -> _Ticks:
        cell = 72 * side / len(labels)  # points per token
        size = min(max(0.85 * cell, SMALLEST_TICK), largest)
        stride = max(1, math.ceil(1.1 * size / cell))
        positions = list(range(0, len(labels), stride))
        shown = [labels[i] for i in positions]
        room = max(fonts.width(label, size) for label in shown) + 0.06
        return cls(positions, [fonts.drawable(label) for label in shown], size, room, stride)


def heat_maps(
    maps: Maps,
    rows: Sequence[Sequence[Panel]],
    *,
    side: float,
    heading: str,
    notes: list[str],
    max_label: int,
    row_labels: Sequence[str] = (),
    bar: tuple[str, Any] | None = None,
    pairs: tuple[list[Pair], list[Pair]] | None = None,
) -> Figure:
    """Draw panels in a grid, labelled at its left and lower edges, with colour bars."""
    if max_label < 1:
        raise InputError(f"max_label must be at least 1, not {max_label}")
    labels = [cut_label(token, max_label) for token in maps.tokens]
    fonts = fonts_for([*labels, heading, *text_lines(maps), *notes, provenance(maps), "□…→"])
    overview = bar is not None
    ticks = _Ticks.fitting(labels, side, fonts, SMALLEST_TICK if overview else LARGEST_TICK)
    if ticks.stride > 1:
        notes = [*notes, f"Every {_ordinal(ticks.stride)} token is labelled."]
    listing = Listing(pairs, labels, fonts) if pairs is not None else None

    left = MARGIN + (0.2 if row_labels else 0.0) + _AXIS_WORD + ticks.room
    bar_room = 0.0 if overview else _BAR_GAP + _BAR_WIDTH + _BAR_TICKS
    pitch_x = side + bar_room + (0.12 if overview else 0.08)
    caption_room = 0.11 if overview else 0.0
    title_room = caption_room + (0.32 if overview else 0.24)
    pitch_y = side + (caption_room + 0.06 if overview else title_room + 0.1)
    titles = Titles.fitting(rows, side + (0.06 if overview else bar_room - 0.05), fonts, overview)
    word_size = NOTE if overview else TITLE
    columns = max(map(len, rows))
    right = _BAR_GAP + 0.55 if overview else 0.0
    width = left + columns * pitch_x + right + (listing.width if listing else 0.0) + 0.05
    width = max(width, 4.2)

    head = Head(maps, heading, fonts, width)
    foot = Notes([*notes, provenance(maps)], fonts, width)
    top = MARGIN + head.height + title_room
    below = top + (len(rows) - 1) * pitch_y + side  # lower edge of the last row
    bottom = below + ticks.room + _AXIS_WORD
    sheet = Sheet(width, bottom + foot.height + MARGIN, fonts)
    head.draw(sheet)
    foot.draw(sheet, bottom)
    for r, row in enumerate(rows):
        for c, panel in enumerate(row):
            x, y = left + c * pitch_x, top + r * pitch_y
            axes = sheet.axes(x, y, side, side)
            image = draw_panel(axes, panel)
            lowest = r + 1 == len(rows) or c >= len(rows[r + 1])
            _label_edges(axes, ticks, fonts, side, word_size, left=c == 0, below=lowest)
            if listing is not None:
                listing.mark(axes, panel.cmap, panel.norm, side / len(labels))
            titles.draw(axes, panel, side)
            if c == 0 and row_labels:
                style = {"rotation": 90, "va": "center"}
                sheet.text(MARGIN, y + side / 2, row_labels[r], TITLE, "bold", **style)
            if not overview:
                _colour_bar(sheet, image, x + side + _BAR_GAP, y, side)
    if bar is not None:
        from matplotlib.cm import ScalarMappable

        name, norm = bar
        image = ScalarMappable(norm, rows[0][0].cmap)
        x = left + columns * pitch_x + _BAR_GAP - 0.12
        _colour_bar(sheet, image, x, top, min(2 * side, below - top), name)
    if listing is not None:
        listing.draw(sheet, left + pitch_x + 0.1, top)
    return sheet.figure


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def _label_edges(
    axes: Any,
    ticks: _Ticks,
    fonts: Fonts,
    side: float,
    word_size: float,
    *,
    left: bool,
    below: bool,
) -> None:
    """Write tokens and the axis name at the left edge, below the panel, at both or at neither."""
    style = {"fontproperties": fonts.properties(ticks.size), "parse_math": False, "color": INK}
    word = {"fontproperties": fonts.properties(word_size), "color": INK, "va": "center"}
    outside = -(ticks.room + 0.1) / side
    axes.set_xticks(ticks.positions if below else [])
    axes.set_yticks(ticks.positions if left else [])
    if below:
        axes.set_xticklabels(ticks.labels, rotation=90, **style)
        axes.set_xlabel(SOURCE, **word)
        axes.xaxis.set_label_coords(0.5, outside)
    if left:
        axes.set_yticklabels(ticks.labels, **style)
        axes.set_ylabel(TARGET, **word)
        axes.yaxis.set_label_coords(outside, 0.5)
    if below or left:
        axes.tick_params(length=1.5, width=0.5, pad=1.5, color=FRAME)


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
