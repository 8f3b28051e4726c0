"""Heat maps with token labels: one in any axes, or grids of them on a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.figures import canvas
from normlens.figures.colours import (
    beyond,
    beyond_colour,
    colour_bar,
    colour_norm,
    largest,
    palette_named,
    scale_end,
    scale_notes,
)
from normlens.measures.maps import Pair, normalise
from normlens.results.words import OWN_SEQUENCE
from normlens.scopes import holds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps


# One heat map: its values, its colours, and what is written around it.


@dataclass(frozen=True)
class Panel:
    """A heat map (row, column) and its title."""

    values: Any  # masked array (i, j)
    norm: Any
    cmap: str
    title: str = ""
    added: str = ""  # what the scope adds to the one before it
    caption: str = ""
    grey: Any = None  # (i, j), pairs that attention allows but the picture leaves out
    divided: float | None = None  # where a line between two sequences of sources stands

    @property
    def beyond(self) -> NDArray[np.bool_]:
        """The pairs beyond the end of the scale."""
        return beyond(self.values, self.norm)

    @property
    def beyond_colour(self) -> str:
        """The colour of what is beyond the end of the scale, if anything is."""
        return beyond_colour(self.cmap) if self.beyond.any() else ""


def draw_panel(axes: Any, panel: Panel) -> None:
    """Draw a heat map into axes."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patheffects import withStroke

    # Blank means "not allowed"; zero has a colour of its own.
    colours = palette_named(panel.cmap).with_extremes(bad=(1.0, 1.0, 1.0, 0.0))
    style: dict[str, Any] = {"interpolation": "nearest", "aspect": "auto"}
    axes.imshow(panel.values, cmap=colours, norm=panel.norm, **style)
    marked = [(panel.beyond, panel.beyond_colour)] if panel.beyond_colour else []
    if panel.grey is not None:
        marked.append((panel.grey, "#d5d5d5"))
    for pairs, colour in marked:
        flat = np.ma.masked_where(~pairs, np.zeros(pairs.shape))
        axes.imshow(flat, cmap=ListedColormap([colour]), **style)
    if panel.divided is not None:
        halo = [withStroke(linewidth=1.6, foreground="white")]
        axes.axvline(panel.divided, color=canvas.INK, linewidth=0.6, path_effects=halo)


def label_tokens(
    axis: Any, labels: Sequence[str], inches: float, largest: float = canvas.LARGEST_TICK
) -> int:
    """Label tokens along so many inches; return 2 where there is room for every second, …."""
    cell = 72 * inches / len(labels)  # points per token
    size = min(max(0.85 * cell, canvas.SMALLEST_TICK), largest)
    stride = max(1, math.ceil(1.1 * size / cell))
    style: dict[str, Any] = {"rotation": 90 if axis.axis_name == "x" else 0, "parse_math": False}
    axis.set_ticks(range(0, len(labels), stride), labels[::stride], **style)
    axis.set_tick_params(labelsize=size)
    return stride


def left_out_note(targets: int, sources: int, *, whose: str = "") -> list[str]:
    """A note where there is no room for every token's label, in the maps of `whose` stack."""
    where = f" in the {whose}'s maps" if whose else ""
    every = {"target": targets, "source": sources}
    if targets == sources:
        every = {"token": targets}
    return [
        f"Every {({2: 'second', 3: 'third'}).get(stride, f'{stride}th')} {what} is labelled{where}."
        for what, stride in every.items()
        if stride > 1
    ]


def draw_into(
    ax: Axes,
    panel: Panel,
    rows: Sequence[str],
    columns: Sequence[str],
    words: tuple[str, str],
    max_label: int,
) -> Figure:
    """Draw a heat map with all its labels into somebody else's axes; return their figure."""
    draw_panel(ax, panel)
    rows, columns = (
        [canvas.cut_label(token, max_label) for token in names] for names in (rows, columns)
    )
    ax.set_xticks(range(len(columns)), columns, rotation=90, parse_math=False)
    ax.set_yticks(range(len(rows)), rows, parse_math=False)
    ax.set(ylabel=words[0], xlabel=words[1], title=panel.title)
    return canvas.figure_of(ax)


# What maps look like: which columns, in which colours, with or without i = j.


class View:
    """Maps as a picture shows them."""

    def __init__(
        self,
        maps: Maps,
        sources: str | None,
        colour: str,
        cmap: str,
        diagonal: bool,
        normalise: str = "none",
    ):
        self.whole, self.sequence = maps, sources
        self.colour, self.cmap = colour, cmap
        self.diagonal, self.normalise = diagonal, normalise
        self.maps = maps if sources is None else maps.sources_of(sources)
        every = maps.source_sequences or [""] * len(maps.sources)
        self.places = [k for k, name in enumerate(every) if sources in (None, name)]
        self.same_token = self.maps.is_same_token
        self.longest = max(len(maps.targets), len(self.places))
        sequences = self.maps.source_sequences
        two = len(set(sequences)) == 2
        self.divided = sequences.index(OWN_SEQUENCE) - 0.5 if two else None

    def scopes(self, names: Sequence[str]) -> list[str]:
        """The scopes that have parts of the columns that are shown."""
        if self.sequence is None:
            return list(names)
        own = self.sequence == OWN_SEQUENCE
        shown = [name for name in names if holds(name)[0 if own else 1]]
        if not shown:
            raise InputError(
                f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no parts of the "
                f"{self.sequence}'s tokens; choose other scopes, or show all sources"
            )
        return shown

    def values(self, scope: str, layer: int, array: NDArray[Any] | None = None) -> Any:
        """The map (i, j) of a scope, or another `array` of it; pairs that have no part are masked.

        They are those that attention does not allow and, of two sequences, those of the one that a
        scope has nothing of.
        """
        array = self.whole.at(scope, layer) if array is None else array
        blank = ~self.whole.pairs_of(scope)[self.whole.layers.index(layer)]
        shown = np.ma.masked_where(blank, normalise(array, self.normalise))
        return shown[:, self.places]

    def panels(
        self, items: Sequence[tuple[Any, str, str, object]], captions: bool = False
    ) -> list[Panel]:
        """Panels of values (i, j), title, what a scope adds; those with equal keys share a scale.

        A caption is the end of a scale, where something lies beyond it, and the largest value.
        """
        left_out = self.same_token & (not self.diagonal)
        shown = [np.ma.masked_where(left_out, values) for values, *_ in items]
        tops: dict[object, float] = {}
        for values, (*_, key) in zip(shown, items, strict=True):
            tops[key] = max(tops.get(key, 0.0), scale_end(values, self.same_token, self.colour))
        panels = []
        for values, (whole, title, added, key) in zip(shown, items, strict=True):
            grey = None if self.diagonal else self.same_token & ~np.ma.getmaskarray(whole)
            norm = colour_norm(self.colour, tops[key])
            panel = Panel(values, norm, self.cmap, title, added, "", grey, self.divided)
            if captions:
                end = f"end {canvas.number(tops[key])}, " if panel.beyond_colour else ""
                panel = replace(panel, caption=f"{end}max {canvas.number(largest(values))}")
            panels.append(panel)
        return panels

    def notes(self, panels: Sequence[Panel]) -> list[str]:
        """Sentences about the scale, about what is left out, and about two sequences."""
        marked = any(panel.beyond_colour for panel in panels)
        notes = scale_notes(self.colour, self.cmap, marked)
        if not self.diagonal and self.same_token.any():
            notes.append("Grey: i = j, left out.")
        return [*notes, *self.sequence_notes]

    @property
    def sequence_notes(self) -> list[str]:
        """What is to be known about two sequences."""
        line = (
            "A line divides the encoder's tokens from the decoder's; a scope is blank where it has "
            "no parts of a sequence."
        )
        notes = [line] if self.divided is not None and self.maps.stack else []
        return [*notes, *canvas.generated_note(self.whole)]

    @property
    def axis_words(self) -> tuple[str, str]:
        """What targets and sources are called; of two sequences, whose tokens they are."""
        stack = self.maps.stack
        if not stack:
            return "target i (output)", "source j (input)"
        shown = list(dict.fromkeys(self.maps.source_sequences or [stack]))
        sources = f" ({shown[0]})" if len(shown) == 1 else f": {' | '.join(shown)}"
        return f"target i ({stack})", f"source j{sources}"

    def draw_into(self, ax: Axes, panel: Panel, max_label: int) -> Figure:
        """Draw one map with its tokens into somebody else's axes."""
        origin = self.maps.origin_in_words
        titled = replace(panel, title=f"{panel.title}\n{origin}" if origin else panel.title)
        tokens = self.maps.tokens, self.maps.source_tokens
        figure = draw_into(ax, titled, *tokens, self.axis_words, max_label)
        ax.set_aspect("equal")
        return figure


# Grids of heat maps: tokens at the edges, titles above, colour bars beside the panels.


@dataclass(frozen=True)
class Grid:
    """Rows of panels that show the same tokens, labelled at their left and lower edges.

    A place without a panel (None) stays empty.
    """

    view: View
    rows: Sequence[Sequence[Panel | None]]
    row_labels: Sequence[str] = ()


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
    """Draw grids of panels below each other, with a colour bar each or one `bar` for all.

    The last grid's maps say what the picture is about.
    """
    canvas.check_at_least_one(max_label=max_label)
    maps = grids[-1].view.maps
    rows = [row for grid in grids for row in grid.rows]
    columns = max(map(len, rows))
    panels = [panel for row in rows for panel in row if panel is not None]
    small = bar is not None
    widths = [*[side] * columns, canvas.BAR] if small else [side, canvas.BAR] * columns
    if pairs is not None:
        widths.append(0.01)  # of a list that is as wide as it must be
    page = canvas.Page(heading, canvas.text_lines(maps), widths, [side] * len(rows))
    title_size = 7.0 if small else canvas.TITLE
    longest = max(canvas.text_width(panel.title, title_size, "bold") for panel in panels)
    title_size *= min(1, max(0.5, (side + (0.06 if small else 0.4)) / longest))
    first = 0
    for grid in grids:
        words = grid.view.axis_words
        longest = max(canvas.text_width(word, canvas.TITLE) for word in words)
        word_size = min(canvas.NOTE if small else canvas.TITLE, 8 * (side + 0.08) / longest)
        tokens = grid.view.maps.tokens, grid.view.maps.source_tokens
        labels = [[canvas.cut_label(token, max_label) for token in names] for names in tokens]
        largest_tick = canvas.SMALLEST_TICK if small else canvas.LARGEST_TICK
        strides = [1, 1]
        for r, row in enumerate(grid.rows):
            edges = [True, False]  # the left one and the lower one
            for c, panel in enumerate(row):
                if panel is None:
                    continue
                axes = page.axes(first + r, c if small else 2 * c)
                draw_panel(axes, panel)
                _write_titles(axes, panel, title_size)
                axes.set(xticks=[], yticks=[])
                edges[1] = all(c >= len(under) or under[c] is None for under in grid.rows[r + 1 :])
                lines = [*grid.row_labels[r : r + 1], words[0]]
                for k, axis in enumerate((axes.yaxis, axes.xaxis)):
                    if edges[k]:
                        strides[k] = label_tokens(axis, labels[k], side, largest_tick)
                        axis.set_label_text(words[1] if k else "\n".join(lines), size=word_size)
                edges[0] = False
                if pairs is not None:
                    _mark_pairs(axes, panel, pairs, side / max(panel.values.shape))
                if not small:
                    scale = panel.norm, palette_named(panel.cmap), side
                    own_bar = page.axes(first + r, 2 * c + 1)
                    colour_bar(own_bar, *scale, beyond=panel.beyond_colour)
        whose = grid.view.maps.stack if len(grids) > 1 else ""
        notes = [*notes, *left_out_note(*strides, whose=whose)]
        first += len(grid.rows)
    if bar is not None:
        spanned = min(2, len(grids[0].rows))
        marked = next((p.beyond_colour for p in panels if p.beyond_colour), "")
        scale = bar[1], palette_named(panels[0].cmap), spanned * side
        colour_bar(page.axes(slice(0, spanned), columns), *scale, name=bar[0], beyond=marked)
    if pairs is not None:
        listing = _listing(pairs, labels[0], labels[1], maps)
        axes = page.axes(0, 2)
        axes.set(xticks=[], yticks=[])
        axes.axis("off")
        axes.text(0, 1, listing, size=canvas.LARGEST_TICK, va="top", linespacing=1.5)
    return page.finish([*notes, canvas.provenance(maps)])


def _write_titles(axes: Any, panel: Panel, size: float) -> None:
    """Write caption, what is added, and title above each other."""
    height = 2.0  # points
    style: dict[str, Any] = {
        "xycoords": "axes fraction",
        "textcoords": "offset points",
        "color": canvas.FAINT,
    }
    if panel.caption:
        axes.annotate(panel.caption, (1, 1), (0, height), ha="right", size=5.0, **style)
        height += 7
    if panel.added:
        axes.annotate(panel.added, (0, 1), (0, height), size=canvas.NOTE, **style)
        height += 9
    canvas.bold_title(axes, panel.title, size, height)


# The strongest pairs: numbered in a heat map, spelled out beside it.


_MARKS = ("most strengthened", range(1, 100)), ("most weakened", "abcdefghijklmnopqrstuvwxyz")


def _listing(
    pairs: tuple[list[Pair], list[Pair]],
    targets: Sequence[str],
    sources: Sequence[str],
    maps: Maps,
) -> str:
    """List the most strengthened pairs (by number) and most weakened ones (by letter)."""
    if maps.stack and len(set(maps.source_sequences)) == 2:
        whose = zip(sources, maps.source_sequences, strict=True)
        sources = [f"{label} ({sequence})" for label, sequence in whose]
    groups = []
    for (title, marks), ranked in zip(_MARKS, pairs, strict=True):
        lines = []
        for mark, pair in zip(marks, ranked, strict=False):
            words = f"{sources[pair.source]} → {targets[pair.target]}"
            lines.append(f"{mark}   {canvas.signed(pair.value)}   {words}")
        groups.append("\n".join([f"{title} (source → target)", *(lines or ["none"])]))
    return "\n\n".join(groups)


def _mark_pairs(axes: Any, panel: Panel, pairs: tuple[list[Pair], list[Pair]], cell: float) -> None:
    """Frame the strongest pairs and write their marks into their cells, or beside small ones."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    small = 72 * cell < 5  # the mark does not fit into its cell
    palette = palette_named(panel.cmap)
    for (_, marks), ranked in zip(_MARKS, pairs, strict=True):
        for mark, pair in zip(marks, ranked, strict=False):
            corner = (pair.source - 0.5, pair.target - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=canvas.INK, linewidth=0.8))
            is_dark = np.dot(palette(panel.norm(pair.value))[:3], [0.3, 0.59, 0.11]) < 0.5
            axes.annotate(
                str(mark),
                (pair.source, pair.target),
                xytext=(2.5, 2.5) if small else (0, 0),
                textcoords="offset points",
                fontsize=canvas.NOTE if small else min(canvas.LARGEST_TICK, 72 * cell * 0.7),
                ha="left" if small else "center",
                va="bottom" if small else "center_baseline",
                color="white" if is_dark and not small else canvas.INK,
                path_effects=[withStroke(linewidth=1.5, foreground="white")] if small else [],
            )
