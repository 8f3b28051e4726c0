"""Heat maps in grids: tokens at the edges, a title above and a colour bar beside the panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normlens.analysis import Pair
from normlens.errors import InputError
from normlens.figures.canvas import (
    HEADING,
    LARGEST_TICK,
    MARGIN,
    NOTE,
    SMALLEST_TICK,
    TITLE,
    Head,
    Notes,
    Sheet,
)
from normlens.figures.captions import cut_label, provenance, text_lines
from normlens.figures.colour_bar import BAR_GAP, BAR_TICKS, BAR_WIDTH, colour_bar
from normlens.figures.colour_scales import beyond_colour
from normlens.figures.fonts import fonts_for
from normlens.figures.heat_map_panel import Panel, Titles, draw_panel, is_beyond
from normlens.figures.pair_list import Listing
from normlens.figures.ticks import Ticks, axis_words, label_edges, left_out_note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps

_AXIS_WORD = 0.2
_BETWEEN = 0.12  # two grids
_NARROWEST, _HEADING_WIDTH = 4.2, 7.0


@dataclass(frozen=True)
class Grid:
    """Rows of panels that show the same tokens, labelled at their left and lower edges.

    A place without a panel (None) stays empty.
    """

    maps: Maps
    rows: Sequence[Sequence[Panel | None]]
    row_labels: Sequence[str] = ()


@dataclass(frozen=True)
class _Edges:
    """The tokens at the edges of a grid."""

    targets: Ticks
    sources: Ticks


def heat_maps(
    grids: Sequence[Grid],
    *,
    side: float,
    heading: str,
    notes: list[str],
    max_label: int,
    bar: tuple[str, Any] | None = None,
    pairs: tuple[list[Pair], list[Pair]] | None = None,
) -> Figure:
    """Draw grids of panels below each other, with colour bars.

    The last grid's maps say what the picture is about.
    """
    if max_label < 1:
        raise InputError(f"max_label must be at least 1, not {max_label}")
    maps = grids[-1].maps
    labels = [_labels(grid.maps, max_label) for grid in grids]
    every_label = [label for both in labels for of_axis in both for label in of_axis]
    fonts = fonts_for([*every_label, heading, *text_lines(maps), *notes, provenance(maps), "□…→"])
    overview = bar is not None
    largest_tick = SMALLEST_TICK if overview else LARGEST_TICK
    edges = [
        _Edges(*(Ticks.fitting(names, side, fonts, largest_tick) for names in both))
        for both in labels
    ]
    for grid, edge in zip(grids, edges, strict=True):
        whose = grid.maps.stack if len(grids) > 1 else ""
        notes = [*notes, *left_out_note(edge.targets, edge.sources, whose)]
    listing = None
    if pairs is not None:
        targets, sources = labels[-1]
        listing = Listing(pairs, targets, _with_sequences(sources, maps), fonts)

    named = any(grid.row_labels for grid in grids)
    left = MARGIN + (0.2 if named else 0.0) + _AXIS_WORD + max(edge.targets.room for edge in edges)
    bar_room = 0.0 if overview else BAR_GAP + BAR_WIDTH + BAR_TICKS
    pitch_x = side + bar_room + (0.12 if overview else 0.08)
    caption_room = 0.11 if overview else 0.0
    title_room = caption_room + (0.32 if overview else 0.24)
    pitch_y = side + (caption_room + 0.06 if overview else title_room + 0.1)
    panels = [panel for grid in grids for row in grid.rows for panel in row if panel is not None]
    titles = Titles.fitting(panels, side + (0.06 if overview else bar_room - 0.05), fonts, overview)
    word_size = NOTE if overview else TITLE
    columns = max(len(row) for grid in grids for row in grid.rows)
    right = BAR_GAP + 0.55 if overview else 0.0
    width = left + columns * pitch_x + right + (listing.width if listing else 0.0) + 0.05
    width = max(width, _NARROWEST)
    if len(grids) > 1:  # whose heading names two stacks
        width = max(
            width, min(fonts.width(heading, HEADING, "bold") + 2.2 * MARGIN, _HEADING_WIDTH)
        )

    head = Head(heading, text_lines(maps), fonts, width)
    foot = Notes([*notes, provenance(maps)], fonts, width)
    tops: list[float] = []
    bottom = MARGIN + head.height
    for grid, edge in zip(grids, edges, strict=True):
        tops.append(bottom + title_room + (_BETWEEN if tops else 0.0))
        bottom = tops[-1] + (len(grid.rows) - 1) * pitch_y + side + edge.sources.room + _AXIS_WORD
    sheet = Sheet(width, bottom + foot.height + MARGIN, fonts)
    head.draw(sheet)
    foot.draw(sheet, bottom)
    for grid, edge, top in zip(grids, edges, tops, strict=True):
        for r, row in enumerate(grid.rows):
            first = next((c for c, panel in enumerate(row) if panel is not None), None)
            for c, panel in enumerate(row):
                x, y = left + c * pitch_x, top + r * pitch_y
                if c == 0 and grid.row_labels:
                    style = {"rotation": 90, "va": "center"}
                    sheet.text(MARGIN, y + side / 2, grid.row_labels[r], TITLE, "bold", **style)
                if panel is None:
                    continue
                axes = sheet.axes(x, y, side, side)
                image = draw_panel(axes, panel)
                lowest = all(c >= len(under) or under[c] is None for under in grid.rows[r + 1 :])
                ticks = edge.targets if c == first else None, edge.sources if lowest else None
                label_edges(axes, *ticks, fonts, side, word_size, axis_words(grid.maps))
                if listing is not None:
                    listing.mark(axes, panel.cmap, panel.norm, side / max(panel.values.shape))
                titles.draw(axes, panel, side)
                if not overview:
                    bar_x = x + side + BAR_GAP
                    extra = beyond_colour(panel.cmap) if is_beyond(panel) else ""
                    colour_bar(sheet, image, bar_x, y, side, beyond=extra)
    if bar is not None:
        from matplotlib.cm import ScalarMappable

        name, norm = bar
        image = ScalarMappable(norm, panels[0].cmap)
        x = left + columns * pitch_x + BAR_GAP - 0.12
        below = tops[0] + (len(grids[0].rows) - 1) * pitch_y + side  # of the first grid's last row
        height = min(2 * side, below - tops[0])
        extra = beyond_colour(panels[0].cmap) if any(map(is_beyond, panels)) else ""
        colour_bar(sheet, image, x, tops[0], height, name, beyond=extra)
    if listing is not None:
        listing.draw(sheet, left + pitch_x + 0.1, tops[-1])
    return sheet.figure


def _labels(maps: Maps, longest: int) -> tuple[list[str], list[str]]:
    """The labels of targets and of sources."""
    targets, sources = (
        [cut_label(token, longest) for token in tokens]
        for tokens in (maps.tokens, maps.source_tokens)
    )
    return targets, sources


def _with_sequences(labels: list[str], maps: Maps) -> list[str]:
    """Labels of sources that also say whose tokens they are, where two stacks have some."""
    sequences = maps.source_sequences
    if not maps.stack or len(set(sequences)) < 2:
        return labels
    return [f"{label} ({sequence})" for label, sequence in zip(labels, sequences, strict=True)]
