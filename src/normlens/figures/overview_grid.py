"""Layers and scopes as small maps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from normlens.errors import valid_choice
from normlens.figures.canvas import require_matplotlib
from normlens.figures.captions import additions, measured, model_and, number
from normlens.figures.heat_map_grid import heat_maps
from normlens.figures.heat_map_panel import (
    COLOUR_SCALES,
    Panel,
    colour_norm,
    largest,
    masked,
)
from normlens.layers import layers_in_words

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
) -> Figure:
    """Draw all layers (rows) and scopes (columns) as small maps.

    `scale` "map" scales every map to its own largest value, "scope" all layers of a scope alike.
    The other options are those of `plot_layer`.
    """
    require_matplotlib()
    valid_choice(scale, ("map", "scope"), "scale")
    chosen = maps.choose(layers, scopes)
    values = masked(chosen, normalise)
    added = additions(chosen.scopes)

    def panel(layer: int, scope: str) -> Panel | None:
        layers = chosen.layers_of(scope)
        if layer not in layers:
            return None
        shown = values[scope][layers.index(layer)]
        top = largest(shown if scale == "map" else values[scope])
        return Panel(
            shown,
            scope if layer == layers[0] else "",
            added[scope] if layer == layers[0] else "",
            colour_norm(colour, top),
            cmap,
            caption=f"max {number(largest(shown))}",
        )

    rows = [[panel(layer, scope) for scope in chosen.scopes] for layer in chosen.layers]
    n = max(len(maps.targets), len(maps.sources))
    lacking = ["A layer without a map has other components."] if chosen.coverage else []
    whose = "its map's" if scale == "map" else "its scope's (over the layers shown)"
    what = measured(maps, chosen.scopes, normalise)
    return heat_maps(
        maps,
        rows,
        side=min(max(0.1 * n, 1.15), 1.9, max(1.15, 40 / len(rows))),  # at most about a metre
        heading=model_and(maps, layers_in_words(chosen.layers)),
        notes=[
            f"Colour: {what}, as a share of {whose} largest value on a {COLOUR_SCALES[colour]} "
            "scale; the largest value stands above each map.",
            *lacking,
        ],
        max_label=max_label,
        row_labels=[f"layer {layer}" for layer in chosen.layers],
        bar=("share of the largest value", colour_norm(colour, 1.0)),
    )
