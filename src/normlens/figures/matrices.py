"""Matrices of signed numbers: pairs that a scope amplifies, cosines of two texts, next tokens."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, quoted, valid_choice
from normlens.figures import canvas, heat_maps
from normlens.figures.colours import DIVERGING, SignedColours, colour_bar
from normlens.figures.explanations import draw_strip
from normlens.measures.maps import AXES, Pair, strongest_pairs
from normlens.results.words import cosine_words, parts_words, signed_number
from normlens.scopes import resolve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.explanation import Cosine, Explanation, Explanations
    from normlens.results.maps import Maps


# A matrix of signed numbers between two lists of tokens, with a colour bar.


def _draw_matrix(
    page: canvas.Page,
    panel: heat_maps.Panel,
    labels: Sequence[Sequence[str]],
    words: tuple[str, str],
) -> tuple[Any, list[str]]:
    """Draw a heat map with labels and a colour bar on a page; return its axes, and a note.

    `words` say what rows and columns are.
    """
    axes = page.axes()
    heat_maps.draw_panel(axes, panel)
    strides = (
        heat_maps.label_tokens(axes.yaxis, labels[0], page.heights[0]),
        heat_maps.label_tokens(axes.xaxis, labels[1], page.widths[0]),
    )
    axes.set_ylabel(words[0], size=canvas.TITLE)
    axes.set_xlabel(words[1], size=canvas.TITLE)
    colour_bar(page.axes(0, 1), panel.norm, panel.cmap, page.heights[0])
    return axes, heat_maps.left_out_note(*strides)


def _plot_matrix(
    result: Explanation | Cosine,
    panel: heat_maps.Panel,
    tokens: tuple[Sequence[str], Sequence[str]],
    words: tuple[str, str],
    max_label: int,
    ax: Axes | None,
    note: str,
    lines: Sequence[str] = (),
    strips: Sequence[Callable[[Any, float], float]] = (),
) -> Figure:
    """Draw a matrix on a page of its own; what is behind the last token is of no token."""
    shape = panel.values.shape
    labels = [
        [*canvas.cut_labels(names, max_label), *["no token"] * (count - len(names))]
        for names, count in zip(tokens, shape, strict=True)
    ]
    if ax is not None:
        return heat_maps.draw_into(ax, panel, labels, words)
    # Cells are square, and as large as a page allows.
    cell = min(max(0.09, 4.2 / max(shape)), 0.34, 30 / max(shape))
    height, width = (cell * count for count in shape)
    page = canvas.Page(result, panel.title, [width, canvas.BAR], [height], lines)
    for draw in strips:
        page.add_strip(draw)
    axes, notes = _draw_matrix(page, panel, labels, words)
    for names, count, line in zip(tokens, shape, (axes.axhline, axes.axvline), strict=True):
        if len(names) < count:
            line(len(names) - 0.5, color=canvas.INK, linewidth=0.8, linestyle="--")
    return page.finish([note, *notes], narrowest=5.2)


# The pairs that one scope strengthens and weakens compared with another.


_NORMALISED = {
    "source": "both maps scaled so that each column (one source) sums to 1",
    "target": "both maps scaled so that each row (one target) sums to 1",
    "none": "both maps as they are",
}
#: The strongest pairs have marks in the heat map, and are spelled out beside it.
_MARKS = {"most strengthened": range(1, 100), "most weakened": string.ascii_lowercase}


def plot_amplification(
    maps: Maps,
    before: str | None = None,
    after: str | None = None,
    layer: int = 0,
    *,
    axis: str = "source",
    top: int = 5,
    diagonal: bool = False,
    cmap: str = "RdBu_r",
    max_label: int = 14,
    sources: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw what `after` strengthens (red) and weakens (blue) compared with `before`, in one layer.

    ``after − before``, both normalised along `axis` first; FF-amp of Kobayashi et al. 2024
    (section 5). By default they are the scopes around the feed-forward block. The `top` strongest
    pairs of either sign are marked and listed. The pairs i = j are never ranked, as in the paper,
    and shown only with `diagonal`: they would outshine the others. `sources` shows the pairs with
    sources of the "encoder" or the "decoder" alone. `ax` takes the map alone into axes of yours.
    """
    canvas.require_matplotlib()
    valid_choice(axis, AXES, "axis")
    if before is None or after is None:
        before, after = maps.feed_forward_pair()
    first, last = (resolve(scope, maps.scopes) for scope in (before, after))
    chosen = maps.choose([layer], [first, last])
    view = heat_maps.View(chosen, sources, "linear", cmap, diagonal)
    view.scopes([last])
    difference = chosen.amplification(first, last, axis)[0][:, view.places]
    allowed = chosen.pairs_of(first, last)[0][:, view.places]
    left_out = view.same_token & (not diagonal)
    values = np.ma.masked_where(~allowed | left_out, difference)
    colours = SignedColours(values.compressed(), cmap, "linear")
    title = f"{last} − {first}"
    panel = heat_maps.Panel(values, colours.norm, cmap, title, grey=left_out, divided=view.divided)
    if ax is not None:
        return view.draw_into(ax, panel, max_label)
    ranked = strongest_pairs(difference, allowed, top, view.same_token)
    longest = max(values.shape)
    cell = min(max(0.09, 4.2 / longest), 0.45, 5.2 / longest)  # inches
    side = max(cell * longest, 0.165 * (5 + sum(map(len, ranked))))  # as high as the list
    where = canvas.stack_words(maps, f"layer {chosen.layers[0]}")
    page = canvas.Page(maps, where, [side, canvas.BAR, 0.01], [side], [title])
    labels = view.labels(max_label)
    axes, notes = _draw_matrix(page, panel, labels, view.axis_words)
    listing = _mark_pairs(axes, ranked, view, labels, colours, 72 * cell)
    beside = page.axes(0, 2)  # which is as wide as it must be
    beside.set(xticks=[], yticks=[])
    beside.axis("off")
    beside.text(0, 1, listing, size=canvas.LARGEST_TICK, va="top", linespacing=1.5)
    grey = " Grey: i = j, left out." if left_out.any() else ""
    colour = f"Colour: {last} minus {first}, {_NORMALISED[axis]}.{grey}"
    return page.finish([colour, *view.sequence_notes, *notes], narrowest=5.2)


def _mark_pairs(
    axes: Any,
    ranked: tuple[list[Pair], list[Pair]],
    view: heat_maps.View,
    labels: list[list[str]],
    colours: SignedColours,
    cell: float,
) -> str:
    """Frame the most strengthened and most weakened pairs, and list them by their marks.

    A mark stands in its cell, or beside one that is too small for it; `cell` is in points.
    """
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    targets, sources = labels
    if view.maps.stack and view.divided is not None:
        whose = zip(sources, view.maps.source_sequences, strict=True)
        sources = [f"{label} ({sequence})" for label, sequence in whose]
    small = cell < 5
    style: dict[str, Any] = {"ha": "center", "va": "center_baseline"}
    style["size"] = canvas.NOTE if small else min(canvas.LARGEST_TICK, 0.7 * cell)
    style["xytext"] = (5, 5) if small else (0, 0)
    halo = [withStroke(linewidth=1.5, foreground="white")] if small else []
    frame: dict[str, Any] = {"fill": False, "edgecolor": canvas.INK, "linewidth": 0.8}
    groups = []
    for (title, marks), pairs in zip(_MARKS.items(), ranked, strict=True):
        lines = [] if pairs else ["none"]
        for mark, (i, j, value) in zip(marks, pairs, strict=False):
            axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, **frame))
            text = axes.annotate(str(mark), (j, i), textcoords="offset points", **style)
            text.set(color=canvas.INK if small else colours.ink(value), path_effects=halo)
            lines.append(f"{mark}   {signed_number(value, 3)}   {sources[j]} → {targets[i]}")
        groups.append("\n".join([f"{title} (source → target)", *lines]))
    return "\n\n".join(groups)


# A cosine of two texts: both strips of tokens, and the matrix of their pairs.


def plot_cosine(
    pair: Cosine,
    *,
    colour: str = "clipped",
    cmap: str = DIVERGING,
    max_label: int = 14,
    ax: Axes | None = None,
) -> Figure:
    """Draw which tokens made a cosine: each text's tokens, and the matrix of their pairs.

    A token's colour in a strip is what it has with all of the other text. The matrix's last row and
    column are what a token has with the other text's biases, and their corner what the biases have
    with each other, so that all cells sum to the cosine. `colour` is "clipped", "sqrt" or "linear",
    as of maps. `ax` takes the matrix alone into axes of yours.
    """
    canvas.require_matplotlib()
    values = with_biases(pair)
    colours = SignedColours(values, cmap, colour)
    kind = getattr(pair, "kind", None)  # a score of a query and a document is such a pair, too
    if not getattr(pair, "has_pairs", True):
        raise InputError(f"a {kind}'s score has no pairs to draw; to_html(…) shows its tokens")
    texts = {"A" if kind is None else "Query": pair.text_a}
    texts |= {"B" if kind is None else "Document": pair.text_b}
    about = [f"{name}: {line}" for name, text in texts.items() for line in quoted(text)]
    words = ("text A", "text B") if kind is None else ("query", "document")
    tokens, margins = (pair.tokens_a, pair.tokens_b), (pair.margins.a, pair.margins.b)
    shares = SignedColours(np.concatenate(margins), cmap)
    strips = [
        partial(draw_strip, word, names, own, pair.value - float(own.sum()), shares)
        for word, names, own in zip(words, tokens, margins, strict=True)
    ]
    what = "cosine" if kind is None else "score"
    note = (
        f"Strips: what a token has of the {what} with all of the other text. Matrix: the pairs "
        f"of tokens, on a {colours.words}; last row and column: with the other text's biases; "
        "all cells sum to the cosine. Red above 0, blue below."
    )
    panel = heat_maps.Panel(values, colours.norm, cmap, cosine_words(pair))
    lines = [*about, parts_words(pair)]
    return _plot_matrix(pair, panel, tokens, words, max_label, ax, note, lines, strips)


def with_biases(pair: Cosine) -> NDArray[np.float64]:
    """The matrix with a row and a column for the biases, which sums to the cosine."""
    with_bias_of_b = np.column_stack([pair.matrix, pair.a_with_bias])
    return np.vstack([with_bias_of_b, np.append(pair.b_with_bias, pair.bias)])


# What made each token of a text likely: predicted tokens × source tokens.


def plot_explanations(
    explanations: Explanations,
    *,
    colour: str = "clipped",
    cmap: str = DIVERGING,
    max_label: int = 14,
    ax: Axes | None = None,
) -> Figure:
    """Draw what each token (columns) contributes to the score of each next token (rows).

    The last column is what no token owns; tokens that come later stay blank. `colour` is
    "clipped", "sqrt" or "linear", as of maps. `ax` takes the matrix
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
    panel = heat_maps.Panel(values, colours.norm, cmap, title, divided=divided)
    tokens = explanations.predicted, explanations.tokens
    note = (
        "Colour: contribution to the predicted token's score, red above 0, blue below, on "
        f"a {colours.words}; each row sums to the score. Last column: what no "
        "token owns (biases). Blank: tokens that come later."
    )
    result = replace(first, completeness=explanations.completeness)
    return _plot_matrix(result, panel, tokens, words, max_label, ax, note)
