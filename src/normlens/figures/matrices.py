"""Matrices of signed numbers: pairs that a scope amplifies, cosines of two texts, next tokens."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import quoted, valid_choice
from normlens.figures import canvas
from normlens.figures.colours import DIVERGING, SIGNED_SCALES, SignedColours, colour_bar
from normlens.figures.explanations import draw_strip
from normlens.figures.heat_maps import (
    Panel,
    View,
    draw_into,
    draw_panel,
    label_tokens,
    left_out_note,
)
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
    panel: Panel,
    colours: SignedColours,
    tokens: tuple[Sequence[str], Sequence[str]],
    words: tuple[str, str],  # what rows and columns are
    max_label: int,
    ax: Axes | None = None,
    *,
    result: Maps | Explanation | Cosine,
    what: str,
    lines: Sequence[str] = (),
    notes: Sequence[str],
    strips: Sequence[Callable[[Any, float], float]] = (),
    marked: Mapping[str, Pair] = MappingProxyType({}),
    listing: str = "",
) -> Figure:
    """Draw a heat map between tokens; rows and columns behind the last token are of no token.

    Pairs are `marked`, and listed beside it.
    """
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    shape = panel.values.shape
    labels = [
        [*canvas.cut_labels(names, max_label), *["no token"] * (count - len(names))]
        for names, count in zip(tokens, shape, strict=True)
    ]
    if ax is not None:
        return draw_into(ax, panel, labels, words)
    # Cells are square, and as large as a page allows; beside a list the whole matrix is.
    largest, most = (0.45, 5.2) if listing else (0.34, 30)
    cell = min(max(0.09, 4.2 / max(shape)), largest, most / max(shape))
    height, width = (cell * count for count in shape)
    widths = [width, canvas.BAR]
    if listing:
        height = width = max(height, width, 0.165 * len(listing.splitlines()))
        widths = [width, canvas.BAR, 0.01]  # a list is as wide as it must be
    page = canvas.Page(result, what, widths, [height], lines)
    for draw in strips:
        page.add_strip(draw)
    axes = page.axes()
    draw_panel(axes, panel)
    strides = (
        label_tokens(axes.yaxis, labels[0], height),
        label_tokens(axes.xaxis, labels[1], width),
    )
    axes.set_ylabel(words[0], size=canvas.TITLE)
    axes.set_xlabel(words[1], size=canvas.TITLE)
    for names, count, line in zip(tokens, shape, (axes.axhline, axes.axvline), strict=True):
        if len(names) < count:
            line(len(names) - 0.5, color=canvas.INK, linewidth=0.8, linestyle="--")
    colour_bar(page.axes(0, 1), panel.norm, panel.cmap, height)
    if listing:
        small = 72 * cell < 5  # a mark does not fit into its cell, and stands beside it
        style: dict[str, Any] = {"ha": "center", "va": "center_baseline"}
        style["size"] = canvas.NOTE if small else min(canvas.LARGEST_TICK, 0.7 * 72 * cell)
        style["xytext"] = (5, 5) if small else (0, 0)
        halo = [withStroke(linewidth=1.5, foreground="white")] if small else []
        for mark, (i, j, value) in marked.items():
            corner = (j - 0.5, i - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=canvas.INK, linewidth=0.8))
            text = axes.annotate(mark, (j, i), textcoords="offset points", **style)
            text.set(color=canvas.INK if small else colours.ink(value), path_effects=halo)
        free = page.axes(0, 2)
        free.set(xticks=[], yticks=[])
        free.axis("off")
        free.text(0, 1, listing, size=canvas.LARGEST_TICK, va="top", linespacing=1.5)
    return page.finish([*notes, *left_out_note(*strides)], narrowest=5.2)


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
    view = View(chosen, sources, "linear", cmap, diagonal)
    view.scopes([last])
    difference = chosen.amplification(first, last, axis)[0][:, view.places]
    allowed = chosen.pairs_of(first, last)[0][:, view.places]
    left_out = view.same_token & (not diagonal)
    values = np.ma.masked_where(~allowed | left_out, difference)
    colours = SignedColours(values.compressed(), cmap)
    title = f"{last} − {first}"
    panel = Panel(values, colours.norm, cmap, title, grey=left_out, divided=view.divided)
    if ax is not None:
        return view.draw_into(ax, panel, max_label)
    marked, listing = _strongest(view, max_label, difference, allowed, top)
    grey = " Grey: i = j, left out." if left_out.any() else ""
    where = canvas.stack_words(maps, f"layer {chosen.layers[0]}")
    return _draw_matrix(
        panel,
        colours,
        (view.maps.tokens, view.maps.source_tokens),
        view.axis_words,
        max_label,
        result=maps,
        what=where,
        lines=[title],
        notes=[
            f"Colour: {last} minus {first}, {_NORMALISED[axis]}.{grey}",
            *view.sequence_notes,
        ],
        marked=marked,
        listing=listing,
    )


def _strongest(
    view: View, max_label: int, difference: NDArray[Any], allowed: NDArray[np.bool_], top: int
) -> tuple[dict[str, Pair], str]:
    """The most strengthened pairs (by number) and most weakened ones (by letter), and a list."""
    targets, sources = view.labels(max_label)
    if view.maps.stack and view.divided is not None:
        whose = zip(sources, view.maps.source_sequences, strict=True)
        sources = [f"{label} ({sequence})" for label, sequence in whose]
    ranked = strongest_pairs(difference, allowed, top, view.same_token)
    marked, groups = {}, []
    for (title, marks), pairs in zip(_MARKS.items(), ranked, strict=True):
        lines = [f"{title} (source → target)"]
        for mark, pair in zip(marks, pairs, strict=False):
            marked[str(mark)] = pair
            words = f"{sources[pair.source]} → {targets[pair.target]}"
            lines.append(f"{mark}   {signed_number(pair.value, 3)}   {words}")
        groups.append("\n".join(lines if pairs else [*lines, "none"]))
    return marked, "\n\n".join(groups)


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
    colours = SignedColours(values, cmap, colour)
    title = cosine_words(pair)
    texts = {"A": pair.text_a, "B": pair.text_b}
    about = [f"{name}: {line}" for name, text in texts.items() for line in quoted(text)]
    words = ("text A", "text B")
    tokens, margins = (pair.tokens_a, pair.tokens_b), (pair.margins.a, pair.margins.b)
    shares = SignedColours(np.concatenate(margins), cmap)
    return _draw_matrix(
        Panel(values, colours.norm, cmap, title),
        colours,
        tokens,
        words,
        max_label,
        ax,
        result=pair,
        what=title,
        lines=[*about, parts_words(pair)],
        strips=[
            partial(draw_strip, word, names, own, pair.value - float(own.sum()), shares)
            for word, names, own in zip(words, tokens, margins, strict=True)
        ],
        notes=[
            "Strips: what a token has of the cosine with all of the other text. Matrix: the pairs "
            f"of tokens, on a {SIGNED_SCALES[colour]} scale; last row and column: with the other "
            "text's biases; all cells sum to the cosine. Red above 0, blue below."
        ],
    )


def with_biases(pair: Cosine) -> NDArray[np.float64]:
    """The matrix with a row and a column for the biases, which sums to the cosine."""
    with_bias_of_b = np.column_stack([pair.matrix, pair.a_with_bias])
    return np.vstack([with_bias_of_b, np.append(pair.b_with_bias, pair.bias)])


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
        Panel(values, colours.norm, cmap, title, divided=divided),
        colours,
        (explanations.predicted, explanations.tokens),
        words,
        max_label,
        ax,
        result=replace(first, completeness=explanations.completeness),
        what=title,
        notes=[
            "Colour: contribution to the predicted token's score, red above 0, blue below, on "
            f"a {SIGNED_SCALES[colour]} scale; each row sums to the score. Last column: what no "
            "token owns (biases). Blank: tokens that come later."
        ],
    )
