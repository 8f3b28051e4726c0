"""Heat maps: one in any axes, grids of them on a page, or patches over their picture."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, valid_choice
from normlens.figures import canvas
from normlens.figures.colours import (
    BLUE_ON,
    COLOUR_SCALES,
    beyond,
    beyond_colour,
    colour_bar,
    colour_norm,
    largest,
    palette_named,
    scale_end,
)
from normlens.measures.maps import normalise
from normlens.results.axes import PatchGrid, Token
from normlens.results.words import OWN_SEQUENCE
from normlens.scopes import holds, layers_in_words, resolve

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
    grey: Any = False  # (i, j), pairs that attention allows but the picture leaves out
    divided: float | None = None  # where a line between two sequences of sources stands

    @property
    def beyond_colour(self) -> str:
        """The colour of what is beyond the end of the scale, if anything is."""
        return beyond_colour(self.cmap) if beyond(self.values, self.norm).any() else ""


def draw_panel(axes: Any, panel: Panel, alpha: float = 1, extent: Any = None) -> None:
    """Draw a heat map into axes; with `alpha` below 1, over what they already show."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patheffects import withStroke

    style = {"interpolation": "nearest", "aspect": "auto", "alpha": alpha, "extent": extent}
    # Blank means "not allowed"; zero has a colour of its own.
    colours = palette_named(panel.cmap).with_extremes(bad=(1.0, 1.0, 1.0, 0.0))
    outside = beyond(panel.values, panel.norm)
    values = np.ma.masked_where(outside & (alpha < 1), panel.values)  # no colour below another
    axes.imshow(values, cmap=colours, norm=panel.norm, **style)
    for pairs, colour in ((outside, beyond_colour(panel.cmap)), (panel.grey, "#d5d5d5")):
        if np.any(pairs):
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
    axis.set_ticks(range(0, len(labels), stride), labels[::stride])
    axis.set_tick_params(labelsize=size, rotation=90 if axis.axis_name == "x" else 0)
    return stride


def left_out_note(targets: int, sources: int, whose: str = "") -> list[str]:
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
    ax: Axes, panel: Panel, labels: Sequence[Sequence[str]], words: tuple[str, str]
) -> Figure:
    """Draw a heat map with all labels of rows and columns into somebody else's axes."""
    draw_panel(ax, panel)
    rows, columns = labels
    ax.set_xticks(range(len(columns)), columns, rotation=90, parse_math=False)
    ax.set_yticks(range(len(rows)), rows, parse_math=False)
    return canvas.finish_axes(ax, ylabel=words[0], xlabel=words[1], title=panel.title)


# What values look like: on which scale, with or without i = j.


class Look:
    """How values become colours, and whether the pairs of a token with itself are shown."""

    divided: float | None = None  # where a line between two sequences of sources stands

    def __init__(self, same_token: NDArray[np.bool_], colour: str, cmap: str, diagonal: bool):
        self.same_token = same_token  # (i, j)
        self.colour, self.cmap, self.diagonal = colour, cmap, diagonal

    def panels(
        self, items: Sequence[tuple[Any, str, str, object]], captions: bool = False
    ) -> list[Panel]:
        """Panels of values (i, j), title, what a scope adds; those with equal keys share a scale.

        A caption is the end of a scale, where something lies beyond it, and the largest value.
        """
        left_out = self.same_token & (not self.diagonal)
        shown = [np.ma.masked_where(left_out, values) for values, *_ in items]
        tops: dict[object, float] = defaultdict(float)
        for values, (*_, key) in zip(shown, items, strict=True):
            tops[key] = max(tops[key], scale_end(values, self.same_token, self.colour))
        panels = []
        for values, (whole, title, added, key) in zip(shown, items, strict=True):
            top, most = tops[key], largest(values)
            end = f"end {canvas.number(top)}, " if most > top else ""
            caption = f"{end}max {canvas.number(most)}" if captions else ""
            grey = left_out & ~np.ma.getmaskarray(whole)
            norm = colour_norm(self.colour, top)
            panels.append(Panel(values, norm, self.cmap, title, added, caption, grey, self.divided))
        return panels

    def notes(self, panels: Sequence[Panel], what: str) -> list[str]:
        """Sentences about the clipped scale, which `what` does not stretch, and about i = j."""
        notes = []
        if self.colour == "clipped":
            end = ""
            if any(panel.beyond_colour for panel in panels):
                end = f"; what is beyond its end is {'blue' if self.cmap in BLUE_ON else 'red'}"
            notes = [f"Clipped: {what} do not stretch a scale{end}."]
        if not self.diagonal and self.same_token.any():
            notes.append("Grey: i = j, left out.")
        return notes


class View(Look):
    """Maps as a picture shows them: all columns, or those of one sequence."""

    def __init__(
        self,
        maps: Maps,
        sources: str | None,
        colour: str,
        cmap: str,
        diagonal: bool,
        normalise: str = "none",
    ):
        self.whole, self.sequence, self.normalise = maps, sources, normalise
        self.maps = maps if sources is None else maps.sources_of(sources)
        super().__init__(self.maps.is_same_token, colour, cmap, diagonal)
        shown = [sources in (None, name) for name in maps.source_sequences]
        self.places = np.flatnonzero(shown) if shown else slice(None)
        sequences = self.maps.source_sequences
        if len(set(sequences)) == 2:
            self.divided = sequences.index(OWN_SEQUENCE) - 0.5

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

    def labels(self, max_label: int) -> list[list[str]]:
        """The targets' tokens and the sources', longer ones cut."""
        tokens = self.maps.tokens, self.maps.source_tokens
        return [canvas.cut_labels(names, max_label) for names in tokens]

    def draw_into(self, ax: Axes, panel: Panel, max_label: int) -> Figure:
        """Draw one map with its tokens into somebody else's axes."""
        title = "\n".join(filter(None, [panel.title, self.maps.origin_in_words]))
        titled = replace(panel, title=title)
        figure = draw_into(ax, titled, self.labels(max_label), self.axis_words)
        ax.set_aspect("equal")
        return figure


# Grids of heat maps: tokens at the edges, titles above, colour bars beside the panels.


@dataclass(frozen=True)
class Grid:
    """Rows of panels that show the same tokens, labelled at their left and lower edges.

    A place without a panel (None) stays empty. Rows with labels are rows of small maps.
    """

    view: View
    rows: Sequence[Sequence[Panel | None]]
    row_labels: Sequence[str] = ()


def heat_maps(grids: Sequence[Grid], what: str, unit: str, how: str, max_label: int) -> Figure:
    """Draw grids of panels below each other, small ones with one colour bar, others with one each.

    The last grid's maps say what the picture is about. `unit` is what colours measure, and `how`
    which panels share a scale.
    """
    small = bool(grids[0].row_labels)
    view = grids[-1].view
    rows = [row for grid in grids for row in grid.rows]
    columns = max(map(len, rows))
    panels = [panel for row in rows for panel in row if panel is not None]
    notes = [f"Colour: {unit}; {how} {COLOUR_SCALES[view.colour]} scale."]
    if small:
        notes.append("The bar is a share of each scale's end; above a map: its largest value.")
    if len(panels) < sum(map(len, rows)):
        notes.append("A layer without a map has other components.")
    notes += view.notes(panels, "i = j and the few largest other pairs")
    notes += view.sequence_notes
    side = 0.1 * max(max(grid.view.same_token.shape) for grid in grids)  # inches
    if small:
        side = min(max(side, 1.15), 1.9, max(1.15, 40 / len(rows)))  # a page below about a metre
        widths = [*[side] * columns, canvas.BAR]
    else:
        side = min(max(side, {1: 3.0, 2: 2.4}.get(columns, 1.9)), 3.8)
        widths = [side, canvas.BAR] * columns
    page = canvas.Page(view.maps, what, widths, [side] * len(rows))
    title_size = 7.0 if small else canvas.TITLE
    longest = max(canvas.text_width(panel.title, title_size, "bold") for panel in panels)
    title_size *= min(1, max(0.5, (side + (0.06 if small else 0.4)) / longest))
    largest_tick = canvas.SMALLEST_TICK if small else canvas.LARGEST_TICK
    first = 0
    for grid in grids:
        maps, words = grid.view.maps, grid.view.axis_words
        longest = max(canvas.text_width(word, canvas.TITLE) for word in words)
        word_size = min(canvas.NOTE if small else canvas.TITLE, 8 * (side + 0.08) / longest)
        targets, sources = grid.view.labels(max_label)
        for r, row in enumerate(grid.rows):
            for c, panel in enumerate(row):
                if panel is None:
                    continue
                axes = page.axes(first + r, c if small else 2 * c)
                draw_panel(axes, panel)
                write_titles(axes, panel, title_size)
                axes.set(xticks=[], yticks=[])
                if panel is next(filter(None, row)):
                    of_targets = label_tokens(axes.yaxis, targets, side, largest_tick)
                    lines = [*grid.row_labels[r : r + 1], words[0]]
                    axes.set_ylabel("\n".join(lines), size=word_size)
                if not any(any(under[c : c + 1]) for under in grid.rows[r + 1 :]):
                    of_sources = label_tokens(axes.xaxis, sources, side, largest_tick)
                    axes.set_xlabel(words[1], size=word_size)
                if not small:
                    bar = page.axes(first + r, 2 * c + 1)
                    colour_bar(bar, panel.norm, panel.cmap, side, panel.beyond_colour)
        notes += left_out_note(of_targets, of_sources, maps.stack if len(grids) > 1 else "")
        first += len(grid.rows)
    if small:
        spanned = min(2, len(grids[0].rows))
        colour_bar(
            page.axes(slice(0, spanned), columns),
            colour_norm(view.colour, 1.0),
            view.cmap,
            spanned * side,
            max(panel.beyond_colour for panel in panels),
            "share of the end",
        )
    return page.finish(notes)


def write_titles(axes: Any, panel: Panel, size: float) -> None:
    """Write caption, what is added, and title above each other."""
    height = 2.0  # points
    offset = {"xycoords": "axes fraction", "textcoords": "offset points", "color": canvas.FAINT}
    if panel.caption:
        axes.annotate(panel.caption, (1, 1), (0, height), ha="right", size=5.0, **offset)
        height += 7
    if panel.added:
        axes.annotate(panel.added, (0, 1), (0, height), size=canvas.NOTE, **offset)
        height += 9
    canvas.bold_title(axes, panel.title, size, height)


# Values of patches as colours over the picture that they are cut from.


#: How much of a patch's colour covers the picture.
COVER = 0.62
#: The darkest grey of the picture, so that colours stay what they are on dark patches, too.
_DARKEST = 0.35
#: The grey below a colour bar.
MIDDLING = str((1 + _DARKEST) / 2)


def shape_of(grid: PatchGrid) -> tuple[float, float]:
    """The width and the height of the picture, the longer being 1."""
    height, width = (grid.rows, grid.columns) if grid.picture is None else grid.picture.shape[:2]
    longest = max(height, width)
    return width / longest, height / longest


def draw_patches(axes: Any, grid: PatchGrid, panel: Panel, framed: int | None = None) -> None:
    """Draw a panel of values (row, column) over the picture in grey.

    The axes count patches from the upper left corner. The token `framed` gets a frame if it is a
    patch.
    """
    from matplotlib.patches import Rectangle

    extent = (0, grid.columns, grid.rows, 0)
    axes.set_facecolor("white")
    if grid.picture is not None:
        brightness = grid.picture @ np.array([0.299, 0.587, 0.114]) / 255
        black = -_DARKEST / (1 - _DARKEST)
        axes.imshow(brightness, cmap="gray", vmin=black, vmax=1, extent=extent)
    draw_panel(axes, panel, alpha=COVER, extent=extent)
    if framed is not None and (place := grid.place(framed)) is not None:
        # A dark line between two bright ones is seen on any colour.
        for colour, width in (("white", 2.6), (canvas.INK, 1.1)):
            frame = Rectangle(place[::-1], 1, 1, fill=False, edgecolor=colour, linewidth=width)
            axes.add_patch(frame)
    across, down = shape_of(grid)
    axes.set(xticks=[], yticks=[], box_aspect=down / across, anchor="NW")


def picture_note(grid: PatchGrid) -> str:
    """Say why there is no picture, if there is none."""
    if grid.picture is not None:
        return "The picture that the model saw lies in grey below the colours."
    return "The picture is not known: pixel values came without a processor that explains them."


# Rows or columns of maps over the picture whose patches are the tokens.


_IN_A_ROW = 4
_ALONE, _SMALL = 3.6, 1.6  # inches of a picture's longer side


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
    canvas.require_matplotlib()
    valid_choice(scale, ("map", "shared"), "scale")
    grid = maps.grid
    if grid is None:
        raise InputError(
            "these maps are of no picture, or not of all of its patches, so nothing can be laid "
            "over it; plot(…) draws them"
        )
    name = maps.scopes[-1] if scope is None else resolve(scope, maps.scopes)
    chosen = maps.choose(layers, name)
    if target is not None and source is not None:
        raise InputError("give a target or a source, not both: a row or a column is shown")
    is_row = source is None
    token = grid.named(source if source is not None else target or 0, maps.tokens)
    arrays = [chosen.at(name, layer) for layer in chosen.layers]
    lines = [array[token] if is_row else array[:, token] for array in arrays]
    own = grid.of(np.arange(float(len(maps.tokens)))) == token  # (row, column)
    look = Look(own, colour, cmap, diagonal)
    shared = scale == "shared"
    items = [
        (np.ma.asarray(grid.of(line)), f"layer {layer}", "", shared or layer)
        for layer, line in zip(chosen.layers, lines, strict=True)
    ]
    panels = look.panels(items, captions=True)
    called = maps.tokens[token]
    called = called if called.startswith("[") else f"patch {called}"
    what = f"what each patch receives from {called}"
    if is_row:
        what = f"what {called} receives from each patch"
    one = len(lines) == 1
    if ax is not None:
        if not one:
            raise InputError(f"one pair of axes takes one layer, not {len(lines)}; name a layer")
        draw_patches(ax, grid, panels[0], token)
        title = "\n".join(filter(None, [f"{name} · {what}", maps.origin_in_words]))
        return canvas.finish_axes(ax, title=title)

    width, height = ((_ALONE if one else _SMALL) * share for share in shape_of(grid))
    columns = min(len(lines), _IN_A_ROW)
    rows = math.ceil(len(lines) / columns)
    page = canvas.Page(
        maps,
        layers_in_words(chosen.layers),
        [*[width] * columns, canvas.BAR],
        [height] * rows,
        [f"{name}: {what}"],
    )
    others = [k for k in range(len(maps.tokens)) if k not in grid.tokens]
    for place, (panel, line) in enumerate(zip(panels, lines, strict=True)):
        axes = page.axes(*divmod(place, columns))
        draw_patches(axes, grid, panel, token)
        if not one:
            write_titles(axes, panel, canvas.TITLE)
        words = [f"{maps.tokens[k]} {canvas.number(float(line[k]))}" for k in others]
        [below] = canvas.wrap("  ".join(words), canvas.NOTE, width, 1)
        axes.set_xlabel(below, loc="left", size=canvas.NOTE, labelpad=2)
    absolute = one or shared
    bar = page.axes(slice(0, rows), columns)
    bar.set_facecolor(MIDDLING)
    colour_bar(
        bar,
        panels[0].norm if absolute else colour_norm(colour, 1.0),
        cmap,
        rows * height,
        max(panel.beyond_colour for panel in panels),
        "" if absolute else "share of the end",
        alpha=COVER,
    )
    share = "; the bar is a share of each scale's end; above a picture: its largest value"
    return page.finish(
        [
            f"Colour: {canvas.unit(maps, name, 'none')}; {COLOUR_SCALES[colour]} scale"
            f"{'' if absolute else share}.",
            *look.notes(panels, "the token itself and the few largest patches"),
            picture_note(grid),
        ]
    )
