"""Pictures of maps: one layer's scopes, all layers, heads, amplification."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from normlens.errors import InputError, UnknownScopeError, listed, valid_choice
from normlens.figures import canvas
from normlens.figures.colours import COLOUR_SCALES, colour_norm, largest
from normlens.figures.heat_maps import Grid, Panel, View, heat_maps
from normlens.measures.maps import AXES, strongest_pairs
from normlens.results.words import by_stack, choose_in_stacks
from normlens.scopes import layers_in_words, resolve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps


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
    valid_choice(scale, ("map", "shared"), "scale")
    chosen = maps.choose([layer], scopes)
    [wanted] = chosen.layers
    view = View(chosen, sources, colour, cmap, diagonal, normalise)
    names = view.scopes(chosen.scopes)
    added = canvas.additions(names)
    panels = view.panels(
        [
            (
                view.values(scope, wanted),
                scope,
                added[scope],
                canvas.unit(maps, scope, normalise) if scale == "shared" else scope,
            )
            for scope in names
        ]
    )
    if ax is not None:
        if len(names) != 1:
            raise InputError(
                f"one pair of axes takes one map, not {len(names)}; name a scope, such as "
                f"maps.plot(scopes={names[-1]!r}, ax=ax)"
            )
        return view.draw_into(ax, panels[0], max_label)
    how = "each panel on its own" if scale == "map" else "all panels of a kind on the same"
    what = canvas.measured(maps, names, normalise)
    rows = _in_rows(panels)
    smallest = {1: 3.0, 2: 2.4}.get(len(rows[0]), 1.9)
    return heat_maps(
        [Grid(view, rows)],
        side=min(max(0.1 * view.longest, smallest), 3.8),
        heading=canvas.model_and(maps, canvas.stack_words(maps, f"layer {wanted}")),
        notes=[
            f"Colour: {what}; {how} {COLOUR_SCALES[colour]} scale.",
            *view.notes(panels),
        ],
        max_label=max_label,
    )


def _in_rows(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
    """Rows of at most six panels, equally long but for the last."""
    columns = math.ceil(len(panels) / math.ceil(len(panels) / 6))
    return [panels[k : k + columns] for k in range(0, len(panels), columns)]


def _small_side(longest: int, rows: int) -> float:
    """The side of a small map in inches; the page stays below about a metre."""
    return min(max(0.1 * longest, 1.15), 1.9, max(1.15, 40 / rows))


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
    valid_choice(scale, ("map", "scope"), "scale")
    both = by_stack(choose_in_stacks(maps, layers, scopes, stack))
    views = [
        View(
            one,
            sources if one.source_sequences or len(both) == 1 else None,
            colour,
            cmap,
            diagonal,
            normalise,
        )
        for one in both
    ]
    grids = [_grid(view, scale) for view in views]
    panels = [panel for grid in grids for row in grid.rows for panel in row if panel is not None]
    names = list(dict.fromkeys(scope for one in both for scope in one.scopes))
    whose = "its map's" if scale == "map" else "its scope's (over the layers shown)"
    share = f"{whose} largest value on a {COLOUR_SCALES[colour]} scale"
    if colour == "clipped":
        share = f"the end of {whose} {COLOUR_SCALES[colour]} scale"
    heading = listed([canvas.stack_words(one, layers_in_words(one.layers)) for one in both])
    if len(both) > 1 and both[0].layers == both[1].layers:
        heading = f"{listed([one.stack for one in both])} {layers_in_words(both[0].layers)}"
    lacking = any(one.coverage for one in both)
    return heat_maps(
        grids,
        side=_small_side(
            max(view.longest for view in views), sum(len(grid.rows) for grid in grids)
        ),
        heading=canvas.model_and(both[-1], heading),
        notes=[
            f"Colour: {canvas.measured(both[-1], names, normalise)}, as a share of {share}; the "
            "largest value stands above each map.",
            *(["A layer without a map has other components."] if lacking else []),
            *views[-1].notes(panels),
        ],
        max_label=max_label,
        bar=(
            "share of the end" if colour == "clipped" else "share of the largest value",
            colour_norm(colour, 1.0),
        ),
    )


def _grid(view: View, scale: str) -> Grid:
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
    return Grid(view, rows, [canvas.stack_words(maps, f"layer {layer}") for layer in maps.layers])


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
    valid_choice(scale, ("map", "shared"), "scale")
    name = head_scope(maps, scope)
    view = View(maps, sources, colour, cmap, diagonal, normalise)
    view.scopes([name])
    layers = _layers(maps, name, layer)
    wanted = _wanted_heads(heads, maps.heads[name].shape[1])
    several = len(layers) > 1
    rows = []
    for each in layers:
        every = maps.heads[name][maps.covered("heads", name).index(each)]  # (h, i, j)
        items = []
        for head in wanted:
            title = f"head {head}" if each == layers[0] else ""
            key = head if scale == "map" else each
            items.append((view.values(name, each, every[head]), title, "", key))
        rows.append(view.panels(items, captions=True))
    panels = [panel for row in rows for panel in row]
    whose = "each head on its own" if scale == "map" else "all heads of a layer on the same"
    what = canvas.unit(maps, name, normalise)
    if normalise == "none" and name.endswith("-N"):
        what = "norm of a head's part α_ij ‖f(x_j)‖"
    notes = [
        f"Colour: {what}; {whose} {COLOUR_SCALES[colour]} scale.",
        *view.notes(panels),
        *(["The bar is a share of each scale's end; above a map: its largest."] if several else []),
    ]
    labels = [canvas.stack_words(maps, f"layer {each}") for each in layers]
    grid = Grid(view, rows, labels) if several else Grid(view, _in_rows(panels))
    smallest = {1: 3.0, 2: 2.4}.get(len(grid.rows[0]), 1.7)
    return heat_maps(
        [grid],
        side=_small_side(view.longest, len(rows))
        if several
        else min(max(0.1 * view.longest, smallest), 3.0),
        heading=canvas.model_and(
            maps, canvas.stack_words(maps, f"{layers_in_words(layers)}, heads of {name}")
        ),
        notes=notes,
        max_label=max_label,
        bar=("share of the end", colour_norm(colour, 1.0)) if several else None,
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
    from matplotlib.colors import Normalize

    first, last = (resolve(scope, maps.scopes) for scope in (before, after))
    chosen = maps.choose([layer], [first, last])
    view = View(chosen, sources, "linear", cmap, diagonal)
    view.scopes([last])
    difference = chosen.amplification(first, last, axis)[0][:, view.places]
    allowed = chosen.pairs_of(first, last)[0][:, view.places]
    left_out = view.same_token & (not diagonal)
    values = np.ma.masked_where(~allowed | left_out, difference)
    limit = largest(np.ma.abs(values))
    norm = Normalize(-limit, limit)
    title = f"{last} − {first}"
    panel = Panel(values, norm, cmap, title, grey=left_out, divided=view.divided)
    if ax is not None:
        return view.draw_into(ax, panel, max_label)
    grey = " Grey: i = j, left out." if left_out.any() else ""
    return heat_maps(
        [Grid(view, [[panel]])],
        side=min(max(0.12 * view.longest, 3.2), 5.2),
        heading=canvas.model_and(maps, canvas.stack_words(maps, f"layer {chosen.layers[0]}")),
        notes=[
            f"Colour: {last} minus {first}, {_NORMALISED[axis]}.{grey}",
            *view.sequence_notes,
        ],
        max_label=max_label,
        pairs=strongest_pairs(difference, allowed, top, view.same_token),
    )
