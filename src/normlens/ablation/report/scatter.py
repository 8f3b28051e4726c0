"""The scatter plot of the map's change against the loss's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normlens.ablation.report.outcomes import Cost
from normlens.ablation.report.scales import scale_changes
from normlens.figures.canvas import COLOURS, FAINT, INK, MARKERS
from normlens.measures.ranks import CellCorrelation
from normlens.reports import words
from normlens.reports.drawing import SMALL, legend, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def draw_scatter(points: pd.DataFrame, cost: Cost, found: CellCorrelation) -> Drawing:
    """Draw every cell, a colour and a marker per component, its layer beside it where it fits."""
    figure, (axes,) = panels(width=5.4, height=3.6)
    axes.axhline(0, color=FAINT, lw=0.6)
    for place, (component, rows) in enumerate(points.groupby("component", sort=False)):
        ends = np.abs(rows[["low", "high"]].to_numpy().T - rows["change"].to_numpy())
        colour = COLOURS[place % len(COLOURS)]
        axes.errorbar(
            rows["map"],
            rows["change"],
            yerr=np.nan_to_num(ends),
            fmt=MARKERS[place % len(MARKERS)],
            color=colour,
            ms=4,
            lw=0.8,
            label=str(component),
        )
        if len(points) <= 40:
            for layer, x, y in zip(rows["layer"], rows["map"], rows["change"], strict=True):
                axes.annotate(
                    str(int(layer)),
                    (x, y),
                    xytext=(3, 2),
                    textcoords="offset points",
                    fontsize=SMALL - 1,
                    color=colour,
                )
    scale_changes(axes, points[["change", "low", "high"]])
    behind = "1 − ρ of the maps before and behind the component"
    style(axes, x=behind, y=f"{cost.symbol} ({cost.unit})")
    legend(axes, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_title(_title(found), fontsize=SMALL, color=INK, loc="left")
    return figure


def _title(found: CellCorrelation) -> str:
    if found.rho != found.rho:
        return f"{found.cells} cells: too few for a correlation"
    ends = [words.fixed(end) for end in found[2:]]
    return (
        f"Spearman's ρ = {words.fixed(found.rho)} [{ends[0]}, {ends[1]}] over sequences, "
        f"[{ends[2]}, {ends[3]}] over cells"
    )
