"""Lines and bars by layer and by generated token: similarity, components, shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.figures import canvas
from normlens.figures.colours import DIVERGING, NO_TOKEN, SignedColours, colour_bar
from normlens.figures.explanations import biases_by_layer, label_layers
from normlens.figures.heat_maps import Panel, draw_panel, label_tokens, left_out_note
from normlens.results.words import (
    NO_TOKEN_WORDS,
    PREFIX,
    RES,
    SOURCE,
    by_stack,
    score_words,
    total_words,
)
from normlens.scopes import consecutive

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.explanation import Explanation, Explanations
    from normlens.results.maps import Maps


# Lines of similarity: how much each component changes the map, layer by layer.


def plot_similarity(maps: Maps, *, stack: str | None = None, ax: Axes | None = None) -> Figure:
    """Draw Spearman's ρ between each scope and the one before it, layer by layer.

    The lower a component's line, the more it changes the map. Kobayashi et al. 2024, section 4.
    Of an encoder–decoder the encoder stands above the decoder; `stack` shows one of them. `ax`
    takes the lines into axes of yours, of both stacks the decoder's.
    """
    canvas.require_matplotlib()
    both = by_stack(maps, stack)
    maps = both[-1]
    if ax is not None:
        _draw_lines(ax, maps, "{0}")
        ax.legend(frameon=False)
        return canvas.finish_axes(ax, xlabel="layer", ylabel="Spearman's ρ", title=maps.stack)

    # Maps without two scopes that follow each other are an error, unless the other stack has some.
    stacks = [one for one in both if consecutive(one.scopes)] or [maps]
    span = max(one.layers[-1] - one.layers[0] for one in stacks)
    page = canvas.Page(
        canvas.model_and(maps, "similarity of consecutive scopes"),
        canvas.text_lines(maps),
        [min(max(3.6, 0.24 * span), 7.5)],
        [2.9] * len(stacks),
    )
    for row, one in enumerate(stacks):
        axes = page.axes(row)
        _draw_lines(axes, one, "{0}:  {1} → {2}")
        axes.set_ylim(min(axes.get_ylim()[0], 0.85), 1)
        canvas.bold_title(axes, one.stack)
        axes.set_xlabel("layer", size=canvas.TITLE)
        axes.set_ylabel("Spearman's ρ", size=canvas.TITLE)
        axes.tick_params(labelsize=canvas.LARGEST_TICK)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["right", "top"]].set_visible(False)
        place = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
        axes.legend(fontsize=canvas.LARGEST_TICK, frameon=False, **place)
    either = " and that either scope has a part of" if maps.source_sequences else ""
    note = (
        f"ρ over all pairs of tokens that attention allows{either}; 1: the component leaves the "
        "map's ranking as it was. It is undefined for a map without differences and for a layer "
        "without the component."
    )
    return page.finish([note, *canvas.generated_note(maps), canvas.provenance(maps)])


def _draw_lines(axes: Any, maps: Maps, label: str) -> None:
    """Draw a line for each step between scopes."""
    steps = consecutive(maps.scopes)
    if not steps:
        raise InputError(
            f"similarity needs two scopes that follow each other; these maps have "
            f"{', '.join(maps.scopes)}"
        )
    count = len(canvas.COLOURS)
    dashes = ["-"] * count + ["--"] * count
    axes.set_prop_cycle(color=2 * canvas.COLOURS, marker=2 * [*canvas.MARKERS], linestyle=dashes)
    for step in steps:
        rho = maps.similarity(step.before, step.after)
        style = {"linewidth": 1.3, "markersize": 4, "clip_on": False}
        axes.plot(maps.layers, rho, label=label.format(*step), **style)
    axes.set_xlim(maps.layers[0] - 0.3, maps.layers[-1] + 0.3)
    axes.set_xticks(maps.layers[:: math.ceil(len(maps.layers) / 15)])


# Bars beside each other in each row, from the top down.


def _draw_bars(axes: Any, groups: Mapping[str, tuple[str, Any]]) -> None:
    """Draw groups of bars, by name: their colour, and a value for each row."""
    thick = 0.84 / len(groups)
    for place, (name, (colour, values)) in enumerate(groups.items()):
        rows = np.arange(len(values))
        at = rows + thick * (place - (len(groups) - 1) / 2)
        axes.barh(at, values, height=thick, color=colour, label=name, linewidth=0)
    axes.axvline(0, color=canvas.INK, linewidth=0.6)
    axes.set_ylim(len(rows) - 0.5, -0.5)


# What each component of each layer adds to a score, and each head.


def plot_components(why: Explanation, *, cmap: str = DIVERGING, ax: Axes | None = None) -> Figure:
    """Draw what each layer's components add to the score, as bars, and each head, as a heat map.

    All positions are summed. What passes a layer by its residual connections alone (RES) is not
    drawn; with it, a layer's bars and the biases from that layer on sum to the score. `ax` takes
    the bars into axes of yours.
    """
    canvas.require_matplotlib()
    if ax is not None:
        _draw_components(ax, why)
        ax.legend(fontsize="small")
        labels = {"xlabel": "added to the score", "ylabel": "layer"}
        return canvas.finish_axes(ax, title=why.question, **labels)

    by_head, names = _by_head(why)
    layers, heads = by_head.shape
    colours = SignedColours(by_head, cmap)
    row = min(max(0.155, 2.0 / (layers + 1)), 0.4)
    cell = max(min(row, 1.8 / heads + 0.05), 0.07)
    page = canvas.Page(
        f"{canvas.model_name(why)}: {why.question}",
        [*canvas.text_lines(why), score_words(why), total_words(why)],
        [3.4, cell * heads, canvas.BAR],
        [row * (layers + 1)],
    )
    bars = page.axes()
    _draw_components(bars, why)
    canvas.legend_above(bars)
    canvas.number_axis(bars.xaxis, 6, "added to the score")
    bars.tick_params(axis="y", length=0)
    bars.set_ylabel("layer", size=canvas.NOTE)
    heat = page.axes(0, 1)
    draw_panel(heat, Panel(np.ma.masked_invalid(by_head), colours.norm, cmap))
    title = "heads" if why.cross_heads is None else "heads of ATTN | CROSS"
    canvas.bold_title(heat, title)
    heat.set_ylim(bars.get_ylim())
    shown = [k for k in range(0, heads, max(1, round(heads / 8))) if names[k]]
    canvas.number_axis(heat.xaxis, words="head")
    heat.set_xticks(shown, [names[k] for k in shown])
    heat.set_yticks([])
    colour_bar(page.axes(0, 2), colours.norm, cmap, row * layers)
    attentions = "ATTN and, behind the gap, CROSS" if why.has_two_sequences else "ATTN"
    return page.finish(
        [
            "Left: how much of the score passes each block of a layer first, over all positions; "
            "the rest passes none of them (RES, not drawn). Biases of all layers and what the "
            f"tokens contribute sum to the score. Right: the part of the attention ({attentions}) "
            "by head, red above 0, blue below.",
            canvas.made(why.provenance, why.completeness),
        ],
        narrowest=5.8,
    )


def _by_head(why: Explanation) -> tuple[NDArray[np.float64], list[str]]:
    """What each head adds over all positions, (layer, head), and the heads' names.

    Heads of CROSS stand behind those of ATTN, with a gap between them.
    """
    parts, names = [why.heads], [*map(str, range(why.heads.shape[1]))]
    if why.cross_heads is not None:
        parts += [np.full_like(why.heads[:, :1], np.nan), why.cross_heads]
        names += ["", *map(str, range(why.cross_heads.shape[1]))]
    return np.hstack(parts).sum(-1, dtype=np.float64), names


def _draw_components(axes: Any, why: Explanation) -> None:
    """Draw what the blocks of each layer add, layer 0 on top, and the biases."""
    sums = np.nansum(why.components, axis=-1)  # (layer, component)
    groups = {
        name: (canvas.COLOURS[place % 6], np.append(sums[:, place], 0.0))
        for place, name in enumerate(why.component_names)
        if name != RES  # it is most of the score, and would dwarf the others
    }
    _draw_bars(axes, {**groups, NO_TOKEN_WORDS: (NO_TOKEN, biases_by_layer(why))})
    label_layers(axes, why, 16)
    for boundary in range(1, len(sums) + 1):
        axes.axhline(boundary - 0.5, color="#e6e6e6", linewidth=0.4, zorder=0)


# What the source and the prefix supply of each generated token's score.


_OF = {SOURCE: canvas.COLOURS[0], PREFIX: canvas.COLOURS[4]}


def plot_shares(
    explanations: Explanations, *, max_label: int = 24, ax: Axes | None = None
) -> Figure:
    """Draw how much of each generated token's score comes from the source and from the prefix.

    Left: the sums of both sequences' contributions, and the biases, which make the score. Right:
    the share of each, ``|source| / (|source| + |prefix|)``, with a mark at the share of the
    absolute sums, ``Σ|c|``. `ax` takes the shares alone into axes of yours.
    """
    canvas.require_matplotlib()
    table = explanations.shares()
    labels = canvas.cut_labels(explanations.predicted, max_label)
    if ax is not None:
        _draw_shares(ax, table)
        ax.set_yticks(range(len(labels)), labels)
        words = {"xlabel": "share", "ylabel": "generated token"}
        return canvas.finish_axes(ax, title="source against prefix", **words)

    first = explanations[0]
    height = min(0.2, 30 / len(labels)) * len(labels)  # rows of very long targets are thinner
    page = canvas.Page(
        f"{canvas.model_name(first)}: what source and prefix supply of each token",
        canvas.text_lines(first),
        [3.0, 2.4],
        [height],
    )
    sums, shares = page.axes(), page.axes(0, 1)
    groups = {name: (colour, table[name]) for name, colour in _OF.items()}
    _draw_bars(sums, {**groups, NO_TOKEN_WORDS: (NO_TOKEN, table["bias"])})
    canvas.legend_above(sums)
    stride = label_tokens(sums.yaxis, labels, height)
    _draw_shares(shares, table)
    shares.set_yticks([])
    canvas.number_axis(sums.xaxis, 5, "part of the score")
    canvas.number_axis(shares.xaxis, 5, "share of source and prefix")
    return page.finish(
        [
            "Left: contributions of the source's tokens, of the target's tokens before the "
            "generated one, and of no token (biases); they sum to the token's score. Right: "
            "|Σ source| / (|Σ source| + |Σ prefix|); black marks: the same of Σ|contribution|.",
            *left_out_note(stride, stride),
            canvas.made(first.provenance, explanations.completeness),
        ]
    )


def _draw_shares(axes: Any, table: pd.DataFrame) -> None:
    """One bar for each token, divided between source and prefix."""
    share, absolute = table["source_share"], table["source_share_absolute"]
    axes.barh(table.index, share, height=0.78, color=_OF[SOURCE], label=SOURCE)
    axes.barh(table.index, 1 - share, left=share, height=0.78, color=_OF[PREFIX], label=PREFIX)
    axes.scatter(absolute, table.index, marker="|", s=60, color="black", linewidths=1.4, zorder=3)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(table) - 0.5, -0.5)
