"""The flow of a score: layers × tokens, with edges as wide as what they carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.figures.canvas import (
    FAINT,
    FRAME,
    INK,
    LARGEST_TICK,
    MARGIN,
    NOTE,
    Head,
    Notes,
    Sheet,
    cut_label,
    fonts_for,
    made,
    model_name,
    require_matplotlib,
    text_lines,
)
from normlens.figures.colours import NO_TOKEN, Ticks, left_out_note, sign_colour
from normlens.figures.heat_maps import figure_of
from normlens.results.words import score_words, total_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.explanation import Explanation


# The edges of a flow picture: which are drawn, how wide, and what the others carry.


CARRIED = 0.95  # of all that flows, by the edges that are drawn
FEW = 100  # edges that are drawn whatever they carry
MOST = 1500  # edges in one picture


@dataclass(frozen=True)
class Edges:
    """The strongest edges of a flow map, weakest first."""

    layer: NDArray[np.intp]
    target: NDArray[np.intp]
    source: NDArray[np.intp]
    value: NDArray[np.floating]
    left_out: int
    share_left_out: float  # of Σ |flow|

    @classmethod
    def of(cls, flow: NDArray[np.floating], most: int = MOST) -> Edges:
        """The fewest edges of a flow map (layer, i, j) that carry most of it."""
        sizes = np.abs(np.nan_to_num(flow)).ravel()
        order = np.argsort(-sizes, kind="stable")
        carried = np.cumsum(sizes[order], dtype=np.float64)
        total = float(carried[-1]) if len(carried) else 0.0
        there = int(np.count_nonzero(sizes))
        needed = int(np.searchsorted(carried, CARRIED * total)) + 1
        count = min(max(needed, FEW), most, there)
        chosen = order[:count][::-1]  # the widest are drawn last
        layer, target, source = np.unravel_index(chosen, flow.shape)
        lost = 1 - float(carried[count - 1]) / total if count else 0.0
        values = flow[layer, target, source]
        return cls(layer, target, source, values, there - count, max(lost, 0.0))

    @property
    def note(self) -> str:
        """What the picture leaves out."""
        if not self.left_out:
            return "Every edge is drawn."
        return (
            f"The {len(self.value)} strongest edges are drawn; the {self.left_out} left out carry "
            f"{100 * self.share_left_out:.1f} % of all that flows (both signs counted)."
        )

    def draw(self, axes: Any, widest: float, largest: float) -> None:
        """Draw curves from (source, layer) to (target, layer + 1), `widest` points at `largest`."""
        from matplotlib.collections import PathCollection
        from matplotlib.path import Path

        codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
        paths = [
            Path([(j, y), (j, y + 0.5), (i, y + 0.5), (i, y + 1)], codes)
            for y, i, j in zip(self.layer, self.target, self.source, strict=True)
        ]
        widths = np.maximum(widest * np.abs(self.value) / largest, 0.15)
        colours = [sign_colour(float(value)) for value in self.value]
        drawn = PathCollection(
            paths, facecolors="none", edgecolors=colours, linewidths=widths, alpha=0.6, zorder=1
        )
        axes.add_collection(drawn)


_NO_TOKEN = "no token"
_WIDEST = 30.0  # inches; the columns of very long texts are narrower
_BESIDE = 1.2  # columns between the last token and what no token owns
_TWO_STACKS = (
    " Left of the line: the source's tokens, in the encoder's layers; right of it: the target's, "
    "in the decoder's, which read the source. Tokens of the stack that does not run wait."
)


def plot_flow(
    why: Explanation,
    *,
    scope: str | None = None,
    max_label: int = 14,
    max_edges: int = 1500,
    ax: Axes | None = None,
) -> Figure:
    """Draw how the score flows from the input tokens (below) through the layers (upwards).

    A node is what the vector that enters a layer carries; an edge, as wide as what it carries, is
    `why.flow[layer, target, source]` (behind `scope`, where one is given). Red adds to the score,
    blue takes away. The weakest edges are left out, and the picture says what they carry; at most
    `max_edges` are drawn. What no token owns enters in a column of its own. `ax` takes the picture
    alone into axes of yours.
    """
    require_matplotlib()
    for name, value in (("max_label", max_label), ("max_edges", max_edges)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    end = why.seen
    flow = why.flow_behind(scope)[:, :end, :end]
    edges = Edges.of(flow, max_edges)
    nodes = _nodes(why, why.flows.get("", flow)[:, :end, :end])
    labels = [cut_label(token, max_label) for token in why.tokens[:end]]
    if ax is not None:
        _draw(ax, why, edges, nodes, 0.2, _BESIDE)
        ax.set_xticks([*range(len(labels)), len(labels) - 1 + _BESIDE], [*labels, _NO_TOKEN])
        for label in ax.get_xticklabels():
            label.set(rotation=90, parse_math=False)
        ax.set(title=why.question, ylabel="layer", xlabel="token")
        return figure_of(ax)

    n, rows = len(labels), len(nodes)
    heading = f"{model_name(why)}: {why.question}"
    if scope is not None:
        heading += f", behind {scope}"
    about = [score_words(why), total_words(why)]
    column = min(max(0.16, 4.6 / (n + _BESIDE)), 0.6, _WIDEST / (n + _BESIDE))
    row = min(max(0.16, 2.6 / rows), 0.5)
    beside = max(_BESIDE, 0.2 / column)
    width, height = column * (n + beside), row * rows
    fonts = fonts_for([*labels, heading, *text_lines(why), *about, _NO_TOKEN, "□…−–"])
    ticks = Ticks.fitting(labels, column * n, fonts, LARGEST_TICK)
    notes = [
        "Upwards: a layer's input to its output; top: where the score is read. Width of edges, "
        "area of nodes: what they carry, red adds to the score, blue takes away; grey frames: "
        "what no token owns, at the layer where it enters."
        + (_TWO_STACKS if why.has_two_sequences else ""),
        edges.note,
        *left_out_note(ticks, ticks),
        made(why.provenance, why.completeness),
    ]
    left = MARGIN + (0.78 if why.has_two_sequences else 0.5)
    sheet_width = max(left + width + MARGIN, 5.0)
    head = Head(heading, [*text_lines(why), *about], fonts, sheet_width)
    foot = Notes(notes, fonts, sheet_width)
    top = MARGIN + head.height + 0.05
    room = max(ticks.room, fonts.width(_NO_TOKEN, ticks.size) + 0.06)
    sheet = Sheet(sheet_width, top + height + room + 0.05 + foot.height + MARGIN, fonts)
    head.draw(sheet)
    foot.draw(sheet, top + height + room + 0.05)
    axes = sheet.axes(left, top, width, height)
    _draw(axes, why, edges, nodes, min(row, column), beside)
    axes.set_xticks([*ticks.positions, n - 1 + beside], [*ticks.labels, _NO_TOKEN])
    for label in axes.get_xticklabels():
        label.set(
            rotation=90,
            parse_math=False,
            fontproperties=fonts.properties(ticks.size),
            color=INK,
        )
    axes.set_ylabel("layer", fontproperties=fonts.properties(NOTE), color=INK, va="center")
    axes.yaxis.set_label_coords((MARGIN - left + 0.14) / width, 0.5)
    return sheet.figure


def _nodes(why: Explanation, flow: NDArray[np.floating]) -> NDArray[np.floating]:
    """What enters each layer, and behind the last what leaves it, (layer + 1, token)."""
    return np.concatenate([why.nodes[:, : why.seen], np.nan_to_num(flow[-1]).sum(1)[None]])


def _draw(
    axes: Any,
    why: Explanation,
    edges: Edges,
    nodes: NDArray[np.floating],
    cell: float,
    beside: float,
) -> None:
    """Draw edges and nodes; a cell of the picture is `cell` inches wide at least.

    What no token owns stands `beside` columns behind the last token.
    """
    layers, n = len(why.nodes), why.seen
    largest = float(np.abs(nodes).max(initial=0.0)) or 1.0
    widest = min(0.45 * 72 * cell, 9.0)
    edges.draw(axes, widest, max(largest, float(np.abs(edges.value).max(initial=0.0))))
    rows, columns = np.indices(nodes.shape)
    _circles(axes, columns.ravel(), rows.ravel(), nodes.ravel(), largest, widest)
    _draw_unowned(axes, why, layers, n - 1 + beside, largest, widest)
    axes.axvline(n - 1 + beside / 2, color=FAINT, linewidth=0.5, linestyle=(0, (3, 2)))
    axes.set_xlim(-0.6, n - 1 + beside + 0.6)
    axes.set_ylim(-0.6, layers + 0.6)
    step = max(1, round(layers / 10))
    shown = list(range(0, layers, step))
    names = [name.replace("coder", "c.") for name in why.layer_names]
    axes.set_yticks([*shown, layers], [*(names[layer] for layer in shown), "end"])
    if why.encoder_tokens is not None:
        axes.axvline(why.encoder_tokens - 0.5, color=FAINT, linewidth=0.6)
        axes.axhline(why.encoder_layers, color=FAINT, linewidth=0.4, linestyle=(0, (3, 2)))
    axes.tick_params(length=0, pad=2, labelsize=NOTE, colors=INK)
    for spine in axes.spines.values():
        spine.set_linewidth(0.5)
        spine.set_color(FRAME)


def _circles(
    axes: Any, x: Any, y: Any, values: Any, largest: float, widest: float, **style: Any
) -> None:
    sizes = 1.6 * widest**2 * np.abs(values) / largest  # square points
    colours = [sign_colour(float(value)) for value in values]
    axes.scatter(
        x, y, s=sizes, c=colours, zorder=2, **{"linewidths": 0.3, "edgecolors": "white"} | style
    )


def _draw_unowned(
    axes: Any, why: Explanation, layers: int, x: float, largest: float, widest: float
) -> None:
    """The biases, each behind the layer that adds it; those behind the last layer at the top."""
    shares = np.zeros(layers + 1)
    for layer, _, share in why.biases:
        shares[layers if isinstance(layer, str) else layer + 1] += share
    axes.scatter([x] * (layers + 1), range(layers + 1), s=3, c=FRAME, marker="_", linewidths=0.5)
    _circles(
        axes,
        np.full(layers + 1, x),
        np.arange(layers + 1),
        shares,
        max(largest, float(np.abs(shares).max())),
        widest,
        edgecolors=NO_TOKEN,
        linewidths=np.where(shares != 0, 1.0, 0.0),
    )
