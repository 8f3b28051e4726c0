"""Layers and scopes as small maps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from normlens.errors import valid_choice
from normlens.figures.canvas import require_matplotlib
from normlens.figures.captions import (
    additions,
    generated_note,
    measured,
    model_and,
    number,
    stack_words,
)
from normlens.figures.colour_scales import COLOUR_SCALES, colour_norm, largest
from normlens.figures.heat_map_grid import Grid, heat_maps
from normlens.figures.heat_map_panel import Look, Panel, is_beyond, masked
from normlens.figures.sequence_columns import ShownColumns
from normlens.layers import layers_in_words
from normlens.results.both_stacks import by_stack, choose_in_stacks
from normlens.wording import listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps


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
