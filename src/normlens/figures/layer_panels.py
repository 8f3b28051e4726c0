"""One layer: its scopes side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from normlens.errors import valid_choice
from normlens.figures.canvas import require_matplotlib
from normlens.figures.captions import (
    additions,
    generated_note,
    measured,
    model_and,
    stack_words,
    unit,
)
from normlens.figures.colour_scales import COLOUR_SCALES, colour_norm
from normlens.figures.foreign_axes import draw_into, only_scope, titled
from normlens.figures.heat_map_grid import Grid, heat_maps
from normlens.figures.heat_map_panel import Look, masked
from normlens.figures.sequence_columns import ShownColumns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps

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
    a colour of its own (`normlens.figures.colour_scales`). "sqrt" and "linear" end at the largest
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
