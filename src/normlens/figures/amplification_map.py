"""The map of the pairs that one scope strengthens and weakens compared with another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from normlens.analysis import strongest_pairs
from normlens.analysis.amplification import AXES
from normlens.errors import valid_choice
from normlens.figures.canvas import require_matplotlib
from normlens.figures.captions import generated_note, model_and, stack_words
from normlens.figures.colour_scales import largest
from normlens.figures.foreign_axes import draw_into, titled
from normlens.figures.heat_map_grid import Grid, heat_maps
from normlens.figures.heat_map_panel import Panel
from normlens.figures.sequence_columns import ShownColumns
from normlens.scopes import resolve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.maps import Maps

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
