"""Lines of similarity: how much each component changes the map, layer by layer."""

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
    INK,
    LARGEST_TICK,
    MARGIN,
    MARKERS,
    TITLE,
    Head,
    Notes,
    Sheet,
    require_matplotlib,
)
from normlens.figures.captions import generated_note, model_name, provenance, text_lines
from normlens.figures.fonts import Fonts, fonts_for
from normlens.figures.foreign_axes import figure_of
from normlens.results.both_stacks import by_stack
from normlens.scopes import Step, consecutive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps


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
