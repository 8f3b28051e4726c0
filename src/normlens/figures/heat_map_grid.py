"""Heat maps in a grid: tokens at its edges, a title above and a colour bar beside the panels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normlens.analysis import Pair
from normlens.errors import InputError
from normlens.figures.canvas import (
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
from normlens.figures.fonts import fonts_for
from normlens.figures.heat_map_panel import Panel, Titles, draw_panel
from normlens.figures.pair_list import Listing
from normlens.figures.ticks import Ticks, label_edges, left_out_note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps

_AXIS_WORD = 0.2
BAR_GAP, BAR_WIDTH, BAR_TICKS = 0.06, 0.07, 0.36


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
    pairs: tuple[list[Pair], list[Pair]] | None = None,
) -> Figure:
    """Draw panels in a grid, labelled at its left and lower edges, with colour bars.

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
    bar_room = 0.0 if overview else BAR_GAP + BAR_WIDTH + BAR_TICKS
    pitch_x = side + bar_room + (0.12 if overview else 0.08)
    caption_room = 0.11 if overview else 0.0
    title_room = caption_room + (0.32 if overview else 0.24)
    pitch_y = side + (caption_room + 0.06 if overview else title_room + 0.1)
    panels = [panel for row in rows for panel in row if panel is not None]
    titles = Titles.fitting(panels, side + (0.06 if overview else bar_room - 0.05), fonts, overview)
    word_size = NOTE if overview else TITLE
    columns = max(map(len, rows))
    right = BAR_GAP + 0.55 if overview else 0.0
    width = left + columns * pitch_x + right + (listing.width if listing else 0.0) + 0.05
    width = max(width, 4.2)

    head = Head(heading, text_lines(maps), fonts, width)
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
            image = draw_panel(axes, panel)
            lowest = all(c >= len(under) or under[c] is None for under in rows[r + 1 :])
            edge = targets if c == first else None, sources if lowest else None
            label_edges(axes, *edge, fonts, side, word_size)
            if listing is not None:
                listing.mark(axes, panel.cmap, panel.norm, side / max(panel.values.shape))
            titles.draw(axes, panel, side)
            if not overview:
                colour_bar(sheet, image, x + side + BAR_GAP, y, side)
    if bar is not None:
        from matplotlib.cm import ScalarMappable

        name, norm = bar
        image = ScalarMappable(norm, panels[0].cmap)
        x = left + columns * pitch_x + BAR_GAP - 0.12
        colour_bar(sheet, image, x, top, min(2 * side, below - top), name)
    if listing is not None:
        listing.draw(sheet, left + pitch_x + 0.1, top)
    return sheet.figure


def colour_bar(sheet: Sheet, image: Any, x: float, y: float, height: float, name: str = "") -> None:
    """Draw the colours of an image with their numbers, and what they measure."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes = sheet.axes(x, y, BAR_WIDTH, height)
    bar = sheet.figure.colorbar(image, cax=axes)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(tick))
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=NOTE, length=1.5, width=0.5, pad=1.5, colors=INK)
    bar.outline.set_linewidth(0.4)
    if name:
        bar.set_label(name, fontsize=NOTE, color=INK)
