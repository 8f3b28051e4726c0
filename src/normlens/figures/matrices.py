"""Matrices of signed numbers: components by layer, cosines of two texts, next tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import quoted
from normlens.figures import canvas
from normlens.figures.colours import DIVERGING, NO_TOKEN, SIGNED_SCALES, SignedColours, colour_bar
from normlens.figures.explanations import draw_strip
from normlens.figures.heat_maps import Panel, draw_into, draw_panel, label_tokens, left_out_note
from normlens.results.words import (
    NO_TOKEN_WORDS,
    RES,
    cosine_words,
    parts_words,
    score_words,
    total_words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.explanation import Cosine, Explanation, Explanations


# A matrix of signed numbers between two lists of tokens, with a colour bar.


def _draw_matrix(
    values: Any,  # (row, column)
    tokens: tuple[Sequence[str], Sequence[str]],
    words: tuple[str, str],  # what rows and columns are
    colours: SignedColours,
    max_label: int,
    ax: Axes | None,
    *,
    model: str,
    title: str,
    lines: Sequence[str],
    notes: tuple[str, str],
    strips: Mapping[str, Callable[[Any, float], float]] = MappingProxyType({}),
    divided: float | None = None,
) -> Figure:
    """Draw a heat map between tokens; rows and columns behind the last token are of no token."""
    canvas.check_at_least_one(max_label=max_label)
    labels = [
        [*names, *["no token"] * (count - len(names))]
        for names, count in zip(tokens, values.shape, strict=True)
    ]
    panel = Panel(values, colours.norm, colours.cmap, title, divided=divided)
    if ax is not None:
        return draw_into(ax, panel, labels[0], labels[1], words, max_label)
    # Cells are square, and as large as a page allows.
    cell = min(max(0.09, 4.2 / max(values.shape)), 0.34, 30 / max(values.shape))
    inches = [cell * count for count in values.shape]
    page = canvas.Page(f"{model}: {title}", lines, [inches[1], canvas.BAR], [inches[0]])
    for name, draw in strips.items():
        page.add_strip(name, draw)
    axes = page.axes()
    draw_panel(axes, panel)
    strides = []
    for k, (axis, line) in enumerate([(axes.yaxis, axes.axhline), (axes.xaxis, axes.axvline)]):
        cut = [canvas.cut_label(label, max_label) for label in labels[k]]
        strides.append(label_tokens(axis, cut, inches[k]))
        axis.set_label_text(words[k], size=canvas.TITLE)
        if len(tokens[k]) < len(cut):
            line(len(tokens[k]) - 0.5, color=canvas.INK, linewidth=0.8, linestyle="--")
    colour_bar(page.axes(0, 1), colours.norm, colours.palette, inches[0])
    return page.finish([notes[0], *left_out_note(*strides), notes[1]], narrowest=5.2)


# What each component of each layer adds to a score, and each head.


def plot_components(why: Explanation, *, cmap: str = DIVERGING, ax: Axes | None = None) -> Figure:
    """Draw what each layer's components add to the score, as bars, and each head, as a heat map.

    All positions are summed. What passes a layer by its residual connections alone (RES) is not
    drawn; with it, a layer's bars and the biases from that layer on sum to the score. `ax` takes
    the bars into axes of yours.
    """
    canvas.require_matplotlib()
    if ax is not None:
        _draw_bars(ax, why)
        ax.legend(fontsize="small")
        ax.set(title=why.question, xlabel="added to the score", ylabel="layer")
        return canvas.figure_of(ax)

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
    _draw_bars(bars, why)
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
    colour_bar(page.axes(0, 2), colours.norm, colours.palette, row * layers)
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
    own = why.heads.sum(-1, dtype=np.float64)
    names = [str(head) for head in range(own.shape[1])]
    if why.cross_heads is None:
        return own, names
    cross = why.cross_heads.sum(-1, dtype=np.float64)
    gap = np.full((len(own), 1), np.nan)
    return np.hstack([own, gap, cross]), [*names, "", *map(str, range(cross.shape[1]))]


def _draw_bars(axes: Any, why: Explanation) -> None:
    """Bars beside each other in each layer's row, layer 0 on top; biases of the head at the end."""
    layers = len(why.nodes)
    sums = np.nansum(why.components, axis=-1)  # (layer, component)
    groups = {
        name: (canvas.COLOURS[place % 6], np.append(sums[:, place], 0.0))
        for place, name in enumerate(why.component_names)
        if name != RES  # it is most of the score, and would dwarf the others
    }
    biases = np.zeros(layers + 1)
    for layer, _, share in why.biases:
        biases[layers if isinstance(layer, str) else layer] += share
    groups[NO_TOKEN_WORDS] = (NO_TOKEN, biases)
    thick = 0.84 / len(groups)
    for place, (name, (colour, values)) in enumerate(groups.items()):
        at = np.arange(layers + 1) + thick * (place - (len(groups) - 1) / 2)
        axes.barh(at, values, height=thick, color=colour, label=name, linewidth=0)
    axes.axvline(0, color=canvas.INK, linewidth=0.6)
    shown = range(0, layers, max(1, round(layers / 16)))
    names = [name.replace("coder", "c.") for name in why.layer_names]
    axes.set_yticks([*shown, layers], [*(names[layer] for layer in shown), "end"])
    axes.set_ylim(layers + 0.5, -0.5)
    for boundary in range(1, layers + 1):
        axes.axhline(boundary - 0.5, color="#e6e6e6", linewidth=0.4, zorder=0)


# A cosine of two texts: both strips of tokens, and the matrix of their pairs.


def plot_cosine(
    pair: Cosine,
    *,
    colour: str = "sqrt",
    cmap: str = DIVERGING,
    max_label: int = 14,
    ax: Axes | None = None,
) -> Figure:
    """Draw which tokens made a cosine: each text's tokens, and the matrix of their pairs.

    A token's colour in a strip is what it has with all of the other text. The matrix's last row and
    column are what a token has with the other text's biases, and their corner what the biases have
    with each other, so that all cells sum to the cosine. `colour` "sqrt" brings out small parts of
    the matrix; the other choice is "linear". `ax` takes the matrix alone into axes of yours.
    """
    canvas.require_matplotlib()
    values = with_biases(pair)
    texts = {"A": pair.text_a, "B": pair.text_b}
    about = [f"{name}: {line}" for name, text in texts.items() for line in quoted(text)]
    words = ("text A", "text B")
    tokens = pair.tokens_a, pair.tokens_b
    shares = SignedColours(np.concatenate([pair.margins.a, pair.margins.b]), cmap)
    strips = {}
    for word, names, own in zip(words, tokens, (pair.margins.a, pair.margins.b), strict=True):
        strips[word] = partial(draw_strip, names, own, pair.value - float(own.sum()), shares)
    return _draw_matrix(
        values,
        tokens,
        words,
        SignedColours(values, cmap, colour),
        max_label,
        ax,
        model=canvas.model_name(pair),
        title=cosine_words(pair),
        lines=[*about, parts_words(pair)],
        strips=strips,
        notes=(
            "Strips: what a token has of the cosine with all of the other text. Matrix: the pairs "
            f"of tokens, on a {SIGNED_SCALES[colour]} scale; last row and column: with the other "
            "text's biases; all cells sum to the cosine. Red above 0, blue below.",
            canvas.made(pair.provenance, pair.completeness, "parts"),
        ),
    )


def with_biases(pair: Cosine) -> NDArray[np.float64]:
    """The matrix with a row and a column for the biases, which sums to the cosine."""
    return np.block(
        [
            [pair.matrix, pair.a_with_bias[:, None]],
            [pair.b_with_bias[None], np.array([[pair.bias]])],
        ]
    )


# What made each token of a text likely: predicted tokens × source tokens.


def plot_explanations(
    explanations: Explanations,
    *,
    colour: str = "sqrt",
    cmap: str = DIVERGING,
    max_label: int = 14,
    ax: Axes | None = None,
) -> Figure:
    """Draw what each token (columns) contributes to the score of each next token (rows).

    The last column is what no token owns; tokens that come later stay blank. `colour` "sqrt" brings
    out small contributions beside large ones; the other choice is "linear". `ax` takes the matrix
    alone into axes of yours.
    """
    canvas.require_matplotlib()
    first, count = explanations[0], len(explanations.tokens)
    ends = np.array([count if why.read_at is None else why.read_at + 1 for why in explanations])
    contributions = np.asarray(explanations.contributions, dtype=float)
    values = np.ma.masked_where(
        np.append(np.arange(count), -1) >= ends[:, None],
        np.column_stack([contributions, [why.remainder for why in explanations]]),
    )
    words, title, divided = ("predicted token", "source j (input)"), "why each next token", None
    if first.encoder_tokens:
        words = ("generated token", "source, then prefix of the target")
        title = "why each token of the target"
        divided = first.encoder_tokens - 0.5
    colours = SignedColours(values.compressed(), cmap, colour)
    return _draw_matrix(
        values,
        (explanations.predicted, explanations.tokens),
        words,
        colours,
        max_label,
        ax,
        model=canvas.model_name(first),
        title=title,
        lines=canvas.text_lines(first),
        divided=divided,
        notes=(
            "Colour: contribution to the predicted token's score, red above 0, blue below, on "
            f"a {SIGNED_SCALES[colour]} scale; each row sums to the score. Last column: what no "
            "token owns (biases). Blank: tokens that come later.",
            canvas.made(first.provenance, explanations.completeness),
        ),
    )
