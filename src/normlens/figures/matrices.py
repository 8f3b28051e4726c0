"""Matrices of signed numbers: pairs that a scope amplifies, cosines of two texts, next tokens."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError, UnknownScopeError, listed, quoted, valid_choice
from normlens.figures import canvas, heat_maps
from normlens.figures.colours import DIVERGING, SignedColours, colour_bar
from normlens.figures.explanations import draw_strip
from normlens.measures.maps import AXES, Pair, strongest_pairs
from normlens.results.words import (
    by_stack,
    choose_in_stacks,
    cosine_words,
    parts_words,
    signed_number,
)
from normlens.scopes import consecutive, layers_in_words, resolve

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


# Pictures of maps: one layer's scopes, all layers, heads, amplification.


# One layer: its scopes side by side.


def plot_layer(
    maps: Maps,
    layer: int = 0,
    scopes: str | Iterable[str] | None = None,
    *,
    scale: str = "map",
    normalise: str = "none",
    colour: str = "clipped",
    cmap: str = "viridis",
    diagonal: bool = True,
    max_label: int = 14,
    sources: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw the scopes of one layer of the model (negative: from the end) side by side.

    `scale` "map" gives every panel its own colours, "shared" the same to all weights and to all
    norms. `normalise` makes each "source" (column) or "target" (row) sum to 1. `colour` "clipped"
    is a square-root scale that neither i = j nor a few outliers stretch; what is beyond its end has
    a colour of its own (`normlens.figures.colours`). "sqrt" and "linear" end at the largest
    value. Without `diagonal` the pairs i = j are left out, grey. Tokens longer than `max_label`
    characters are cut. Pairs that attention does not allow stay blank. Where the sources are two
    sequences, `sources` shows those of the "encoder" or of the "decoder" alone; the values stay
    what they are. `ax` takes the map of one scope into axes of yours.
    """
    canvas.require_matplotlib()
    how = {"map": "each panel on its own", "shared": "all panels of a kind on the same"}
    valid_choice(scale, tuple(how), "scale")
    chosen = maps.choose([layer], scopes)
    [wanted] = chosen.layers
    view = heat_maps.View(chosen, sources, colour, cmap, diagonal, normalise)
    names = view.scopes(chosen.scopes)
    added = canvas.additions(names)
    items = []
    for scope in names:
        key = canvas.unit(maps, scope, normalise) if scale == "shared" else scope
        items.append((view.values(scope, wanted), scope, added[scope], key))
    panels = view.panels(items)
    if ax is not None:
        if len(names) != 1:
            raise InputError(
                f"one pair of axes takes one map, not {len(names)}; name a scope, such as "
                f"maps.plot(scopes={names[-1]!r}, ax=ax)"
            )
        return view.draw_into(ax, panels[0], max_label)
    unit = canvas.measured(maps, names, normalise)
    what = canvas.stack_words(maps, f"layer {wanted}")
    return heat_maps.heat_maps(
        [heat_maps.Grid(view, _in_rows(panels))], what, unit, how[scale], max_label
    )


def _in_rows(panels: Sequence[heat_maps.Panel]) -> list[Sequence[heat_maps.Panel]]:
    """Rows of at most six panels, equally long but for the last."""
    columns = math.ceil(len(panels) / math.ceil(len(panels) / 6))
    return [panels[k : k + columns] for k in range(0, len(panels), columns)]


# Layers and scopes as small maps.


def plot_overview(
    maps: Maps,
    layers: int | Iterable[int] | None = None,
    scopes: str | Iterable[str] | None = None,
    *,
    scale: str = "map",
    normalise: str = "none",
    colour: str = "clipped",
    cmap: str = "viridis",
    diagonal: bool = True,
    max_label: int = 10,
    sources: str | None = None,
    stack: str | None = None,
) -> Figure:
    """Draw all layers (rows) and scopes (columns) as small maps.

    `scale` "map" gives every map a colour scale of its own, "scope" the same to all layers of a
    scope; above each map stand the end of its scale, where values are beyond it, and the largest.
    Of an encoder–decoder the encoder's layers stand above the decoder's; `stack` shows one of them,
    and `sources` chooses the columns of the decoder's maps. The other options are those of
    `plot_layer`.
    """
    canvas.require_matplotlib()
    how = {"map": "each map on its own", "scope": "all layers of a scope on the same"}
    valid_choice(scale, tuple(how), "scale")
    both = by_stack(choose_in_stacks(maps, layers, scopes, stack))
    grids = []
    for one in both:
        of_sources = sources if one.source_sequences or len(both) == 1 else None
        grids.append(
            _grid(heat_maps.View(one, of_sources, colour, cmap, diagonal, normalise), scale)
        )
    names = list(dict.fromkeys(scope for one in both for scope in one.scopes))
    what = listed([canvas.stack_words(one, layers_in_words(one.layers)) for one in both])
    if len(both) > 1 and both[0].layers == both[1].layers:
        what = f"{listed([one.stack for one in both])} {layers_in_words(both[0].layers)}"
    unit = canvas.measured(both[-1], names, normalise)
    return heat_maps.heat_maps(grids, what, unit, how[scale], max_label)


def _grid(view: heat_maps.View, scale: str) -> heat_maps.Grid:
    """The layers and scopes of one stack."""
    maps = view.whole
    names = view.scopes(maps.scopes)
    added = canvas.additions(names)
    places = [(layer, scope) for scope in names for layer in maps.layers_of(scope)]
    items = []
    for layer, scope in places:
        is_first = layer == maps.layers_of(scope)[0]
        words = (scope, added[scope]) if is_first else ("", "")
        key = (scope, layer) if scale == "map" else scope
        items.append((view.values(scope, layer), *words, key))
    panels = dict(zip(places, view.panels(items, captions=True), strict=True))
    rows = [[panels.get((layer, scope)) for scope in names] for layer in maps.layers]
    return heat_maps.Grid(
        view, rows, [canvas.stack_words(maps, f"layer {layer}") for layer in maps.layers]
    )


# The heads of an attention as small maps.


def plot_heads(
    maps: Maps,
    layer: int | Iterable[int] | None = 0,
    scope: str = "ATTN-N",
    heads: int | Iterable[int] | None = None,
    *,
    scale: str = "map",
    normalise: str = "none",
    colour: str = "clipped",
    cmap: str = "viridis",
    diagonal: bool = True,
    max_label: int = 14,
    sources: str | None = None,
) -> Figure:
    """Draw single heads: ``α^h_ij ‖f^h(x_j)‖``, or of "ATTN-W" the weights ``α^h_ij``.

    The maps must have been computed with ``heads=True``. One layer's heads stand side by side;
    several layers (None: all) are rows of small maps. `heads` (from 0) are all unless they are
    named; an encoder–decoder also has "CROSS-N" and "CROSS-W". `scale` "map" gives each head its
    own colours, "shared" the same to all heads of a layer. The other options are those of
    `plot_layer`.
    """
    canvas.require_matplotlib()
    how = {"map": "each head on its own", "shared": "all heads of a layer on the same"}
    valid_choice(scale, tuple(how), "scale")
    name = head_scope(maps, scope)
    view = heat_maps.View(maps, sources, colour, cmap, diagonal, normalise)
    view.scopes([name])
    layers = _layers(maps, name, layer)
    wanted = _wanted_heads(heads, maps.heads[name].shape[1])
    rows = []
    for each in layers:
        every = maps.heads[name][maps.covered("heads", name).index(each)]  # (h, i, j)
        items = []
        for head in wanted:
            title = f"head {head}" if each == layers[0] else ""
            key = head if scale == "map" else each
            items.append((view.values(name, each, every[head]), title, "", key))
        rows.append(view.panels(items, captions=True))
    unit = canvas.unit(maps, name, normalise)
    if normalise == "none" and name.endswith("-N"):
        unit = "norm of a head's part α_ij ‖f(x_j)‖"
    grid = heat_maps.Grid(view, _in_rows(rows[0]))
    if len(layers) > 1:
        grid = heat_maps.Grid(
            view, rows, [canvas.stack_words(maps, f"layer {each}") for each in layers]
        )
    what = canvas.stack_words(maps, f"{layers_in_words(layers)}, heads of {name}")
    return heat_maps.heat_maps([grid], what, unit, how[scale], max_label)


def head_scope(maps: Maps, scope: str) -> str:
    """The name of a scope whose single heads are at hand."""
    if not maps.heads:
        raise InputError(
            "these maps have no heads; ask for them with lens.maps(text, heads=True) or "
            "normlens map --heads"
        )
    name = scope.strip().upper()
    name = name if name in maps.heads else f"{name}-N"
    if name not in maps.heads:
        listed = ", ".join(maps.heads)
        raise UnknownScopeError(f"no heads of {scope!r}; these maps have heads of {listed}")
    return name


def _layers(maps: Maps, name: str, layer: int | Iterable[int] | None) -> list[int]:
    """The layers that are asked for, all of which must have the heads."""
    covered = maps.covered("heads", name)
    if layer is None:
        return list(covered)
    wanted = maps.wanted_layers(layer)
    if lacking := [each for each in wanted if each not in covered]:
        raise InputError(
            f"no heads of {name} in {layers_in_words(lacking)}; these maps have them in "
            f"{layers_in_words(covered)}"
        )
    return wanted


def _wanted_heads(heads: int | Iterable[int] | None, count: int) -> list[int]:
    """Heads by number, from 0, in the order in which they are asked for."""
    if heads is None:
        return list(range(count))
    wanted = [heads] if isinstance(heads, (int, np.integer)) else list(heads)
    if not wanted:
        raise InputError("no head is chosen; leave `heads` out to take all")
    for head in wanted:
        if head not in range(count):
            raise InputError(f"there is no head {head!r}; this layer has heads 0 to {count - 1}")
    return [int(head) for head in wanted]


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
        maps,
        "similarity of consecutive scopes",
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
    return page.finish([note, *canvas.generated_note(maps)])


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
