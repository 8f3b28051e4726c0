"""Pictures of maps: one layer's scopes, all layers, heads, amplification."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from normlens.errors import InputError, UnknownScopeError, listed, valid_choice
from normlens.figures import canvas
from normlens.figures.heat_maps import Grid, Panel, View, heat_maps
from normlens.results.words import by_stack, choose_in_stacks
from normlens.scopes import consecutive, layers_in_words

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
    how = {"map": "each panel on its own", "shared": "all panels of a kind on the same"}
    valid_choice(scale, tuple(how), "scale")
    chosen = maps.choose([layer], scopes)
    [wanted] = chosen.layers
    view = View(chosen, sources, colour, cmap, diagonal, normalise)
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
    return heat_maps([Grid(view, _in_rows(panels))], what, unit, how[scale], max_label)


def _in_rows(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
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
        grids.append(_grid(View(one, of_sources, colour, cmap, diagonal, normalise), scale))
    names = list(dict.fromkeys(scope for one in both for scope in one.scopes))
    what = listed([canvas.stack_words(one, layers_in_words(one.layers)) for one in both])
    if len(both) > 1 and both[0].layers == both[1].layers:
        what = f"{listed([one.stack for one in both])} {layers_in_words(both[0].layers)}"
    unit = canvas.measured(both[-1], names, normalise)
    return heat_maps(grids, what, unit, how[scale], max_label)


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
    how = {"map": "each head on its own", "shared": "all heads of a layer on the same"}
    valid_choice(scale, tuple(how), "scale")
    name = head_scope(maps, scope)
    view = View(maps, sources, colour, cmap, diagonal, normalise)
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
    grid = Grid(view, _in_rows(rows[0]))
    if len(layers) > 1:
        grid = Grid(view, rows, [canvas.stack_words(maps, f"layer {each}") for each in layers])
    what = canvas.stack_words(maps, f"{layers_in_words(layers)}, heads of {name}")
    return heat_maps([grid], what, unit, how[scale], max_label)


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
