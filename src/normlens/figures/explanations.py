"""Pictures of explanations: tokens on colours, bars, patches, the flow, components, shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.figures import canvas, heat_maps
from normlens.figures.colours import (
    DIVERGING,
    NO_TOKEN,
    SignedColours,
    colour_bar,
    largest,
    sign_colours,
)
from normlens.results.words import (
    EMBEDDINGS,
    LONGEST,
    NO_TOKEN_WORDS,
    PREFIX,
    READING_WORDS,
    RES,
    SOURCE,
    Row,
    cut,
    decimals,
    explained_rows,
    place_words,
    score_words,
    share_words,
    signed_number,
    total_words,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.citation import Citation
    from normlens.results.explanation import Explanation, Explanations


# A strip of tokens, each on the colour of its number, broken into lines like a text.


#: Tokens of a long text that have a field each; runs of this length of others, which are less than
#: this share of the scale, are folded into one field. As in ``viewer/src/tokenstrip.ts``.
_MOST, _RUN, _FAINT = 200, 4, 0.05
_PAD, _GAP, _HEIGHT, _LINE = 0.045, 0.025, 0.19, 0.235  # inches


def draw_strip(
    name: str,
    tokens: Sequence[str],
    values: NDArray[np.floating],
    remainder: float | None,
    colours: SignedColours,
    axes: Any,
    room: float,
    read_at: int | None = None,
) -> float:
    """Draw tokens on the colours of their values into `room` inches; return the height.

    The last field is what no token owns, unless that is None. A dark frame marks `read_at`.
    """
    from matplotlib.patches import Rectangle

    size = 8.5 if len(tokens) <= 400 else 6.5
    labels, runs = list(tokens), folded(values, colours.end, read_at)
    for first, end in runs:
        total = float(np.sum(values[first:end], dtype=np.float64))
        labels[first] = f"… {end - first} tokens {signed_number(total, decimals(colours.largest))}"
    hidden = {place for first, end in runs for place in range(first + 1, end)}
    folds = {first for first, _ in runs}
    if remainder is not None:
        places = decimals(max(colours.largest, abs(remainder)))
        labels.append(f"{NO_TOKEN_WORDS} {signed_number(remainder, places)}")
    x, y = 0.0, 0.18 if name else 0.02
    for place, label in enumerate(labels):
        if place in hidden:
            continue
        [shown] = canvas.wrap(label, size, room - 2 * _PAD, 1)
        width = canvas.text_width(shown, size) + 2 * _PAD
        if x and x + width > room:
            x, y = 0.0, y + _LINE
        fill: Any = "white"
        ink, edge, thick, dashes = canvas.INK, canvas.FAINT, 0.6, "--"
        if place < len(tokens) and place not in folds:
            value = float(values[place])
            fill, ink, dashes = colours.of(value), colours.ink(value), "-"
            edge, thick = (canvas.INK, 1.1) if place == read_at else (canvas.FRAME, 0.3)
        box = Rectangle((x, y), width, _HEIGHT, clip_on=False, facecolor=fill)
        box.set(edgecolor=edge, linewidth=thick, linestyle=dashes)
        axes.add_patch(box)
        middle = x + width / 2, y + _HEIGHT / 2
        axes.text(*middle, shown, ha="center", va="center_baseline", color=ink, size=size)
        x += width + _GAP
    height = y + _LINE + 0.02
    axes.set_title(name, loc="left", y=1, pad=-8, size=canvas.TITLE, weight="bold")
    axes.set(xlim=(0, room), ylim=(height, 0), xticks=[], yticks=[])
    axes.axis("off")
    return height


def folded(
    values: NDArray[np.floating], end: float, read_at: int | None = None
) -> list[tuple[int, int]]:
    """Runs of a long text's tokens that contribute next to nothing, as (first, behind the last)."""
    sizes = np.abs(values)
    if len(sizes) <= _MOST:
        return []
    shown = sizes > max(_FAINT * end, float(np.sort(sizes)[-_MOST - 1]))
    if read_at is not None:
        shown[read_at] = True
    edges = np.flatnonzero(np.diff(np.concatenate([[True], shown, [True]])))
    runs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(first, end) for first, end in runs if end - first >= _RUN]


# Bars of signed contributions: one per token, and always one for what no token owns.


def draw_bars(axes: Any, rows: Sequence[Row], colours: SignedColours, label: str = "") -> None:
    """Draw bars from the top down, with their numbers; a `label` is that of a page's own axis."""
    places = decimals(max(abs(row.value) for row in rows))
    numbers = [signed_number(row.value, places) for row in rows]
    for place, row in enumerate(rows):
        if row.is_heading:
            continue
        style = {"color": "white", "edgecolor": NO_TOKEN, "linewidth": 0.8}
        style["hatch"] = "////" if row.of_no_token else "...."
        if row.token is not None:
            style = {"color": colours.of(row.value), "edgecolor": canvas.FRAME, "linewidth": 0.4}
        bar = axes.barh(place, row.value, height=0.78, **style)
        axes.bar_label(bar, numbers[place : place + 1], padding=2.5, fontsize=canvas.NOTE)
    axes.axvline(0, color=canvas.INK, linewidth=0.6)
    axes.margins(x=0.03 * max(map(len, numbers)))  # for the numbers
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [row.label for row in rows], parse_math=False)
    for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
        tick.set_fontweight("bold" if row.is_heading else "normal")
    if label:
        canvas.number_axis(axes.xaxis, 6, label)
        axes.tick_params(axis="y", length=0, pad=3, labelsize=canvas.LARGEST_TICK)
        axes.spines[["left", "right", "top"]].set_visible(False)


# An explanation: its tokens on the colours of their contributions, and the same as bars.


def plot_explanation(
    why: Explanation,
    *,
    reading: str = EMBEDDINGS,
    cmap: str = DIVERGING,
    max_label: int = 24,
    ax: Axes | None = None,
) -> Figure:
    """Draw what each token contributes to the score: a strip of tokens, and bars below it.

    The bars sum to the score, with what no token owns among them. A long text has bars for its
    strongest tokens, and one for all others together. `reading` is "embeddings", or "layers" for
    the mean over the inputs of all layers, which is fair to attention sinks. `cmap` is a diverging
    colour map of matplotlib; labels longer than `max_label` characters are cut. `ax` takes the bars
    into axes of yours. Of a picture the contributions of its patches are laid over it.
    """
    canvas.require_matplotlib()
    contributions = why.read(reading)
    colours = SignedColours(contributions, cmap)
    patches = ax is None and why.grid is not None
    rows = explained_rows(why, 18 if patches else LONGEST, reading)
    labels = canvas.cut_labels((row.label for row in rows), max_label)
    rows = [
        row if row.token is None else replace(row, label=label)
        for row, label in zip(rows, labels, strict=True)
    ]
    if ax is not None:
        draw_bars(ax, rows, colours)
        return canvas.finish_axes(ax, title=why.question, xlabel="contribution to the score")

    about = [score_words(why), f"{place_words(why)}; {total_words(why, reading)}"]
    about += [READING_WORDS[reading]] if reading in READING_WORDS else []
    tall = 0.165 * len(rows)  # inches
    if why.grid is not None:
        width, height = (3.4 * share for share in heat_maps.shape_of(why.grid))
        widths = [width, canvas.BAR, 3.0]
        page = canvas.Page(why, why.question, widths, [max(height, tall)], about)
        values = why.grid.of(contributions)
        heat_maps.draw_patches(page.axes(), why.grid, heat_maps.Panel(values, colours.norm, cmap))
        bar = page.axes(0, 1)
        colour_bar(bar, colours.norm, cmap, height, alpha=heat_maps.COVER)
        bar.set(box_aspect=height / canvas.BAR, anchor="NW", facecolor=heat_maps.MIDDLING)
        bars = page.axes(0, 2)
        what, notes = "patch", [heat_maps.picture_note(why.grid)]
    else:
        shares = [share_words(why)] if why.has_two_sequences else []
        page = canvas.Page(why, why.question, [5.1], [tall], [*about, *shares])
        *_, ending = parts = why.parts(reading)
        for part in parts:
            last = part is ending
            read_at = why.read_at - part.first if last and why.read_at is not None else None
            rest = why.remainder_of(reading) if last else None
            fields = part.name, part.tokens, part.contributions, rest, colours
            page.add_strip(partial(draw_strip, *fields, read_at=read_at))
        bars = page.axes()
        what, notes = "token", []
        if why.position is not None:
            notes = ["A dark frame marks the token where it is read."]
    draw_bars(bars, rows, colours, "contribution to the score")
    first = f"Colour and bars: what each {what} contributes to the score, red above 0, blue below."
    return page.finish([f"{first} Colours: {colours.words}.", *notes], narrowest=6.3)


# A citation: the strongest sources as bars.


_MOST_SOURCES = 14


def plot_citation(
    citation: Citation, *, cmap: str = DIVERGING, max_label: int = 48, ax: Axes | None = None
) -> Figure:
    """Draw the scores of the sources as bars, of many the strongest in their order.

    Lines are intervals, where ablations sharpened the scores. Labels longer than `max_label`
    characters are cut; `ax` takes the bars into axes of yours.
    """
    canvas.require_matplotlib()
    scores, count = citation.scores, len(citation.sources)
    shown = sorted(np.argsort(-np.abs(scores), kind="stable")[:_MOST_SOURCES].tolist())
    labels = [f"{place}: {' '.join(citation.sources[place].split())}" for place in shown]
    rows = [
        Row(label, float(scores[place]), place)
        for label, place in zip(canvas.cut_labels(labels, max_label), shown, strict=True)
    ]
    if len(shown) < count:
        rest = float(np.delete(scores, shown).sum())
        rows.append(Row(f"{count - len(shown)} other sources", rest))
    label = f"score: part of the answer's {citation.score}"
    if ax is None:
        said = {"question": citation.question, "answer": citation.answer}
        about = [f"{name}: {' '.join(text.split())}" for name, text in said.items()]
        what = "which sources made this answer"
        page = canvas.Page(citation, what, [3.6], [0.2 * len(rows)], about)
    axes: Any = page.axes() if ax is None else ax
    draw_bars(axes, rows, SignedColours(scores, cmap), label if ax is None else "")
    if citation.interval is not None:
        for row, place in enumerate(shown):
            axes.plot(citation.interval[place], [row, row], color=canvas.INK, linewidth=0.8)
    if ax is not None:
        return canvas.finish_axes(ax, title=cut(citation.answer), xlabel=label)
    how = "the sums over their tokens, by one exact backward pass"
    if citation.ablations:
        how = f"what {citation.ablations} subsets and one exact backward pass say; lines: 95 %"
    return page.finish([f"Bars: {how}. Red speaks for the answer, blue against it."], narrowest=6.3)


# What the pictures of layers have in common.


def biases_by_layer(why: Explanation) -> NDArray[np.float64]:
    """The biases that each layer adds, and at the end those behind the last layer."""
    biases = np.zeros(len(why.nodes) + 1)
    for layer, _, share in why.biases:
        biases[-1 if isinstance(layer, str) else layer] += share
    return biases


def label_layers(axis: Any, why: Explanation, most: int) -> None:
    """Name about so many layers along an axis, and the end behind the last."""
    layers = len(why.nodes)
    shown = range(0, layers, max(1, round(layers / most)))
    names = [name.replace("coder", "c.") for name in why.layer_names]
    axis.set_ticks([*shown, layers], labels=[*(names[layer] for layer in shown), "end"])


# The edges of a flow picture: which are drawn, how wide, and what the others carry.


CARRIED = 0.95  # of all that flows, by the edges that are drawn
FEW = 100  # edges that are drawn whatever they carry
MOST = 1500  # edges in one picture


class Edges(NamedTuple):
    """The strongest edges of a flow map, weakest first."""

    places: NDArray[np.intp]  # (edge, 3): layer, target, source
    value: NDArray[np.floating]
    left_out: int | None  # None: nobody counted them
    share_left_out: float  # of Σ |flow|

    @classmethod
    def of(cls, flow: NDArray[np.floating], most: int = MOST) -> Edges:
        """The fewest edges of a flow map (layer, i, j) that carry most of it."""
        sizes = np.abs(np.nan_to_num(flow)).ravel()
        order = np.argsort(-sizes, kind="stable")
        carried = np.cumsum(sizes[order], dtype=np.float64)
        there = int(np.count_nonzero(sizes))
        needed = int(np.searchsorted(carried, CARRIED * carried[-1])) + 1
        count = min(max(needed, FEW), most, there)
        chosen = order[:count][::-1]  # the widest are drawn last
        lost = 1 - float(carried[count - 1] / carried[-1]) if count else 0.0
        places = np.stack(np.unravel_index(chosen, flow.shape), axis=1)
        return cls(places, flow.ravel()[chosen], there - count, max(lost, 0.0))

    @classmethod
    def kept(cls, why: Explanation, row_of: NDArray[np.intp], most: int) -> Edges:
        """The strongest of the edges that an explanation keeps, between rows of tokens."""
        assert why.edges is not None
        assert why.edge_values is not None
        assert why.edge_totals is not None
        layer = np.broadcast_to(np.arange(len(why.edges))[:, None], why.edge_values.shape)
        ends = np.concatenate([layer[..., None], row_of[why.edges]], axis=-1).reshape(-1, 3)
        places, edge = np.unique(ends, axis=0, return_inverse=True)
        value: NDArray[Any] = np.bincount(edge.ravel(), why.edge_values.ravel())
        chosen = np.argsort(-np.abs(value), kind="stable")[:most][::-1]
        carried = np.abs(value[chosen]).sum() / why.edge_totals.sum(dtype=np.float64)
        return cls(places[chosen], value[chosen], None, max(1 - float(carried), 0.0))

    @property
    def note(self) -> str:
        """What the picture leaves out."""
        if self.left_out == 0:
            return "Every edge is drawn."
        count = "those" if self.left_out is None else f"the {self.left_out}"
        return (
            f"The {len(self.value)} strongest edges are drawn; {count} left out carry "
            f"{100 * self.share_left_out:.1f} % of all that flows (both signs counted)."
        )


# The flow of a score: layers × tokens, with edges as wide as what they carry.


_BESIDE = 1.2  # rows between the last token and what no token owns
_TWO_STACKS = (
    " Above the line: the source's tokens, in the encoder's layers; below it: the target's, in the "
    "decoder's, which read the source. Tokens of the stack that does not run wait."
)


def plot_flow(
    why: Explanation,
    *,
    scope: str | None = None,
    max_label: int = 14,
    max_edges: int = 1500,
    ax: Axes | None = None,
) -> Figure:
    """Draw how the score flows from the input tokens (left) through the layers (to the right).

    A node is what the vector that enters a layer carries; an edge, as wide as what it carries, is
    `why.flow[layer, target, source]` (behind `scope`, where one is given). Red adds to the score,
    blue takes away. The weakest edges are left out, and the picture says what they carry; at most
    `max_edges` are drawn. What no token owns enters in a row of its own. `ax` takes the picture
    alone into axes of yours.
    """
    canvas.require_matplotlib()
    if max_edges < 1:
        raise InputError(f"max_edges must be at least 1, not {max_edges}")
    n, folded = why.seen, ""
    if scope is None and why.edges is not None:
        row_of, names = _fold_tokens(why)
        n, edges = len(names), Edges.kept(why, row_of, max_edges)
        at_end = edges.places[:, 0] == len(why.nodes) - 1
        leaving = np.bincount(edges.places[at_end, 1], edges.value[at_end], minlength=n)
        entering = [np.bincount(row_of, layer, minlength=n) for layer in why.nodes]
        nodes = np.stack([*entering, leaving])
        if n < len(why.raw_tokens):
            folded = f"{names[-1]} are one row, the last. "
    else:
        flow, names = why.flow_behind(scope)[:, :n, :n], why.tokens[:n]
        edges = Edges.of(flow, max_edges)
        # What enters each layer, and behind the last what leaves it, (layer + 1, token).
        leaving = np.nan_to_num(why.flows.get("", flow)[-1, :n, :n]).sum(1)
        nodes = np.concatenate([why.nodes[:, :n], leaving[None]])
    labels = canvas.cut_labels(names, max_label)
    if ax is not None:
        _draw_flow(ax, why, edges, nodes, 0.2, _BESIDE)
        labels.append("no token")
        ax.set_yticks([*range(n), n - 1 + _BESIDE], labels, parse_math=False)
        return canvas.finish_axes(ax, title=why.question, ylabel="token", xlabel="layer")

    behind = "" if scope is None else f", behind {scope}"
    row = min(max(0.16, 2.2 / (n + _BESIDE)), 0.5, 30 / (n + _BESIDE))  # inches
    column = min(max(0.16, 4.8 / len(nodes)), 0.6)
    beside = max(_BESIDE, 0.2 / row)
    page = canvas.Page(
        why,
        f"{why.question}{behind}",
        [column * len(nodes)],
        [row * (n + beside)],
        [score_words(why), total_words(why)],
    )
    axes = page.axes()
    _draw_flow(axes, why, edges, nodes, min(row, column), beside)
    stride = heat_maps.label_tokens(axes.yaxis, labels, row * n)
    shown = [*range(0, n, stride), n - 1 + beside]
    axes.set_yticks(shown, [*labels[::stride], "no token"])
    axes.tick_params(length=0)
    axes.set_xlabel("layer", size=canvas.NOTE)
    return page.finish(
        [
            "To the right: a layer's input to its output; end: where the score is read. Width of "
            "edges, area of nodes: what they carry, red adds to the score, blue takes away; grey "
            "frames: what no token owns, at the layer where it enters."
            + (_TWO_STACKS if why.has_two_sequences else ""),
            folded + edges.note,
            *heat_maps.left_out_note(stride, stride),
        ],
        narrowest=4.7,
    )


#: Rows of tokens in the flow of a long text.
ROWS = 40


def _fold_tokens(why: Explanation) -> tuple[NDArray[np.intp], list[str]]:
    """The row of each token and the rows' names: those that carry most, then all others as one."""
    assert why.edges is not None
    assert why.edge_values is not None
    n = len(why.raw_tokens)
    if n <= ROWS:
        return np.arange(n), why.tokens
    sizes = np.repeat(np.abs(why.edge_values).ravel(), 2)
    carried = np.bincount(why.edges.reshape(-1), sizes, minlength=n)
    shown = np.sort(np.argsort(-carried, kind="stable")[:ROWS])
    row_of = np.full(n, ROWS)
    row_of[shown] = np.arange(ROWS)
    return row_of, [*(why.tokens[k] for k in shown), f"{n - ROWS} other tokens"]


def _draw_flow(
    axes: Any,
    why: Explanation,
    edges: Edges,
    nodes: NDArray[np.floating],
    cell: float,
    beside: float,
) -> None:
    """Draw edges and nodes; a cell of the picture is `cell` inches wide at least.

    An edge is a curve from (source, layer) to (target, layer + 1). What no token owns stands
    `beside` rows below the last token: each bias behind the layer that adds it, those behind the
    last layer at the end.
    """
    from matplotlib.collections import PathCollection
    from matplotlib.path import Path

    layers, n = len(why.nodes), nodes.shape[1]
    # What a layer adds leaves it; at the end it joins what stands behind the last layer.
    *of_layers, at_the_end = biases_by_layer(why)
    biases = np.array([0.0, *of_layers])
    biases[-1] += at_the_end
    most_of_node = largest(np.abs(nodes))
    widest = min(0.45 * 72 * cell, 9.0)  # points
    widths = widest * np.abs(edges.value) / max(most_of_node, largest(np.abs(edges.value)))
    codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    curves = [
        Path([(x, j), (x + 0.5, j), (x + 0.5, i), (x + 1, i)], codes) for x, i, j in edges.places
    ]
    style: dict[str, Any] = {"facecolors": "none", "alpha": 0.6, "zorder": 1}
    style |= {"edgecolors": sign_colours(edges.value), "linewidths": np.maximum(widths, 0.15)}
    axes.add_collection(PathCollection(curves, **style))

    def circles(x: Any, y: Any, values: Any, most: float, **style: Any) -> None:
        sizes = 1.6 * widest**2 * np.abs(values) / most  # square points
        axes.scatter(x, y, s=sizes, c=sign_colours(values), zorder=2, **style)

    columns, rows = (places.ravel() for places in np.indices(nodes.shape))
    circles(columns, rows, nodes.ravel(), most_of_node, linewidths=0.3, edgecolors="white")
    x, y = np.arange(layers + 1), np.full(layers + 1, n - 1 + beside)
    axes.scatter(x, y, s=3, c=canvas.FRAME, marker="|", linewidths=0.5)
    most = max(most_of_node, largest(np.abs(biases)))
    circles(x, y, biases, most, edgecolors=NO_TOKEN, linewidths=1.0 * (biases != 0))
    dashed = {"color": canvas.FAINT, "linewidth": 0.5, "linestyle": (0, (3, 2))}
    axes.axhline(n - 1 + beside / 2, **dashed)
    axes.set(ylim=(n - 1 + beside + 0.6, -0.6), xlim=(-0.6, layers + 0.6))
    label_layers(axes.xaxis, why, 10)
    if why.encoder_tokens is not None:
        axes.axhline(why.encoder_tokens - 0.5, color=canvas.FAINT, linewidth=0.6)
        axes.axvline(why.encoder_layers, **dashed)


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
        why,
        why.question,
        [3.4, cell * heads, canvas.BAR],
        [row * (layers + 1)],
        [score_words(why), total_words(why)],
    )
    bars = page.axes()
    _draw_components(bars, why)
    canvas.legend_above(bars)
    canvas.number_axis(bars.xaxis, 6, "added to the score")
    bars.tick_params(axis="y", length=0)
    bars.set_ylabel("layer", size=canvas.NOTE)
    heat = page.axes(0, 1)
    heat_maps.draw_panel(heat, heat_maps.Panel(np.ma.masked_invalid(by_head), colours.norm, cmap))
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
            f"by head, red above 0, blue below; {colours.words}."
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
    label_layers(axes.yaxis, why, 16)
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
        ax.set_yticks(range(len(labels)), labels, parse_math=False)
        words = {"xlabel": "share", "ylabel": "generated token"}
        return canvas.finish_axes(ax, title="source against prefix", **words)

    height = min(0.2, 30 / len(labels)) * len(labels)  # rows of very long targets are thinner
    result = replace(explanations[0], completeness=explanations.completeness)
    what = "what source and prefix supply of each token"
    page = canvas.Page(result, what, [3.0, 2.4], [height])
    sums, shares = page.axes(), page.axes(0, 1)
    groups = {name: (colour, table[name]) for name, colour in _OF.items()}
    _draw_bars(sums, {**groups, NO_TOKEN_WORDS: (NO_TOKEN, table["bias"])})
    canvas.legend_above(sums)
    stride = heat_maps.label_tokens(sums.yaxis, labels, height)
    _draw_shares(shares, table)
    shares.set_yticks([])
    canvas.number_axis(sums.xaxis, 5, "part of the score")
    canvas.number_axis(shares.xaxis, 5, "share of source and prefix")
    return page.finish(
        [
            "Left: contributions of the source's tokens, of the target's tokens before the "
            "generated one, and of no token (biases); they sum to the token's score. Right: "
            "|Σ source| / (|Σ source| + |Σ prefix|); black marks: the same of Σ|contribution|.",
            *heat_maps.left_out_note(stride, stride),
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
