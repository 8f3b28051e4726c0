"""Pictures of maps: one layer's scopes, all layers, heads, amplification."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from normlens import measures
from normlens.errors import InputError, UnknownScopeError, listed, valid_choice
from normlens.figures.canvas import (
    additions,
    generated_note,
    measured,
    model_and,
    number,
    require_matplotlib,
    stack_words,
    unit,
)
from normlens.figures.colours import COLOUR_SCALES, ShownColumns, colour_norm, largest
from normlens.figures.heat_maps import (
    Grid,
    Look,
    Panel,
    draw_into,
    heat_maps,
    is_beyond,
    masked,
    only_scope,
    titled,
)
from normlens.measures import strongest_pairs
from normlens.measures.maps import AXES
from normlens.results.words import by_stack, choose_in_stacks
from normlens.scopes import layers_in_words, resolve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps


# One layer: its scopes side by side.


_PANELS_IN_A_ROW = 6


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
    require_matplotlib()
    valid_choice(scale, ("map", "shared"), "scale")
    shown = ShownColumns.of(maps, sources)
    chosen = maps.choose([layer], scopes)
    names = shown.scopes(chosen.scopes)
    values = {scope: shown.cut(array[0]) for scope, array in masked(chosen, normalise).items()}
    look = Look(colour, cmap, diagonal, shown.maps.is_same_token)
    tops = {scope: look.end(values[scope]) for scope in names}
    if scale == "shared":
        units = {scope: unit(maps, scope, normalise) for scope in names}
        tops = {s: max(tops[t] for t in names if units[t] == units[s]) for s in names}
    if ax is not None:
        scope = only_scope(names)
        norm = colour_norm(colour, tops[scope])
        drawn = look.shown(values[scope])
        return draw_into(ax, drawn, shown, norm, cmap, titled(maps, scope), max_label)
    rows = 1 if len(names) <= _PANELS_IN_A_ROW else 2
    columns = math.ceil(len(names) / rows)
    added = additions(names)
    panels = [
        look.panel(values[scope], tops[scope], scope, added[scope], divided=shown.divided)
        for scope in names
    ]
    n = max(len(maps.targets), len(shown.maps.sources))
    smallest = {1: 3.0, 2: 2.4}.get(columns, 1.9)
    how = "each panel on its own" if scale == "map" else "all panels of a kind on the same"
    what = measured(maps, names, normalise)
    return heat_maps(
        [Grid(shown.maps, [panels[k : k + columns] for k in range(0, len(panels), columns)])],
        side=min(max(0.1 * n, smallest), max(smallest, 3.8)),
        heading=model_and(maps, stack_words(maps, f"layer {chosen.layers[0]}")),
        notes=[
            f"Colour: {what}; {how} {COLOUR_SCALES[colour]} scale.",
            *look.notes(panels),
            *shown.blank_note,
            *generated_note(maps),
        ],
        max_label=max_label,
    )


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
    require_matplotlib()
    valid_choice(scale, ("map", "scope"), "scale")
    both = by_stack(choose_in_stacks(maps, layers, scopes, stack))
    shown = [
        ShownColumns.of(one, sources if one.source_sequences or len(both) == 1 else None)
        for one in both
    ]
    looks = [Look(colour, cmap, diagonal, columns.maps.is_same_token) for columns in shown]
    grids = [
        _grid(*of_stack, scale, normalise) for of_stack in zip(both, shown, looks, strict=True)
    ]
    panels = [panel for grid in grids for row in grid.rows for panel in row if panel is not None]
    names = list(dict.fromkeys(scope for one in both for scope in one.scopes))
    n = max(max(len(each.maps.targets), len(each.maps.sources)) for each in shown)
    rows = sum(len(grid.rows) for grid in grids)
    lacking = any(one.coverage for one in both)
    whose = "its map's" if scale == "map" else "its scope's (over the layers shown)"
    share = f"{whose} largest value on a {COLOUR_SCALES[colour]} scale"
    if colour == "clipped":
        share = f"the end of {whose} {COLOUR_SCALES[colour]} scale"
    heading = listed([stack_words(one, layers_in_words(one.layers)) for one in both])
    if len(both) > 1 and both[0].layers == both[1].layers:
        heading = f"{listed([one.stack for one in both])} {layers_in_words(both[0].layers)}"
    return heat_maps(
        grids,
        side=min(max(0.1 * n, 1.15), 1.9, max(1.15, 40 / rows)),  # at most about a metre
        heading=model_and(both[-1], heading),
        notes=[
            f"Colour: {measured(both[-1], names, normalise)}, as a share of {share}; the largest "
            "value stands above each map.",
            *looks[-1].notes(panels),
            *(["A layer without a map has other components."] if lacking else []),
            *shown[-1].blank_note,
            *generated_note(both[-1]),
        ],
        max_label=max_label,
        bar=(
            "share of the end" if colour == "clipped" else "share of the largest value",
            colour_norm(colour, 1.0),
        ),
    )


def _grid(maps: Maps, shown: ShownColumns, look: Look, scale: str, normalise: str) -> Grid:
    """The layers and scopes of one stack."""
    names = shown.scopes(maps.scopes)
    values = {scope: shown.cut(array) for scope, array in masked(maps, normalise).items()}
    ends = {scope: [look.end(of_layer) for of_layer in values[scope]] for scope in names}
    added = additions(names)

    def panel(layer: int, scope: str) -> Panel | None:
        layers = maps.layers_of(scope)
        if layer not in layers:
            return None
        place = layers.index(layer)
        end = ends[scope][place] if scale == "map" else max(ends[scope])
        words = (scope, added[scope]) if layer == layers[0] else ("", "")
        drawn = look.panel(values[scope][place], end, *words, divided=shown.divided)
        return replace(drawn, caption=_caption(drawn, end))

    rows = [[panel(layer, scope) for scope in names] for layer in maps.layers]
    labels = [stack_words(maps, f"layer {layer}") for layer in maps.layers]
    return Grid(shown.maps, rows, labels)


def _caption(panel: Panel, end: float) -> str:
    """The end of a scale, where something lies beyond it, and the largest value."""
    most = f"max {number(largest(panel.values))}"
    return f"end {number(end)}, {most}" if is_beyond(panel) else most


# The heads of an attention as small maps.


_IN_A_ROW = 6  # heads of one layer


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
    require_matplotlib()
    valid_choice(scale, ("map", "shared"), "scale")
    name = head_scope(maps, scope)
    shown = ShownColumns.of(maps, sources)
    shown.scopes([name])
    look = Look(colour, cmap, diagonal, shown.maps.is_same_token)
    layers = _layers(maps, name, layer)
    rows = [_panels(maps, name, each, heads, look, shown, scale, normalise) for each in layers]
    flat = [panel for row in rows for panel in row]
    n = max(len(maps.targets), len(shown.maps.sources))
    several = len(layers) > 1
    whose = "each head on its own" if scale == "map" else "all heads of a layer on the same"
    what = unit(maps, name, normalise)
    if normalise == "none" and name.endswith("-N"):
        what = "norm of a head's part α_ij ‖f(x_j)‖"
    notes = [
        f"Colour: {what}; {whose} {COLOUR_SCALES[colour]} scale.",
        *look.notes(flat),
        *shown.blank_note,
        *generated_note(maps),
    ]
    title = f"{layers_in_words(layers)}, heads of {name}"
    heading = model_and(maps, stack_words(maps, title))
    if several:
        labels = [stack_words(maps, f"layer {each}") for each in layers]
        small = [
            [panel if k == 0 else replace(panel, title="") for panel in row]
            for k, row in enumerate(rows)
        ]
        return heat_maps(
            [Grid(shown.maps, small, labels)],
            side=min(max(0.1 * n, 1.15), 1.9, max(1.15, 40 / len(rows))),
            heading=heading,
            notes=[*notes, "The bar is a share of each scale's end; above a map: its largest."],
            max_label=max_label,
            bar=("share of the end", colour_norm(colour, 1.0)),
        )
    in_a_row = math.ceil(len(flat) / math.ceil(len(flat) / _IN_A_ROW))
    return heat_maps(
        [Grid(shown.maps, [flat[k : k + in_a_row] for k in range(0, len(flat), in_a_row)])],
        side=min(max(0.1 * n, {1: 3.0, 2: 2.4}.get(in_a_row, 1.7)), 3.0),
        heading=heading,
        notes=notes,
        max_label=max_label,
    )


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


def _panels(
    maps: Maps,
    name: str,
    layer: int,
    heads: int | Iterable[int] | None,
    look: Look,
    shown: ShownColumns,
    scale: str,
    normalise: str,
) -> list[Panel]:
    """The heads of one layer."""
    every = maps.heads[name][maps.covered("heads", name).index(layer)]  # (h, i, j)
    wanted = _wanted_heads(heads, len(every))
    blank = ~maps.pairs_of(name)[maps.layers.index(layer)]
    values = [
        shown.cut(np.ma.masked_where(blank, measures.normalise(every[head], normalise)))
        for head in wanted
    ]
    ends = [look.end(each) for each in values]
    if scale == "shared":
        ends = [max(ends)] * len(ends)
    return [
        look.panel(
            each,
            end,
            f"head {head}",
            "",
            caption=f"max {number(largest(each))}",
            divided=shown.divided,
        )
        for head, each, end in zip(wanted, values, ends, strict=True)
    ]


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


# The map of the pairs that one scope strengthens and weakens compared with another.


_NORMALISED = {
    "source": "both maps scaled so that each column (one source) sums to 1",
    "target": "both maps scaled so that each row (one target) sums to 1",
    "none": "both maps as they are",
}


def plot_amplification(
    maps: Maps,
    before: str,
    after: str,
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
    (section 5). The `top` strongest pairs of either sign are marked and listed. The pairs i = j are
    never ranked, as in the paper, and shown only with `diagonal`: they would outshine the others.
    `sources` shows the pairs with sources of the "encoder" or the "decoder" alone. `ax` takes the
    map alone into axes of yours.
    """
    require_matplotlib()
    valid_choice(axis, AXES, "axis")
    from matplotlib.colors import Normalize

    first, last = (resolve(scope, maps.scopes) for scope in (before, after))
    shown = ShownColumns.of(maps, sources)
    shown.scopes([last])
    chosen = maps.choose([layer], [first, last])
    difference = shown.cut(chosen.amplification(first, last, axis)[0])
    allowed = shown.cut(chosen.pairs_of(first, last)[0])
    same_token = shown.maps.is_same_token
    left_out = same_token & (not diagonal)
    values = np.ma.masked_where(~allowed | left_out, difference)
    limit = largest(np.ma.abs(values))
    if ax is not None:
        norm, title = Normalize(-limit, limit), f"{last} − {first}"
        return draw_into(ax, values, shown, norm, cmap, titled(maps, title), max_label)
    panel = Panel(
        values,
        f"{last} − {first}",
        "",
        Normalize(-limit, limit),
        cmap,
        grey=left_out,
        divided=shown.divided,
    )
    return heat_maps(
        [Grid(shown.maps, [[panel]])],
        side=min(max(0.12 * max(left_out.shape), 3.2), 5.2),
        heading=model_and(maps, stack_words(maps, f"layer {chosen.layers[0]}")),
        notes=[
            f"Colour: {last} minus {first}, {_NORMALISED[axis]}."
            + (" Grey: i = j, left out." if left_out.any() else ""),
            *shown.blank_note,
            *generated_note(maps),
        ],
        max_label=max_label,
        pairs=strongest_pairs(difference, allowed, top, same_token),
    )
