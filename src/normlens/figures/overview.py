"""Layers and scopes as small maps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from normlens.errors import valid_choice
from normlens.figures.canvas import require_matplotlib
from normlens.figures.captions import additions, measured, model_and, number
from normlens.figures.heatmaps import (
    COLOUR_SCALES,
    Panel,
    colour_norm,
    heat_maps,
    largest,
    masked,
)
from normlens.layers import layers_in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normlens.maps import Maps


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
    """All layers (rows) and scopes (columns) as small maps.

    `scale` "map" scales every map to its own largest value, "scope" all layers of a scope alike.
    The other options are those of `plot_layer`.
    """
    require_matplotlib()
    valid_choice(scale, ("map", "scope"), "scale")
    chosen = maps.choose(layers, scopes)
    values = masked(chosen, normalise)
    added = additions(chosen.scopes)

    def panel(position: int, scope: str) -> Panel:
        own = values[scope][position]
        top = largest(own if scale == "map" else values[scope])
        return Panel(
            own,
            scope if position == 0 else "",
            added[scope] if position == 0 else "",
            colour_norm(colour, top),
            cmap,
            caption=f"max {number(largest(own))}",
        )

    rows = [[panel(k, scope) for scope in chosen.scopes] for k in range(len(chosen.layers))]
    n = len(maps.tokens)
    whose = "its map's" if scale == "map" else "its scope's (over the layers shown)"
    what = measured(chosen.scopes, normalise)
    return heat_maps(
        maps,
        rows,
        side=min(max(0.1 * n, 1.15), 1.9, max(1.15, 40 / len(rows))),  # at most about a metre
        heading=model_and(maps, layers_in_words(chosen.layers)),
        notes=[
            f"Colour: {what}, as a share of {whose} largest value on a {COLOUR_SCALES[colour]} "
            "scale; the largest value stands above each map."
        ],
        max_label=max_label,
        row_labels=[f"layer {layer}" for layer in chosen.layers],
        bar=("share of the largest value", colour_norm(colour, 1.0)),
    )
