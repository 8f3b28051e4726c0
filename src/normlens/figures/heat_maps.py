"""Heat maps: one panel, a grid of them, the strongest pairs, or somebody else's axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens import measures
from normlens.errors import InputError
from normlens.figures.canvas import (
    FAINT,
    FRAME,
    HEADING,
    INK,
    LARGEST_TICK,
    MARGIN,
    NOTE,
    SMALLEST_TICK,
    TITLE,
    Fonts,
    Head,
    Notes,
    Sheet,
    cut_label,
    fonts_for,
    provenance,
    signed,
    text_lines,
)
from normlens.figures.colours import (
    BAR_GAP,
    BAR_TICKS,
    BAR_WIDTH,
    ShownColumns,
    Ticks,
    axis_words,
    beyond,
    beyond_colour,
    colour_bar,
    colour_norm,
    label_edges,
    left_out_note,
    scale_end,
    scale_notes,
)
from normlens.measures import Pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps


# One heat map: its values, its colours, and its title.


def masked(maps: Maps, normalise: str) -> dict[str, Any]:
    """Blank pairs that have no part: scope → masked array (layer, i, j).

    They are those that attention does not allow and, of two sequences, those of the one that a
    scope has nothing of.
    """
    arrays = {}
    for scope, array in maps.arrays.items():
        places = [maps.layers.index(layer) for layer in maps.layers_of(scope)]
        blank = ~maps.pairs_of(scope)[places]
        arrays[scope] = np.ma.masked_where(blank, measures.normalise(array, normalise))
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


# The strongest pairs: numbered in a heat map, spelled out beside it.


class Listing:
    """A list of the most strengthened pairs (by number) and most weakened ones (by letter)."""

    def __init__(
        self,
        pairs: tuple[list[Pair], list[Pair]],
        targets: list[str],
        sources: list[str],
        fonts: Fonts,
    ):
        strengthened, weakened = pairs
        self.groups = [
            ("most strengthened", [*zip(map(str, range(1, 100)), strengthened, strict=False)]),
            ("most weakened", [*zip("abcdefghijklmnopqrstuvwxyz", weakened, strict=False)]),
        ]
        self.targets, self.sources = targets, sources
        self.width = 0.25 + max(
            [fonts.width(f"{title} (source → target)", TITLE, "bold") for title, _ in self.groups]
            + [
                0.75 + fonts.width(self._words(pair), LARGEST_TICK)
                for _, marked in self.groups
                for _, pair in marked
            ]
        )

    def _words(self, pair: Pair) -> str:
        return f"{self.sources[pair.source]} → {self.targets[pair.target]}"

    def mark(self, axes: Any, cmap: str, norm: Any, cell: float) -> None:
        from matplotlib import colormaps
        from matplotlib.patches import Rectangle
        from matplotlib.patheffects import withStroke

        small = 72 * cell < 5  # the mark does not fit into its cell
        halo = [withStroke(linewidth=1.5, foreground="white")] if small else []
        for _, marked in self.groups:
            for mark, pair in marked:
                corner = (pair.source - 0.5, pair.target - 0.5)
                axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=INK, linewidth=0.8))
                red, green, blue, _ = colormaps[cmap](norm(pair.value))
                dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
                axes.annotate(
                    mark,
                    (pair.source, pair.target),
                    xytext=(2.5, 2.5) if small else (0, 0),
                    textcoords="offset points",
                    fontsize=NOTE if small else min(LARGEST_TICK, 72 * cell * 0.7),
                    ha="left" if small else "center",
                    va="bottom" if small else "center_baseline",
                    color="white" if dark and not small else INK,
                    path_effects=halo,
                )

    def draw(self, sheet: Sheet, x: float, y: float) -> None:
        for title, marked in self.groups:
            sheet.text(x, y, f"{title} (source → target)", TITLE, "bold")
            y += 0.2
            if not marked:
                sheet.text(x, y, "none", LARGEST_TICK, color=FAINT)
                y += 0.165
            for mark, pair in marked:
                sheet.text(x, y, mark, LARGEST_TICK)
                sheet.text(x + 0.62, y, signed(pair.value), LARGEST_TICK, ha="right")
                sheet.text(x + 0.75, y, self._words(pair), LARGEST_TICK)
                y += 0.165
            y += 0.12


# Maps in axes that somebody else laid out.


def draw_into(
    ax: Axes,
    values: Any,
    shown: ShownColumns,
    norm: Any,
    cmap: str,
    title: str,
    max_label: int,
) -> Figure:
    """Draw one map (i, j) with its tokens as ticks; return the figure that the axes belong to."""
    maps = shown.maps
    rows, columns = (
        [cut_label(token, max_label) for token in tokens]
        for tokens in (maps.tokens, maps.source_tokens)
    )
    ax.imshow(values, norm=norm, cmap=cmap, interpolation="nearest")
    if (extra := beyond(values, norm)).any():
        paint(ax, extra, beyond_colour(cmap))
    ax.set_xticks(range(len(columns)), columns, rotation=90, parse_math=False)
    ax.set_yticks(range(len(rows)), rows, parse_math=False)
    divide(ax, shown.divided)
    target_word, source_word = axis_words(maps)
    ax.set(xlabel=source_word, ylabel=target_word, title=title)
    return figure_of(ax)


def titled(maps: Maps, title: str) -> str:
    """A title that also says whose contributions are shown, if not the layer's own sources'."""
    return f"{title}\n{maps.origin_in_words}" if maps.origin_in_words else title


def figure_of(ax: Axes) -> Figure:
    """Find the figure that the axes belong to."""
    figure = ax.get_figure(root=True)
    if figure is None:
        raise InputError("these axes belong to no figure")
    return figure


def only_scope(scopes: Sequence[str]) -> str:
    """Take the only scope; several do not fit into one pair of axes."""
    if len(scopes) != 1:
        raise InputError(
            f"one pair of axes takes one map, not {len(scopes)}; name a scope, such as "
            f"maps.plot(scopes={scopes[-1]!r}, ax=ax)"
        )
    return scopes[0]


# Heat maps in grids: tokens at the edges, a title above and a colour bar beside the panels.


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
