"""Table 1 and Figure 5: how much each component changes the map. Kobayashi et al. 2024."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normlens.corpus.measures.tokens import feed_forward_pair
from normlens.errors import listed
from normlens.figures.canvas import COLOURS
from normlens.papers.base import Evidence, Experiment
from normlens.papers.kobayashi2024.similarity_queries import (
    RHO,
    in_table_order,
    rho_per_sequence,
    with_intervals,
)
from normlens.papers.published import compare
from normlens.reports import words
from normlens.reports.base import Figure, Result, Table
from normlens.reports.drawing import SMALL, layer_ticks, line, panels, style
from normlens.scopes import Step, consecutive

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def component_similarity(evidence: Evidence) -> Result | None:
    """Compare each scope's map with that of the scope before it."""
    chain = consecutive(evidence.scopes)
    if not chain:
        return None
    pairs = [in_table_order(evidence, step.before, step.after) for step in chain]
    overall = with_intervals(evidence, rho_per_sequence(evidence, pairs, by_layer=False))
    by_layer = with_intervals(evidence, rho_per_sequence(evidence, pairs, by_layer=True))
    table = pd.DataFrame(
        [
            {
                "component": step.component,
                "before": step.before,
                "after": step.after,
                **overall.loc[pair].to_dict(),
            }
            for step, pair in zip(chain, pairs, strict=True)
        ]
    )
    layers = pd.concat(
        [
            by_layer.loc[pair].reset_index().assign(component=step.component)
            for step, pair in zip(chain, pairs, strict=True)
        ],
        ignore_index=True,
    )[["component", "layer", "rho", "low", "high"]]
    late = _from_feed_forward(chain, evidence)
    measured = {f"table1/{row.component}": row.rho for row in table.itertuples()}
    for component, rho in layers.groupby("component")["rho"]:
        measured |= {f"figure5/{component}/min": rho.min(), f"figure5/{component}/max": rho.max()}
    formats = {"rho": ".3f", "low": ".3f", "high": ".3f"}
    return Result(
        tables={
            "similarity": Table(
                table,
                f"{RHO} between the maps before and after each component, averaged over layers "
                "and sequences, with the 95 % bootstrap interval over sequences (Table 1).",
                formats,
            ),
            "similarity-layers": Table(
                layers,
                f"{RHO} before and after each component, per layer (Figure 5).",
                formats,
            ),
        },
        figures={
            "similarity": Figure(
                lambda: _draw_table1(table),
                "Similarity of the maps before and after each component, averaged over layers "
                "and sequences: the lower, the more the component changes the map (Table 1).",
            ),
            "similarity-layers": Figure(
                lambda: _draw_figure5(layers, late),
                f"Similarity before and after {listed(late)}, per layer, with 95 % "
                "intervals (Figure 5).",
            ),
        },
        sentences=_sentences(table, layers, late),
        comparisons=[
            *compare("table1/", measured, evidence.model, evidence.data),
            *compare("figure5/", measured, evidence.model, evidence.data),
        ],
        summary={f"ρ before and after {row.component}": row.rho for row in table.itertuples()},
    )


def _from_feed_forward(chain: list[Step], evidence: Evidence) -> list[str]:
    """List the components from the feed-forward block on, or all where there is none."""
    pair = feed_forward_pair(evidence.scopes)
    after = [step.after for step in chain]
    begin = after.index(pair[1]) if pair else 0
    return [step.component for step in chain[begin:]]


def _draw_table1(table: pd.DataFrame) -> Drawing:
    figure, (axes,) = panels(width=3.6, height=2.4)
    places = np.arange(len(table))
    axes.bar(places, table["rho"], width=0.62, color=COLOURS[0])
    error = [table["rho"] - table["low"], table["high"] - table["rho"]]
    axes.errorbar(places, table["rho"], yerr=error, fmt="none", ecolor="#1a1a1a", elinewidth=0.8)
    for place, value in zip(places, table["rho"], strict=True):
        axes.text(place, max(value, 0) + 0.03, f"{value:.2f}", ha="center", fontsize=SMALL)
    axes.set_xticks(places, table["component"])
    axes.set_ylim(min(0.0, table["rho"].min() - 0.05), 1.1)
    style(axes, x="component", y=f"{RHO} before / after")
    return figure


def _draw_figure5(layers: pd.DataFrame, components: list[str]) -> Drawing:
    figure, axes = panels(columns=len(components), width=2.3, height=2.2, sharey=True)
    for place, (panel, component) in enumerate(zip(axes, components, strict=True)):
        rows = layers[layers["component"] == component]
        line(panel, rows["layer"], rows["rho"], rows["low"], rows["high"], place)
        layer_ticks(panel, int(layers["layer"].max()))
        panel.set_ylim(min(0.0, layers["low"].min() - 0.03), 1.03)
        style(
            panel,
            x=words.LAYER,
            y=RHO if not place else "",
            title=f"({'abcdefgh'[place]}) {component}",
        )
    return figure


def _sentences(table: pd.DataFrame, layers: pd.DataFrame, late: list[str]) -> list[str]:
    ranked = table.sort_values("rho")
    least, most = ranked.iloc[-1], ranked.iloc[0]
    sentences = [
        f"Averaged over layers and sequences, {most.component} changes the map most "
        f"(ρ = {words.fixed(most.rho)}) and {least.component} least (ρ = "
        f"{words.fixed(least.rho)})."
    ]
    parts = []
    for component in late:
        rows = layers[layers["component"] == component].set_index("layer")["rho"].dropna()
        if len(rows) > 1:
            parts.append(
                f"{component} most in layer {rows.idxmin()} (ρ = {words.fixed(rows.min())}) and "
                f"least in layer {rows.idxmax()} ({words.fixed(rows.max())})"
            )
    if parts:
        sentences.append(f"By layer, the map is changed by {'; by '.join(parts)}.")
    third = int(layers["layer"].max()) // 3
    if third:
        last = int(layers["layer"].max())
        trends = []
        for component in late:
            rows = layers[layers["component"] == component].set_index("layer")["rho"]
            early, end = rows.loc[:third].mean(), rows.loc[last - third + 1 :].mean()
            word = "more" if end < early else "less"
            trends.append(
                f"{component} changes it {word} (mean ρ {words.fixed(end)} against "
                f"{words.fixed(early)})"
            )
        sentences.append(
            f"In the last {third} layer{'s' * (third > 1)}, compared with the first "
            f"{third if third > 1 else ''}".rstrip()
            + f": {listed(trends)}."
        )
    return sentences


EXPERIMENT = Experiment(
    name="similarity",
    title="How much each component changes the map",
    source="Kobayashi et al. 2024, section 4, Table 1 and Figure 5",
    question="By how much does each component of a layer change the attribution map?",
    method=(
        "Spearman's ρ (ties by average rank) between the maps before and after a component, "
        "over all pairs of tokens that the attention allows, for each layer and sequence; then "
        "the mean. Intervals: percentile bootstrap over sequences."
    ),
    needs="masked",
    work=component_similarity,
    absent="the model has no two scopes that follow each other",
)
