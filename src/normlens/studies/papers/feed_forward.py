"""What each component and the feed-forward block do to the maps: Kobayashi et al. 2024.

Figures 7 and 8 are in `related_pairs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd

from normlens.corpus.measures.tokens import ScopePair, feed_forward_pair, whole_block_pair
from normlens.errors import listed
from normlens.figures.canvas import COLOURS
from normlens.measures.bootstrap import mean_intervals
from normlens.scopes import consecutive, layers_in_words, shortest, thinned
from normlens.studies.papers.pair_samples import has_pairs
from normlens.studies.papers.published import Evidence, compare
from normlens.studies.reports import drawing, words
from normlens.studies.reports.contents import Figure, Result, Table, experiment

# Means over sequences from a run's tables, with bootstrap intervals.


RHO = "Spearman's ρ"


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
    rows = evidence.sql(
        'SELECT "index", scope_a, scope_b, layer + 1 AS layer, rho FROM similarity '
        f"WHERE (scope_a, scope_b) IN ({', '.join(map(str, ordered))})"
    )

    def means(*keys: str) -> pd.DataFrame:
        wide = rows.pivot_table("rho", "index", ["scope_a", "scope_b", *keys], dropna=False)
        return with_intervals(evidence, wide).rename(columns={"mean": "rho"})

    by_layer = means("layer")
    per_pair = [by_layer.loc[pair].reset_index() for pair in ordered]
    return means().loc[ordered].reset_index(drop=True), per_pair


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


# Table 1 and Figure 5: how much each component changes the map.


@experiment("papers", "similarity", needs="masked")
def table_1_figure_5(evidence: Evidence) -> Result | None:
    """Compare each scope's map with that of the scope before it."""
    chain = consecutive(evidence.scopes)
    if not chain:
        return None
    overall, by_layer = similarities(evidence, [(step.before, step.after) for step in chain])
    steps = pd.DataFrame(chain)[["component", "before", "after"]]
    table = steps.join(overall)
    layers = pd.concat(by_layer, keys=steps["component"]).reset_index("component")
    layers = layers.reset_index(drop=True)
    pair = feed_forward_pair(evidence.scopes)
    late = steps["component"].iloc[steps["after"].tolist().index(pair[1]) if pair else 0 :].tolist()
    measured = {f"table1/{row.component}": row.rho for row in table.itertuples()}
    for component, rho in layers.groupby("component")["rho"]:
        measured |= {f"figure5/{component}/min": rho.min(), f"figure5/{component}/max": rho.max()}
    return Result(
        tables={"similarity": Table(table, ".3f"), "similarity-layers": Table(layers, ".3f")},
        figures={
            "similarity": Figure(lambda: _draw_table_1(table)),
            "similarity-layers": Figure(lambda: _draw_figure_5(layers, late)),
        },
        comparisons=compare(measured, evidence),
        summary={f"ρ before and after {row.component}": row.rho for row in table.itertuples()},
        facts={"components": listed(late)},
    )


def _draw_table_1(table: pd.DataFrame) -> drawing.Drawing:
    figure, (axes,) = drawing.panels(width=3.6, height=2.4)
    drawing.bars(axes, table.index, table, width=0.62, color=COLOURS[0])
    for place, value in table["rho"].items():
        axes.text(place, max(value, 0) + 0.03, f"{value:.2f}", ha="center")
    axes.set_xticks(table.index, table["component"])
    axes.set_ylim(min(0.0, table["rho"].min() - 0.05), 1.1)
    drawing.style(axes, x="component", y=f"{RHO} before / after")
    return figure


def _draw_figure_5(layers: pd.DataFrame, components: list[str]) -> drawing.Drawing:
    figure, axes = drawing.panels(columns=len(components), width=2.3, height=2.2, sharey=True)
    for place, (panel, component) in enumerate(zip(axes, components, strict=True)):
        rows = layers[layers["component"] == component]
        drawing.line(panel, *rows.drop(columns="component").to_numpy(float).T, place=place)
        drawing.layer_ticks(panel, int(layers["layer"].max()))
        drawing.correlation_limits(panel, layers["low"].min())
        title = f"({'abcdefgh'[place]}) {component}"
        drawing.style(panel, x=words.LAYER, y=RHO if not place else "", title=title)
    return figure


# Figure 9: what becomes of the feed-forward block's change.


@experiment("papers", "cancellation", needs="masked")
def figure_9(evidence: Evidence) -> Result | None:
    """Compare the map before the feed-forward block with every later one."""
    pair = feed_forward_pair(evidence.scopes)
    if pair is None:
        return None
    chain = [scope for scope in evidence.scopes if scope.endswith("-N")]
    later, names = chain[chain.index(pair[1]) :], shortest(evidence.scopes)
    overall, by_layer = similarities(evidence, [(pair[0], scope) for scope in later])
    layers = pd.concat(
        [
            frame.assign(scope=scope, through=names[scope])
            for scope, frame in zip(later, by_layer, strict=True)
        ],
        ignore_index=True,
    )[["through", "scope", "layer", "rho", "low", "high"]]
    return Result(
        tables={"similarity-from-before": Table(layers, ".3f")},
        figures={"similarity-from-before": Figure(lambda: _draw_figure_9(layers, pair[0]))},
        summary={
            f"ρ of the map before FF and behind {names[scope]}": rho
            for scope, rho in zip(later, overall["rho"].tolist(), strict=True)
        },
        facts={"before": pair[0]},
    )


def _draw_figure_9(layers: pd.DataFrame, before: str) -> drawing.Drawing:
    curves = {
        f"behind {through}": rows[["layer", "rho", "low", "high"]]
        for through, rows in layers.groupby("through", sort=False)
    }
    figure, axes = drawing.layer_lines(curves, f"{RHO} with {before}", width=4.2, height=2.7)
    drawing.correlation_limits(axes, layers["low"].min())
    axes.legend(loc="lower left")
    return figure


# Figure 12: the similarity of every two scopes.


@experiment("papers", "scopes", needs="masked")
def figure_12(evidence: Evidence) -> Result | None:
    """Compare the maps of every two scopes."""
    pairs = evidence.sql("SELECT scope_a, scope_b, avg(rho) AS rho FROM similarity GROUP BY ALL")
    scopes, pair = evidence.scopes, whole_block_pair(evidence.scopes)
    square = pd.DataFrame(np.eye(len(scopes)), index=scopes, columns=scopes)
    for row in pairs.itertuples():
        square.loc[row.scope_a, row.scope_b] = square.loc[row.scope_b, row.scope_a] = row.rho
    summary, measured = {}, {}
    if pair is not None:
        rho = float(square.loc[pair[0], pair[1]])
        summary, measured = {"ρ of ATTNRES and the whole layer": rho}, {"figure12/RES1~LN2": rho}
    return Result(
        tables={"similarity-matrix": Table(square.rename_axis("scope").reset_index(), ".2f")},
        figures={"similarity-matrix": Figure(lambda: _draw_figure_12(square))},
        comparisons=compare(measured, evidence),
        summary=summary,
    )


def _draw_figure_12(square: pd.DataFrame) -> drawing.Drawing:
    side = 1.9 + 0.36 * len(square)
    figure, (axes,) = drawing.panels(width=side + 0.5, height=side)
    image = drawing.heat_map(axes, square, vmin=np.floor(10 * square.min(axis=None)) / 10, vmax=1)
    axes.tick_params(axis="x", rotation=90)
    figure.colorbar(image, ax=axes, shrink=0.7, label=RHO)
    return figure


# Tables 2 and 3: the pairs of subwords that are amplified most.


@experiment("papers", "amplified-pairs", needs="plain")
def tables_2_3(evidence: Evidence) -> Result | None:
    """List the most amplified pairs per layer, by FF and by all behind the first residual."""
    if not has_pairs(evidence):
        return None
    scopes, settings = evidence.scopes, evidence.settings
    facts = {"top": settings.top, "min_count": settings.min_count}
    around = {
        "amplified-by-ff": feed_forward_pair(scopes),
        "amplified-by-layer": whole_block_pair(scopes),
    }
    every = {name: _top(evidence, pair) for name, pair in around.items() if pair is not None}
    frames = {name: frame for name, frame in every.items() if not frame.empty}
    if not frames:
        return None
    pairs = [frame.set_index(["layer", "source", "target"]).index for frame in frames.values()]
    tables = {}
    for (name, frame), own in zip(frames.items(), pairs, strict=True):
        frame["in both"] = len(frames) == 2 and own.isin(pairs[0]) & own.isin(pairs[1])
        before, after = around[name] or ("", "")
        said = words.caption("papers", f"table {name}", before=before, after=after, **facts)
        tables[name] = Table(frame, ".4f", said, shown=3 * settings.top)
    return Result(tables=tables)


def _top(evidence: Evidence, pair: tuple[str, str]) -> pd.DataFrame:
    settings = evidence.settings
    return evidence.sql(
        f"""
        SELECT layer + 1 AS layer,
               CAST(row_number() OVER ranking AS INTEGER) AS rank,
               source_token AS source, target_token AS target,
               sum / count AS amplification, count,
               sum_before / count AS before, sum_after / count AS after
        FROM (
            SELECT layer, source_id, target_id, source_token, target_token,
                   CAST(sum(count) AS BIGINT) AS count,
                   -- a sum of floats depends on its order
                   sum(sum ORDER BY relation) AS sum,
                   sum(sum_before ORDER BY relation) AS sum_before,
                   sum(sum_after ORDER BY relation) AS sum_after
            FROM amplification_pairs
            WHERE "before" = '{pair[0]}' AND "after" = '{pair[1]}'
            GROUP BY layer, source_id, target_id, source_token, target_token
        )
        WHERE count >= {settings.min_count}
        WINDOW ranking AS (
            PARTITION BY layer ORDER BY sum / count DESC, source_id, target_id)
        QUALIFY rank <= {settings.top}
        ORDER BY layer, rank
        """
    )


# Figure 10: the feed-forward block's output beside what bypasses it.


@experiment("papers", "norms", needs="masked")
def figure_10(evidence: Evidence) -> Result | None:
    """Compare ‖FF(x′)‖ with the norm of the vector that bypasses the block, per layer."""
    means = layer_means(evidence, "norms", ("ff_output_norm", "bypassed_norm"))
    if means.empty:
        return None
    ratio = means["ff_output_norm"] / means["bypassed_norm"]
    return Result(
        tables={"norms": Table(means.reset_index(), ".2f")},
        figures={"norms": Figure(lambda: _draw_figure_10(means))},
        summary={"‖FF output‖ ÷ ‖bypassed‖, mean over layers": float(ratio.mean())},
    )


def _draw_figure_10(means: pd.DataFrame) -> drawing.Drawing:
    labels = {"ff_output_norm": "FF's output", "bypassed_norm": "bypassed vector"}
    figure, axes = drawing.layer_lines(curves_of(means, labels), "mean norm")
    values = means[list(labels)]
    if values.max(axis=None) > 50 * values.min(axis=None) > 0:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.legend()
    return figure


# Figure 11: the dimensions that the feed-forward block writes into.


_SHOWN = 3  # layers whose dimensions are drawn


@experiment("papers", "dimensions", needs="masked")
def figure_11(evidence: Evidence) -> Result | None:
    """Average |value| per dimension of FF's input and output, with γ of the norm behind it."""
    values = evidence.sql(
        """
        SELECT layer + 1 AS layer, dimension, sum_input_abs / count AS input,
               sum_output_abs / count AS output, gamma, special
        FROM norms_dimensions ORDER BY layer, dimension
        """
    )
    if values.empty:
        return None
    shown = thinned(sorted(values["layer"].unique()), _SHOWN)
    drawn = values[values["layer"].isin(shown)]
    return Result(
        tables={"dimensions": Table(values, ".4f", shown=20)},
        figures={"dimensions": Figure(lambda: _draw_figure_11(drawn))},
        facts={"layers": layers_in_words(shown)},
    )


def _draw_figure_11(values: pd.DataFrame) -> drawing.Drawing:
    rows = [("input", "mean |FF input|"), ("output", "mean |FF output|")]
    rows += [("gamma", "γ of LN")] if values["gamma"].notna().any() else []
    layers = sorted(values["layer"].unique())
    figure, axes = drawing.panels(columns=len(layers), rows=len(rows), width=2.4, height=1.5)
    for panel, ((column, label), layer) in zip(axes, product(rows, layers), strict=True):
        some = values[values["layer"] == layer]
        special = some[some["special"]]
        panel.vlines(some["dimension"], 0, some[column], color="#b8b8b8", lw=0.5)
        panel.vlines(special["dimension"], 0, special[column], color=COLOURS[1], lw=0.9)
        panel.plot(special["dimension"], special[column], "o", color=COLOURS[1], ms=2)
        panel.margins(x=0.01)
        drawing.style(
            panel,
            x="dimension" if column == rows[-1][0] else "",
            y=label if layer == layers[0] else "",
            title=f"layer {layer} (counted from 1)" if column == "input" else "",
        )
    return figure


# Section 6.2: the map without the special dimensions.


@experiment("papers", "special-dimensions", needs="masked")
def section_6_2(evidence: Evidence) -> Result | None:
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
        tables={"special-dimensions": Table(means.reset_index(), ".3f")},
        figures={"special-dimensions": Figure(lambda: _draw_section_6_2(means))},
        comparisons=compare(measured, evidence),
        summary={"gain in ρ without special dimensions, mean over layers": float(gain.mean())},
    )


def _draw_section_6_2(means: pd.DataFrame) -> drawing.Drawing:
    labels = {"rho_with": "all dimensions", "rho_without": "without special dimensions"}
    figure, axes = drawing.layer_lines(curves_of(means, labels), "Spearman's ρ before / behind FF")
    drawing.correlation_limits(axes, float(means.min(axis=None)))
    axes.legend(loc="lower left")
    return figure
