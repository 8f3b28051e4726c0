"""How much each component changes the map: Kobayashi et al. 2024, Table 1, Figures 5 and 12."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normlens.corpus.measures.tokens import feed_forward_pair, whole_block_pair
from normlens.errors import listed
from normlens.figures.canvas import COLOURS
from normlens.measures.bootstrap import mean_intervals
from normlens.scopes import Step, consecutive, layers_in_words
from normlens.studies.papers.published import Evidence, Experiment, compare
from normlens.studies.reports import words
from normlens.studies.reports.contents import Figure, Result, Table
from normlens.studies.reports.drawing import SMALL, layer_ticks, legend, line, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Spearman's ρ between scopes, per sequence and with bootstrap intervals, from a run's table.


RHO = "Spearman's ρ"


def _where_pairs(pairs: list[tuple[str, str]]) -> str:
    listed = ", ".join(f"('{a}', '{b}')" for a, b in pairs)
    return f"(scope_a, scope_b) IN ({listed})"


def in_table_order(evidence: Evidence, a: str, b: str) -> tuple[str, str]:
    """Order two scopes as the table names them."""
    scopes = evidence.scopes
    return (a, b) if scopes.index(a) < scopes.index(b) else (b, a)


def rho_per_sequence(
    evidence: Evidence, pairs: list[tuple[str, str]], by_layer: bool
) -> pd.DataFrame:
    """Read ρ of every sequence: (sequences, pairs) or (sequences, (pair, layer)), layers from 1."""
    keys = ["scope_a", "scope_b", *(["layer"] if by_layer else [])]
    columns = ", ".join("layer + 1 AS layer" if key == "layer" else key for key in keys)
    rows = evidence.sql(
        f'SELECT "index", {columns}, avg(rho) AS rho FROM similarity WHERE {_where_pairs(pairs)} '
        "GROUP BY ALL"
    )
    return rows.pivot_table(index="index", columns=keys, values="rho", dropna=False)


def with_intervals(evidence: Evidence, rho: pd.DataFrame) -> pd.DataFrame:
    """Take each column's mean over sequences, with its 95 % bootstrap interval."""
    settings = evidence.settings
    mean, low, high = mean_intervals(
        rho.to_numpy(np.float64), resamples=settings.resamples, seed=settings.seed
    )
    return pd.DataFrame({"rho": mean, "low": low, "high": high}, index=rho.columns)


# Means over sequences per layer, with bootstrap intervals.


def layer_means(evidence: Evidence, table: str, columns: tuple[str, ...]) -> pd.DataFrame:
    """Average columns of a table over sequences, per layer (from 1), with bootstrap intervals."""
    listed = ", ".join(columns)
    rows = evidence.sql(f'SELECT "index", layer + 1 AS layer, {listed} FROM {table}')
    if rows.empty:
        return pd.DataFrame()
    wide = rows.pivot_table(index="index", columns="layer", values=list(columns), dropna=False)
    settings = evidence.settings
    mean, low, high = mean_intervals(
        wide.to_numpy(np.float64), resamples=settings.resamples, seed=settings.seed
    )
    intervals = pd.DataFrame({"mean": mean, "low": low, "high": high}, index=wide.columns)
    parts: dict[str, pd.Series] = {}
    for name in columns:
        column = intervals.loc[name]
        parts |= {
            name: column["mean"],
            f"{name}_low": column["low"],
            f"{name}_high": column["high"],
        }
    return pd.DataFrame(parts).rename_axis("layer")


def draw_means(axes: Any, means: pd.DataFrame, labels: Mapping[str, str]) -> None:
    """Draw columns of `layer_means` as lines with bands, each with its label."""
    for place, (name, label) in enumerate(labels.items()):
        low, high = means[f"{name}_low"], means[f"{name}_high"]
        line(axes, means.index, means[name], low, high, place, label)
    layer_ticks(axes, int(means.index.max()))


def which_layers(some: Iterable[int], count: int) -> str:
    """Say which layers: ``in no layer``, ``in every layer``, or ``in layers 2 and 5 of 12``."""
    layers = list(some)
    if not layers:
        return "in no layer"
    return "in every layer" if len(layers) == count else f"in {layers_in_words(layers)} of {count}"


# Table 1 and Figure 5: how much each component changes the map. Kobayashi et al. 2024.


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
    sentences, summary, comparisons = [], {}, []
    if pair is not None:
        rho = float(square.loc[pair[0], pair[1]])
        sentences = [
            f"The map behind the first residual ({pair[0]}) and that of the whole layer "
            f"({pair[1]}) have a mean similarity of {words.fixed(rho, 3)}."
        ]
        summary = {"ρ of ATTNRES and the whole layer": rho}
        comparisons = compare(
            "figure12/", {"figure12/RES1~LN2": rho}, evidence.model, evidence.data
        )
    off = pairs.sort_values("rho")
    sentences.append(
        f"Least alike of all are {off.iloc[0].scope_a} and {off.iloc[0].scope_b} (ρ = "
        f"{words.fixed(off.iloc[0].rho)}), most alike {off.iloc[-1].scope_a} and "
        f"{off.iloc[-1].scope_b} ({words.fixed(off.iloc[-1].rho)})."
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
        sentences=sentences,
        comparisons=comparisons,
        summary=summary,
    )


def _draw_matrix(square: pd.DataFrame) -> Drawing:
    side = 1.9 + 0.36 * len(square)
    figure, (axes,) = panels(width=side + 0.5, height=side)
    values = square.to_numpy()
    image = axes.imshow(values, cmap="cividis", vmin=np.floor(10 * values.min()) / 10, vmax=1)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            dark = value < (image.norm.vmin + image.norm.vmax) / 2
            axes.text(
                j,
                i,
                f"{value:.2f}",
                ha="center",
                va="center",
                fontsize=6.5,
                color="white" if dark else "black",
            )
    axes.set_xticks(range(len(square)), square.columns, rotation=45, ha="right")
    axes.set_yticks(range(len(square)), square.index)
    style(axes, grid=False)
    bar = figure.colorbar(image, ax=axes, shrink=0.7, label=RHO)
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
                lambda: _draw_special(means),
                "Similarity of FF's map to the map before it, with and without the special "
                "dimensions (the 1 % with the lowest γ of the normalisation behind FF).",
            )
        },
        sentences=sentences,
        comparisons=compare("special/", measured, evidence.model, evidence.data),
        summary={"gain in ρ without special dimensions, mean over layers": float(gain.mean())},
    )


def _draw_special(means: pd.DataFrame) -> Drawing:
    figure, (axes,) = panels(width=3.8, height=2.5)
    labels = {"rho_with": "all dimensions", "rho_without": "without special dimensions"}
    draw_means(axes, means, labels)
    axes.set_ylim(min(0.0, float(means.min(axis=None)) - 0.03), 1.03)
    style(axes, x=words.LAYER, y="Spearman's ρ before / behind FF")
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
