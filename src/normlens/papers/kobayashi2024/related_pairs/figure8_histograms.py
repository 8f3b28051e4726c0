"""Figure 8: the distribution of FF-amp in one layer. Kobayashi et al. 2024."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.papers.kobayashi2024.related_pairs.drawing import (
    FF_AMP,
    OTHERS,
    RELATED,
    WIDTH,
    legend,
    letter,
)
from normlens.papers.kobayashi2024.related_pairs.findings import Finding, strongest
from normlens.reports.base import Figure
from normlens.reports.drawing import TEXT, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

BINS = (10, 40)  # of a histogram, at least and at most


def histograms_figure(rows: Sequence[Finding], amp: str, layer: int | None) -> Figure | None:
    """Draw the scores that the paper's procedure compares, in `layer` or the largest effect's."""
    tested = [relation for relation in rows if _row(relation, None) is not None]
    if not tested:
        return None
    shown = [relation for relation in tested if _row(relation, layer) is not None]
    if layer is None or len(shown) < len(tested):
        which = "the layer with the largest effect"
        shown = tested
        if layer is not None:
            which += f" (there is no layer {layer}, counted from 1)"
        layer = None
    else:
        which = f"layer {layer} (counted from 1)"
    return Figure(
        lambda: _draw(shown, amp, layer),
        f"Distribution of {amp} in {which}: related pairs of subword types and "
        f"{'others' if shown[0].of_paper else 'unrelated ones'} at the same distance"
        + (" (for adjacent pairs: further apart)" if any(row.near for row in shown) else "")
        + ", one draw, each group's shares adding up to 1; the central 99 % of both together are "
        "shown" + (" (Figure 8)." if amp == FF_AMP and shown[0].of_paper else "."),
    )


def _row(relation: Finding, layer: int | None) -> int | None:
    """Find the paper's row of a layer, or of the largest effect; None if there is none."""
    if relation.paper is None:
        return None
    if layer is None:
        return strongest(relation.paper)
    places = np.flatnonzero(relation.paper["layer"] == layer)
    return int(places[0]) if len(places) else None


def histogram(
    related: NDArray[np.float64], others: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Bin both groups over their central 99 %: edges, and each group's share per bin."""
    both = np.concatenate([related, others])
    bins = int(np.clip(np.sqrt(min(len(related), len(others))), *BINS))
    edges = np.histogram_bin_edges(both, bins, tuple(np.quantile(both, [0.005, 0.995])))
    shares = [np.histogram(group, edges)[0] / len(group) for group in (related, others)]
    return edges, shares[0], shares[1]


def _grid(rows: Sequence[Finding], height: float) -> tuple[Drawing, list[Any]]:
    columns = len(rows) if len(rows) < 4 else 2
    lines = -(-len(rows) // columns)
    width = WIDTH / (2 if len(rows) == 1 else columns)
    figure, axes = panels(columns, lines, width=width, height=height)
    for spare in axes[len(rows) :]:
        spare.set_visible(False)
    return figure, axes[: len(rows)]


def _first_column(axes: list[Any]) -> list[Any]:
    return [panel for panel in axes if panel.get_subplotspec().is_first_col()]


def _draw(rows: Sequence[Finding], amp: str, layer: int | None) -> Drawing:
    figure, axes = _grid(rows, 2.2)
    first_column = _first_column(axes)
    for place, (panel, relation) in enumerate(zip(axes, rows, strict=True)):
        row = _row(relation, layer) or 0
        groups = relation.related[:, row], relation.others[:, row]
        edges, *shares = histogram(*groups)
        for share, group, colour in zip(shares, groups, (RELATED, OTHERS), strict=True):
            panel.stairs(share, edges, fill=True, color=colour, alpha=0.35)
            panel.stairs(share, edges, color=colour, lw=1)
            panel.axvline(group.mean(), color=colour, ls="--", lw=1)
        panel.locator_params(axis="x", nbins=5)
        style(
            panel,
            x=amp,
            y="share of pairs" if panel in first_column else "",
            title=f"({letter(place)}) {relation.label},\n"
            f"layer {relation.paper['layer'].iloc[row]} (counted from 1)",
        )
        panel.title.set_fontsize(TEXT)
    legend(figure, significance=False)
    return figure
