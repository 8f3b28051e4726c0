"""Lines of similarity by layer, and shares of source and prefix by generated token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.figures.canvas import (
    COLOURS,
    FRAME,
    INK,
    LARGEST_TICK,
    MARGIN,
    MARKERS,
    NOTE,
    TITLE,
    Fonts,
    Head,
    Notes,
    Sheet,
    cut_label,
    fonts_for,
    generated_note,
    made,
    model_name,
    provenance,
    require_matplotlib,
    text_lines,
    tick,
)
from normlens.figures.colours import NO_TOKEN, Ticks, left_out_note
from normlens.figures.heat_maps import figure_of
from normlens.results.words import NO_TOKEN_WORDS, PREFIX, SOURCE, by_stack
from normlens.scopes import Step, consecutive

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.explanation import Explanations
    from normlens.results.maps import Maps


# Lines of similarity: how much each component changes the map, layer by layer.


_WIDTH, _WIDEST, _HEIGHT = 3.6, 7.5, 2.9  # of a plot, inches
_AXIS_WIDTH, _AXIS_HEIGHT, _GAP, _NAME = 0.55, 0.42, 0.2, 0.22


def plot_similarity(maps: Maps, *, stack: str | None = None, ax: Axes | None = None) -> Figure:
    """Draw Spearman's ρ between each scope and the one before it, layer by layer.

    The lower a component's line, the more it changes the map. Kobayashi et al. 2024, section 4.
    Of an encoder–decoder the encoder stands above the decoder; `stack` shows one of them. `ax`
    takes the lines into axes of yours, of both stacks the decoder's.
    """
    require_matplotlib()
    both = by_stack(maps, stack)
    if ax is not None:
        lines = _Lines.of(both[-1])
        _draw_lines(ax, lines, [step.component for step in lines.steps])
        ax.set(xlabel="layer", ylabel="Spearman's ρ", title=lines.maps.stack)
        ax.legend(frameon=False)
        return figure_of(ax)
    plots = [_Lines.of(one) for one in both if len(both) == 1 or consecutive(one.scopes)]
    if not plots:
        plots = [_Lines.of(both[-1])]  # raises
    maps = both[-1]
    undefined = " It is undefined for a map without differences."
    if any(one.coverage for one in both):
        undefined += " Layers without a component have no value for it."
    whole = all(lines.defined.size == lines.similarities.size for lines in plots)
    either = " and that either scope has a part of" if maps.source_sequences else ""
    notes = [
        f"ρ over all pairs of tokens that attention allows{either}; 1: the component leaves the "
        "map's ranking as it was." + ("" if whole else undefined),
        *generated_note(maps),
        provenance(maps),
    ]
    labels = [label for lines in plots for label in lines.labels]
    spans = [lines.maps.layers[-1] - lines.maps.layers[0] for lines in plots]
    plot_width = min(max(_WIDTH, 0.24 * max(spans)), _WIDEST)
    fonts = fonts_for([*labels, *notes, *text_lines(maps), model_name(maps)])
    legend_width = max(fonts.width(label, LARGEST_TICK) for label in labels) + 0.45
    width = 2 * MARGIN + _AXIS_WIDTH + plot_width + _GAP + legend_width
    heading = f"{model_name(maps)}: similarity of consecutive scopes"
    heading = ", ".join(filter(None, [heading, maps.origin_in_words]))
    head = Head(heading, text_lines(maps), fonts, width)
    foot = Notes(notes, fonts, width)
    name = _NAME if maps.stack else 0.0
    first = MARGIN + head.height + 0.12
    pitch = name + _HEIGHT + _AXIS_HEIGHT
    sheet = Sheet(width, first + len(plots) * pitch + foot.height + MARGIN, fonts)
    head.draw(sheet)
    foot.draw(sheet, first + len(plots) * pitch)
    for number, lines in enumerate(plots):
        top = first + number * pitch + name
        if name:
            sheet.text(MARGIN + _AXIS_WIDTH, top - name, lines.maps.stack, TITLE, "bold")
        axes = sheet.axes(MARGIN + _AXIS_WIDTH, top, plot_width, _HEIGHT)
        _draw_lines(axes, lines, lines.labels)
        lowest = float(lines.defined.min(initial=0.9))
        axes.set_ylim(max(-1.0, math.floor(10 * lowest - 0.3) / 10), 1.0)
        _style(axes, fonts)
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(1 + _GAP / plot_width, 1.0),
            borderaxespad=0,
            frameon=False,
            prop=fonts.properties(LARGEST_TICK),
            handlelength=1.8,
            labelspacing=0.7,
        )
    return sheet.figure


@dataclass(frozen=True)
class _Lines:
    """The similarities of one stack: a line for each step between scopes."""

    maps: Maps
    steps: list[Step]
    similarities: NDArray[Any]  # (step, layer)

    @classmethod
    def of(cls, maps: Maps) -> _Lines:
        steps = consecutive(maps.scopes)
        if not steps:
            raise InputError(
                f"similarity needs two scopes that follow each other; these maps have "
                f"{', '.join(maps.scopes)}"
            )
        similarities = [maps.similarity(before, after) for _, before, after in steps]
        return cls(maps, steps, np.array(similarities))

    @property
    def labels(self) -> list[str]:
        return [f"{name}:  {before} → {after}" for name, before, after in self.steps]

    @property
    def defined(self) -> NDArray[Any]:
        """The values that are numbers."""
        return self.similarities[np.isfinite(self.similarities)]


def _draw_lines(axes: Any, lines: _Lines, labels: Sequence[str]) -> None:
    layers = lines.maps.layers
    for number, (rho, label) in enumerate(zip(lines.similarities, labels, strict=True)):
        axes.plot(
            layers,
            rho,
            marker=MARKERS[number % len(MARKERS)],
            color=COLOURS[number % len(COLOURS)],
            linewidth=1.3,
            markersize=4,
            linestyle="-" if number < len(COLOURS) else "--",
            label=label,
            clip_on=False,
        )
    axes.set_xlim(layers[0] - 0.3, layers[-1] + 0.3)
    axes.set_xticks(layers[:: math.ceil(len(layers) / 15)])


def _style(axes: Any, fonts: Fonts) -> None:
    word_font = fonts.properties(TITLE)
    axes.set_xlabel("layer", fontproperties=word_font, color=INK)
    axes.set_ylabel("Spearman's ρ", fontproperties=word_font, color=INK)
    axes.tick_params(labelsize=LARGEST_TICK, width=0.5, length=2.5, colors=INK)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_linewidth(0.6)


# What the source and the prefix supply of each generated token's score.


_SUMS, _SHARES, _SHARES_GAP = 3.0, 2.4, 0.35  # inches
_SHARES_HEIGHT = 30.0  # at most; rows of very long targets are thinner
_OF = {SOURCE: COLOURS[0], PREFIX: COLOURS[4]}


def plot_shares(
    explanations: Explanations, *, max_label: int = 24, ax: Axes | None = None
) -> Figure:
    """Draw how much of each generated token's score comes from the source and from the prefix.

    Left: the sums of both sequences' contributions, and the biases, which make the score. Right:
    the share of each, ``|source| / (|source| + |prefix|)``, with a mark at the share of the
    absolute sums, ``Σ|c|``. `ax` takes the shares alone into axes of yours.
    """
    require_matplotlib()
    if max_label < 1:
        raise InputError(f"max_label must be at least 1, not {max_label}")
    table = explanations.shares()
    labels = [cut_label(str(token), max_label) for token in table["token"]]
    if ax is not None:
        _draw_shares(ax, table)
        ax.set_yticks(range(len(labels)), labels, parse_math=False)
        ax.set(xlabel="share", ylabel="generated token", title="source against prefix")
        return figure_of(ax)

    first = explanations[0]
    heading = f"{model_name(first)}: what source and prefix supply of each token"
    fonts = fonts_for([*labels, heading, *text_lines(first), "□…−–"])
    row = min(0.2, _SHARES_HEIGHT / len(labels))
    height = row * len(labels)
    ticks = Ticks.fitting(labels, height, fonts, LARGEST_TICK)
    notes = [
        "Left: contributions of the source's tokens, of the target's tokens before the generated "
        "one, and of no token (biases); they sum to the token's score. Right: "
        "|Σ source| / (|Σ source| + |Σ prefix|); black marks: the same of Σ|contribution|.",
        *left_out_note(ticks, ticks),
        made(first.provenance, explanations.completeness),
    ]
    left = MARGIN + ticks.room + 0.1
    width = left + _SUMS + _SHARES_GAP + _SHARES + MARGIN
    head, foot = Head(heading, text_lines(first), fonts, width), Notes(notes, fonts, width)
    top = MARGIN + head.height + 0.22
    sheet = Sheet(width, top + height + 0.42 + foot.height + MARGIN, fonts)
    head.draw(sheet)
    _legend(sheet, left, top - 0.22)
    sums = sheet.axes(left, top, _SUMS, height)
    _draw_sums(sums, table)
    _shares_style(sums, fonts, "part of the score")
    properties = fonts.properties(ticks.size)
    sums.set_yticks(
        ticks.positions, ticks.labels, fontproperties=properties, parse_math=False, color=INK
    )
    shares = sheet.axes(left + _SUMS + _SHARES_GAP, top, _SHARES, height)
    _draw_shares(shares, table)
    _shares_style(shares, fonts, "share of source and prefix")
    shares.set_yticks([])
    foot.draw(sheet, top + height + 0.42)
    return sheet.figure


def _draw_sums(axes: Any, table: pd.DataFrame) -> None:
    """Three thin bars for each token."""
    rows = np.arange(len(table))
    parts = (("source", _OF[SOURCE]), ("prefix", _OF[PREFIX]), ("bias", NO_TOKEN))
    for place, (name, colour) in enumerate(parts):
        axes.barh(rows + 0.26 * (place - 1), table[name], height=0.26, color=colour, linewidth=0)
    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_ylim(len(table) - 0.5, -0.5)


def _draw_shares(axes: Any, table: pd.DataFrame) -> None:
    """One bar for each token, divided between source and prefix."""
    rows = np.arange(len(table))
    share = table["source_share"].to_numpy()
    style: dict[str, Any] = {"height": 0.78, "linewidth": 0}
    axes.barh(rows, share, color=_OF[SOURCE], label=SOURCE, **style)
    axes.barh(rows, 1 - share, left=share, color=_OF[PREFIX], label=PREFIX, **style)
    absolute = table["source_share_absolute"]
    axes.scatter(absolute, rows, marker="|", s=60, color="black", linewidths=1.4, zorder=3)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(table) - 0.5, -0.5)


def _legend(sheet: Sheet, x: float, y: float) -> None:
    from matplotlib.patches import Rectangle

    for name, colour in {**_OF, NO_TOKEN_WORDS: NO_TOKEN}.items():
        corner = (x / sheet.width, 1 - (y + 0.13) / sheet.height)
        size = (0.1 / sheet.width, 0.1 / sheet.height)
        sheet.figure.add_artist(Rectangle(corner, *size, facecolor=colour, linewidth=0))
        sheet.text(x + 0.14, y + 0.02, name, TITLE)
        x += 0.34 + sheet.fonts.width(name, TITLE)


def _shares_style(axes: Any, fonts: Fonts, words: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(tick))
    axes.tick_params(labelsize=NOTE, length=2, width=0.5, color=FRAME, labelcolor=INK)
    axes.tick_params(axis="y", length=0, pad=3)
    axes.set_xlabel(words, fontproperties=fonts.properties(NOTE), labelpad=2)
    for spine in axes.spines.values():
        spine.set_linewidth(0.5)
        spine.set_color(FRAME)
