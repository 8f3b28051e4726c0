"""Layers and scopes as small maps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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
from normlens.figures.heat_map_grid import Grid, heat_maps
from normlens.figures.heat_map_panel import (
    COLOUR_SCALES,
    Panel,
    colour_norm,
    largest,
    masked,
)
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
    colour: str = "sqrt",
    cmap: str = "viridis",
    max_label: int = 10,
    sources: str | None = None,
    stack: str | None = None,
) -> Figure:
    """Draw all layers (rows) and scopes (columns) as small maps.

    `scale` "map" scales every map to its own largest value, "scope" all layers of a scope alike.
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
    look = _Look(scale, normalise, colour, cmap)
    grids = [look.grid(one, columns) for one, columns in zip(both, shown, strict=True)]
    names = list(dict.fromkeys(scope for one in both for scope in one.scopes))
    n = max(max(len(each.maps.targets), len(each.maps.sources)) for each in shown)
    rows = sum(len(grid.rows) for grid in grids)
    lacking = any(one.coverage for one in both)
    whose = "its map's" if scale == "map" else "its scope's (over the layers shown)"
    heading = listed([stack_words(one, layers_in_words(one.layers)) for one in both])
    if len(both) > 1 and both[0].layers == both[1].layers:
        heading = f"{listed([one.stack for one in both])} {layers_in_words(both[0].layers)}"
    return heat_maps(
        grids,
        side=min(max(0.1 * n, 1.15), 1.9, max(1.15, 40 / rows)),  # at most about a metre
        heading=model_and(both[-1], heading),
        notes=[
            f"Colour: {measured(both[-1], names, normalise)}, as a share of {whose} largest value "
            f"on a {COLOUR_SCALES[colour]} scale; the largest value stands above each map.",
            *(["A layer without a map has other components."] if lacking else []),
            *shown[-1].blank_note,
            *generated_note(both[-1]),
        ],
        max_label=max_label,
        bar=("share of the largest value", colour_norm(colour, 1.0)),
    )


@dataclass(frozen=True)
class _Look:
    """How the small maps are drawn."""

    scale: str
    normalise: str
    colour: str
    cmap: str

    def grid(self, maps: Maps, shown: ShownColumns) -> Grid:
        """The layers and scopes of one stack."""
        names = shown.scopes(maps.scopes)
        values = {scope: shown.cut(array) for scope, array in masked(maps, self.normalise).items()}
        added = additions(names)

        def panel(layer: int, scope: str) -> Panel | None:
            layers = maps.layers_of(scope)
            if layer not in layers:
                return None
            of_layer = values[scope][layers.index(layer)]
            top = largest(of_layer if self.scale == "map" else values[scope])
            return Panel(
                of_layer,
                scope if layer == layers[0] else "",
                added[scope] if layer == layers[0] else "",
                colour_norm(self.colour, top),
                self.cmap,
                caption=f"max {number(largest(of_layer))}",
                divided=shown.divided,
            )

        rows = [[panel(layer, scope) for scope in names] for layer in maps.layers]
        labels = [stack_words(maps, f"layer {layer}") for layer in maps.layers]
        return Grid(shown.maps, rows, labels)
