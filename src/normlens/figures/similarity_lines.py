"""Lines of similarity: how much each component changes the map, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from normlens.figures.captions import model_name, provenance, text_lines
from normlens.figures.fonts import Fonts, fonts_for
from normlens.figures.foreign_axes import figure_of
from normlens.scopes import consecutive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps


def plot_similarity(maps: Maps, ax: Axes | None = None) -> Figure:
    """Draw Spearman's ρ between each scope and the one before it, layer by layer.

    The lower a component's line, the more it changes the map. Kobayashi et al. 2024, section 4.
    `ax` takes the lines into axes of yours.
    """
    require_matplotlib()
    steps = consecutive(maps.scopes)
    if not steps:
        raise InputError(
            f"similarity needs two scopes that follow each other; these maps have "
            f"{', '.join(maps.scopes)}"
        )
    labels = [f"{name}:  {before} → {after}" for name, before, after in steps]
    similarities = np.array([maps.similarity(before, after) for _, before, after in steps])
    defined = similarities[np.isfinite(similarities)]
    if ax is not None:
        _draw_lines(ax, maps.layers, similarities, [step.component for step in steps])
        ax.set(xlabel="layer", ylabel="Spearman's ρ")
        ax.legend(frameon=False)
        return figure_of(ax)
    undefined = " It is undefined for a map without differences."
    if maps.coverage:
        undefined += " Layers without a component have no value for it."
    notes = [
        "ρ over all pairs of tokens that attention allows; 1: the component leaves the map's "
        "ranking as it was." + (undefined if defined.size < similarities.size else ""),
        provenance(maps),
    ]
    plot_width = min(max(3.6, 0.24 * (maps.layers[-1] - maps.layers[0])), 7.5)
    plot_height, axis_width, axis_height, gap = 2.9, 0.55, 0.42, 0.2
    fonts = fonts_for([*labels, *notes, *text_lines(maps), model_name(maps)])
    legend_width = max(fonts.width(label, LARGEST_TICK) for label in labels) + 0.45
    width = 2 * MARGIN + axis_width + plot_width + gap + legend_width
    heading = f"{model_name(maps)}: similarity of consecutive scopes"
    heading = ", ".join(filter(None, [heading, maps.origin_in_words]))
    head = Head(heading, text_lines(maps), fonts, width)
    foot = Notes(notes, fonts, width)
    top = MARGIN + head.height + 0.12
    sheet = Sheet(width, top + plot_height + axis_height + foot.height + MARGIN, fonts)
    head.draw(sheet)
    foot.draw(sheet, top + plot_height + axis_height)
    axes = sheet.axes(MARGIN + axis_width, top, plot_width, plot_height)
    _draw_lines(axes, maps.layers, similarities, labels)
    lowest = float(defined.min(initial=0.9))
    axes.set_ylim(max(-1.0, math.floor(10 * lowest - 0.3) / 10), 1.0)
    _style(axes, fonts)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1 + gap / plot_width, 1.0),
        borderaxespad=0,
        frameon=False,
        prop=fonts.properties(LARGEST_TICK),
        handlelength=1.8,
        labelspacing=0.7,
    )
    return sheet.figure


def _draw_lines(
    axes: Any, layers: list[int], similarities: NDArray[Any], labels: Sequence[str]
) -> None:
    for number, (rho, label) in enumerate(zip(similarities, labels, strict=True)):
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
