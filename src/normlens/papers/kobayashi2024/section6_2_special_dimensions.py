"""Section 6.2: the map without the special dimensions. Kobayashi et al. 2024."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from normlens.papers.base import Evidence, Experiment
from normlens.papers.kobayashi2024.layer_means import draw_means, layer_means, which_layers
from normlens.papers.published import compare
from normlens.reports import words
from normlens.reports.base import Figure, Result, Table
from normlens.reports.drawing import legend, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def special_dimensions(evidence: Evidence) -> Result | None:
    """Compare ρ of the maps before and behind FF with and without the special dimensions."""
    means = layer_means(evidence, "special_dimensions", ("rho_with", "rho_without"))
    if means.empty:
        return None
    gain = means["rho_without"] - means["rho_with"]
    higher = gain.index[gain > 0]
    where = which_layers(higher, len(means))
    top = gain.idxmax()
    sentences = [
        "Without the special dimensions the block's map is nearer to the map before it "
        f"{where}; the change is largest in layer {top} "
        f"({words.fixed(means.loc[top, 'rho_with'])} → "
        f"{words.fixed(means.loc[top, 'rho_without'])})."
    ]
    measured = {
        f"special/layer-{layer}/{which}": float(means.loc[layer, f"rho_{which}"])
        for layer in means.index
        for which in ("with", "without")
    }
    return Result(
        tables={
            "special-dimensions": Table(
                means.reset_index(),
                "Spearman's ρ between the maps before and behind FF, with and without the special "
                "dimensions in FF's output, per layer (section 6.2).",
                dict.fromkeys(means.columns, ".3f"),
            )
        },
        figures={
            "special-dimensions": Figure(
                lambda: _draw(means),
                "Similarity of FF's map to the map before it, with and without the special "
                "dimensions (the 1 % with the lowest γ of the normalisation behind FF).",
            )
        },
        sentences=sentences,
        comparisons=compare("special/", measured, evidence.model, evidence.data),
        summary={"gain in ρ without special dimensions, mean over layers": float(gain.mean())},
    )


def _draw(means: pd.DataFrame) -> Drawing:
    figure, (axes,) = panels(width=3.8, height=2.5)
    labels = {"rho_with": "all dimensions", "rho_without": "without special dimensions"}
    draw_means(axes, means, labels)
    axes.set_ylim(min(0.0, float(means.min(axis=None)) - 0.03), 1.03)
    style(axes, x=words.LAYER, y="Spearman's ρ before / behind FF")
    legend(axes, loc="lower left")
    return figure


EXPERIMENT = Experiment(
    name="special-dimensions",
    title="The map without the special dimensions",
    source="Kobayashi et al. 2024, section 6.2",
    question="How much of the block's change comes from the special dimensions?",
    method=(
        "The special dimensions are taken out of FF's output, the map is computed again and "
        "compared with the map before the block."
    ),
    needs="masked",
    work=special_dimensions,
    absent="there is no normalisation with a γ directly behind the feed-forward block",
)
