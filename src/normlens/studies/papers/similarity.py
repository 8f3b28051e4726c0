"""How much each component changes the map: Kobayashi et al. 2024, Table 1, Figures 5 and 12."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normlens.corpus.measures.tokens import ScopePair, feed_forward_pair, whole_block_pair
from normlens.errors import listed
from normlens.figures.canvas import COLOURS
from normlens.measures.bootstrap import mean_intervals
from normlens.scopes import Step, consecutive
from normlens.studies.papers.published import Evidence, Experiment, compare
from normlens.studies.reports import words
from normlens.studies.reports.contents import Figure, Result, Table
from normlens.studies.reports.drawing import (
    SMALL,
    bars,
    correlation_limits,
    heat_map,
    layer_lines,
    layer_ticks,
    legend,
    line,
    panels,
    style,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Means over sequences from a run's tables, with bootstrap intervals.


RHO = "Spearman's ρ"
FORMATS = dict.fromkeys(("rho", "low", "high"), ".3f")


def with_intervals(evidence: Evidence, wide: pd.DataFrame) -> pd.DataFrame:
    """Take each column's mean over sequences, with its 95 % bootstrap interval."""
    settings = evidence.settings
    mean, low, high = mean_intervals(
        wide.to_numpy(np.float64), resamples=settings.resamples, seed=settings.seed
    )
    return pd.DataFrame({"mean": mean, "low": low, "high": high}, index=wide.columns)


def similarities(
    evidence: Evidence, pairs: Sequence[ScopePair]
) -> tuple[pd.DataFrame, list[pd.DataFrame]]:
    """Average ρ between the scopes of each pair: over layers, and for each pair by layer (from 1).

    The first has a row per pair, the others one per layer; all have columns rho, low and high.
    """
    ordered = [(a, b) for pair in pairs for a, b in [sorted(pair, key=evidence.scopes.index)]]
    named = ", ".join(f"('{a}', '{b}')" for a, b in ordered)
    means = []
    for layer in ([], ["layer"]):
        rows = evidence.sql(
            f'SELECT "index", scope_a, scope_b, {"layer + 1 AS layer," if layer else ""} '
            f"avg(rho) AS rho FROM similarity WHERE (scope_a, scope_b) IN ({named}) GROUP BY ALL"
        )
        keys = ["scope_a", "scope_b", *layer]
        wide = rows.pivot_table(index="index", columns=keys, values="rho", dropna=False)
        means.append(with_intervals(evidence, wide).rename(columns={"mean": "rho"}))
    overall, by_layer = means
    per_pair = [by_layer.loc[pair].reset_index() for pair in ordered]
    return overall.loc[ordered].reset_index(drop=True), per_pair


def layer_means(evidence: Evidence, table: str, columns: Sequence[str]) -> pd.DataFrame:
    """Average columns of a table over sequences, per layer (from 1), with bootstrap intervals."""
    rows = evidence.sql(f'SELECT "index", layer + 1 AS layer, {", ".join(columns)} FROM {table}')
    if rows.empty:
        return pd.DataFrame()
    wide = rows.pivot_table(index="index", columns="layer", values=list(columns), dropna=False)
    means = with_intervals(evidence, wide)
    return pd.DataFrame(
        {
            name + end: means.loc[name, column]
            for name in columns
            for end, column in (("", "mean"), ("_low", "low"), ("_high", "high"))
        }
    ).rename_axis("layer")


def curves_of(means: pd.DataFrame, labels: Mapping[str, str]) -> dict[str, pd.DataFrame]:
    """Choose the curves of columns of `layer_means`, by the labels given for them."""
    layers = means.reset_index()
    return {
        label: layers[["layer", name, f"{name}_low", f"{name}_high"]]
        for name, label in labels.items()
    }


# Table 1 and Figure 5: how much each component changes the map. Kobayashi et al. 2024.


def component_similarity(evidence: Evidence) -> Result | None:
    """Compare each scope's map with that of the scope before it."""
    chain = consecutive(evidence.scopes)
    if not chain:
        return None
    overall, by_layer = similarities(evidence, [(step.before, step.after) for step in chain])
    table = pd.DataFrame(chain)[["component", "before", "after"]].join(overall)
    layers = pd.concat(
        [
            frame.assign(component=step.component)
            for step, frame in zip(chain, by_layer, strict=True)
        ],
        ignore_index=True,
    )[["component", "layer", "rho", "low", "high"]]
    late = _from_feed_forward(chain, evidence)
    measured = {f"table1/{row.component}": row.rho for row in table.itertuples()}
    for component, rho in layers.groupby("component")["rho"]:
        measured |= {f"figure5/{component}/min": rho.min(), f"figure5/{component}/max": rho.max()}
    return Result(
        tables={
            "similarity": Table(
                table,
                f"{RHO} between the maps before and after each component, averaged over layers "
                "and sequences, with the 95 % bootstrap interval over sequences (Table 1).",
                FORMATS,
            ),
            "similarity-layers": Table(
                layers,
                f"{RHO} before and after each component, per layer (Figure 5).",
                FORMATS,
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
        sentences=["The lower ρ, the more a component changes the map."],
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
    bars(axes, table.index, table, width=0.62, color=COLOURS[0])
    for place, value in table["rho"].items():
        axes.text(place, max(value, 0) + 0.03, f"{value:.2f}", ha="center", fontsize=SMALL)
    axes.set_xticks(table.index, table["component"])
    axes.set_ylim(min(0.0, table["rho"].min() - 0.05), 1.1)
    style(axes, x="component", y=f"{RHO} before / after")
    return figure


def _draw_figure5(layers: pd.DataFrame, components: list[str]) -> Drawing:
    figure, axes = panels(columns=len(components), width=2.3, height=2.2, sharey=True)
    for place, (panel, component) in enumerate(zip(axes, components, strict=True)):
        rows = layers[layers["component"] == component]
        line(panel, rows["layer"], rows["rho"], rows["low"], rows["high"], place)
        layer_ticks(panel, int(layers["layer"].max()))
        correlation_limits(panel, layers["low"].min())
        title = f"({'abcdefgh'[place]}) {component}"
        style(panel, x=words.LAYER, y=RHO if not place else "", title=title)
    return figure


TABLE_1_FIGURE_5 = Experiment(
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


# Figure 12: the similarity of every two scopes. Kobayashi et al. 2024.


def scope_matrix(evidence: Evidence) -> Result | None:
    """Compare the maps of every two scopes."""
    pairs = evidence.sql("SELECT scope_a, scope_b, avg(rho) AS rho FROM similarity GROUP BY ALL")
    scopes = evidence.scopes
    square = pd.DataFrame(np.eye(len(scopes)), index=scopes, columns=scopes)
    for row in pairs.itertuples():
        square.loc[row.scope_a, row.scope_b] = square.loc[row.scope_b, row.scope_a] = row.rho
    pair = whole_block_pair(scopes)
    summary, comparisons = {}, []
    if pair is not None:
        rho = float(square.loc[pair[0], pair[1]])
        summary = {"ρ of ATTNRES and the whole layer": rho}
        comparisons = compare(
            "figure12/", {"figure12/RES1~LN2": rho}, evidence.model, evidence.data
        )
    return Result(
        tables={
            "similarity-matrix": Table(
                square.rename_axis("scope").reset_index(),
                f"{RHO} between all scopes, averaged over layers and sequences (Figure 12).",
                dict.fromkeys(scopes, ".2f"),
            )
        },
        figures={
            "similarity-matrix": Figure(
                lambda: _draw_matrix(square),
                f"{RHO} between the maps of all scopes, averaged over layers and sequences "
                "(Figure 12).",
            )
        },
        sentences=["The nearer ρ is to 1, the more alike are the maps of the two scopes."],
        comparisons=comparisons,
        summary=summary,
    )


def _draw_matrix(square: pd.DataFrame) -> Drawing:
    side = 1.9 + 0.36 * len(square)
    figure, (axes,) = panels(width=side + 0.5, height=side)
    image = heat_map(axes, square, vmin=np.floor(10 * square.min(axis=None)) / 10, vmax=1)
    axes.set_xticks(range(len(square)), square.columns, rotation=45, ha="right")
    style(axes, grid=False)
    bar = figure.colorbar(image, ax=axes, shrink=0.7)
    bar.ax.tick_params(labelsize=SMALL)
    bar.set_label(RHO, fontsize=SMALL)
    return figure


FIGURE_12 = Experiment(
    name="scopes",
    title="All scopes beside each other",
    source="Kobayashi et al. 2024, section 4, Figure 12",
    question="Which points of a layer have similar maps?",
    method="Spearman's ρ between the maps of every two scopes, averaged as above.",
    needs="masked",
    work=scope_matrix,
)


# Section 6.2: the map without the special dimensions. Kobayashi et al. 2024.


def special_dimensions(evidence: Evidence) -> Result | None:
    """Compare ρ of the maps before and behind FF with and without the special dimensions."""
    means = layer_means(evidence, "special_dimensions", ("rho_with", "rho_without"))
    if means.empty:
        return None
    gain = means["rho_without"] - means["rho_with"]
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
                lambda: _draw_special(means),
                "Similarity of FF's map to the map before it, with and without the special "
                "dimensions (the 1 % with the lowest γ of the normalisation behind FF).",
            )
        },
        sentences=[
            "Where ρ is higher without the special dimensions, part of the block's change of the "
            "map lies in them."
        ],
        comparisons=compare("special/", measured, evidence.model, evidence.data),
        summary={"gain in ρ without special dimensions, mean over layers": float(gain.mean())},
    )


def _draw_special(means: pd.DataFrame) -> Drawing:
    labels = {"rho_with": "all dimensions", "rho_without": "without special dimensions"}
    figure, axes = layer_lines(curves_of(means, labels), "Spearman's ρ before / behind FF")
    correlation_limits(axes, float(means.min(axis=None)))
    legend(axes, loc="lower left")
    return figure


SECTION_6_2 = Experiment(
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
