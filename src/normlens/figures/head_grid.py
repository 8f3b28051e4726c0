"""The heads of an attention as small maps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from normlens import analysis
from normlens.errors import InputError, UnknownScopeError, valid_choice
from normlens.figures.canvas import require_matplotlib
from normlens.figures.captions import generated_note, model_and, number, stack_words, unit
from normlens.figures.colour_scales import COLOUR_SCALES, colour_norm, largest
from normlens.figures.heat_map_grid import Grid, heat_maps
from normlens.figures.heat_map_panel import Look, Panel
from normlens.figures.sequence_columns import ShownColumns
from normlens.layers import layers_in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps

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
        shown.cut(np.ma.masked_where(blank, analysis.normalise(every[head], normalise)))
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
