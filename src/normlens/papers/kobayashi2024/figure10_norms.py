"""Figure 10: the feed-forward block's output beside what bypasses it. Kobayashi et al. 2024."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from normlens.papers.base import Evidence, Experiment
from normlens.papers.kobayashi2024.layer_means import draw_means, layer_means, which_layers
from normlens.reports import words
from normlens.reports.base import Figure, Result, Table
from normlens.reports.drawing import legend, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def norms(evidence: Evidence) -> Result | None:
    """Compare ‖FF(x′)‖ with the norm of the vector that bypasses the block, per layer."""
    means = layer_means(evidence, "norms", ("ff_output_norm", "bypassed_norm"))
    if means.empty:
        return None
    larger = means.index[means["ff_output_norm"] > means["bypassed_norm"]]
    ratio = means["ff_output_norm"] / means["bypassed_norm"]
    defined = ratio.dropna()
    sentences = []
    if len(defined):
        which = which_layers(larger, len(means))
        sentences = [
            f"The block's output is longer than the vector that bypasses it {which}; their ratio "
            f"lies between {words.fixed(defined.min())} (layer {defined.idxmin()}) and "
            f"{words.fixed(defined.max())} (layer {defined.idxmax()})."
        ]
    return Result(
        tables={
            "norms": Table(
                means.reset_index(),
                "Mean norm of the feed-forward block's output and of the vector that bypasses it, "
                "per layer (Figure 10), with 95 % intervals over sequences.",
                dict.fromkeys(means.columns, ".2f"),
            )
        },
        figures={
            "norms": Figure(
                lambda: _draw(means),
                "Mean norm of the feed-forward block's output and of the bypassed vector, per "
                "layer (Figure 10).",
            )
        },
        sentences=sentences,
        summary={"‖FF output‖ ÷ ‖bypassed‖, mean over layers": float(defined.mean())},
    )


def _draw(means: pd.DataFrame) -> Drawing:
    figure, (axes,) = panels(width=3.8, height=2.5)
    draw_means(axes, means, {"ff_output_norm": "FF's output", "bypassed_norm": "bypassed vector"})
    values = means[["ff_output_norm", "bypassed_norm"]]
    if values.max(axis=None) > 50 * values.min(axis=None) > 0:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    style(axes, x=words.LAYER, y="mean norm")
    legend(axes)
    return figure


EXPERIMENT = Experiment(
    name="norms",
    title="The block's output beside what bypasses it",
    source="Kobayashi et al. 2024, section 6, Figure 10",
    question="Is the feed-forward block's output small beside the bypassed vector?",
    method="Mean norm over the tokens of a sequence, then over sequences.",
    needs="masked",
    work=norms,
    absent="the run has no norms of the feed-forward block",
)
