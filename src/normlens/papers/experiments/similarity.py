"""How much each component changes the map: Kobayashi et al. 2024, section 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normlens.analysis.bootstrap import mean_intervals
from normlens.corpus.measures.scope_pairs import feed_forward_pair, whole_block_pair
from normlens.layers import layers_in_words
from normlens.papers import words
from normlens.papers.base import Evidence, Experiment, Figure, Result, Table
from normlens.papers.drawing import COLOURS, SMALL, layer_ticks, legend, line, panels, style
from normlens.papers.published import compare
from normlens.scopes import Step, consecutive, shortest
from normlens.wording import listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_RHO = "Spearman's ρ"


def _steps(evidence: Evidence) -> list[Step]:
    return consecutive(evidence.scopes)


def _quoted(scope: str) -> str:
    return f"'{scope}'"


def _pairs_sql(pairs: list[tuple[str, str]]) -> str:
    listed = ", ".join(f"({_quoted(a)}, {_quoted(b)})" for a, b in pairs)
    return f"(scope_a, scope_b) IN ({listed})"


def _ordered(evidence: Evidence, a: str, b: str) -> tuple[str, str]:
    """Two scopes in the order in which the table names them."""
    scopes = evidence.scopes
    return (a, b) if scopes.index(a) < scopes.index(b) else (b, a)


def _per_sequence(evidence: Evidence, pairs: list[tuple[str, str]], by_layer: bool) -> pd.DataFrame:
    """ρ of every sequence, (sequences, pairs), or (sequences, (pair, layer)); layers from 1."""
    keys = ["scope_a", "scope_b", *(["layer"] if by_layer else [])]
    columns = ", ".join("layer + 1 AS layer" if key == "layer" else key for key in keys)
    found = evidence.sql(
        f'SELECT "index", {columns}, avg(rho) AS rho FROM similarity WHERE {_pairs_sql(pairs)} '
        "GROUP BY ALL"
    )
    return found.pivot_table(index="index", columns=keys, values="rho", dropna=False)


def _with_intervals(evidence: Evidence, rho: pd.DataFrame) -> pd.DataFrame:
    """Mean over sequences of each column, with its 95 % bootstrap interval."""
    settings = evidence.settings
    mean, low, high = mean_intervals(
        rho.to_numpy(np.float64), resamples=settings.resamples, seed=settings.seed
    )
    return pd.DataFrame({"rho": mean, "low": low, "high": high}, index=rho.columns)


# Table 1 and Figure 5 --------------------------------------------------------------------------


def steps(evidence: Evidence) -> Result | None:
    """Each scope beside the one before it."""
    chain = _steps(evidence)
    if not chain:
        return None
    pairs = [_ordered(evidence, step.before, step.after) for step in chain]
    overall = _with_intervals(evidence, _per_sequence(evidence, pairs, by_layer=False))
    by_layer = _with_intervals(evidence, _per_sequence(evidence, pairs, by_layer=True))
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
                f"{_RHO} between the maps before and after each component, averaged over layers "
                "and sequences, with the 95 % bootstrap interval over sequences (Table 1).",
                formats,
            ),
            "similarity-layers": Table(
                layers,
                f"{_RHO} before and after each component, per layer (Figure 5).",
                formats,
            ),
        },
        figures={
            "similarity": Figure(
                lambda: _draw_steps(table),
                "Similarity of the maps before and after each component, averaged over layers "
                "and sequences: the lower, the more the component changes the map (Table 1).",
            ),
            "similarity-layers": Figure(
                lambda: _draw_layers(layers, late),
                f"Similarity before and after {listed(late)}, per layer, with 95 % "
                "intervals (Figure 5).",
            ),
        },
        sentences=_step_sentences(table, layers, late),
        comparisons=[
            *compare("table1/", measured, evidence.model, evidence.data),
            *compare("figure5/", measured, evidence.model, evidence.data),
        ],
        summary={f"ρ before and after {row.component}": row.rho for row in table.itertuples()},
    )


def _from_feed_forward(chain: list[Step], evidence: Evidence) -> list[str]:
    """The components from the feed-forward block on; all of them where there is none."""
    pair = feed_forward_pair(evidence.scopes)
    after = [step.after for step in chain]
    begin = after.index(pair[1]) if pair else 0
    return [step.component for step in chain[begin:]]


def _draw_steps(table: pd.DataFrame) -> Drawing:
    figure, (axes,) = panels(width=3.6, height=2.4)
    places = np.arange(len(table))
    axes.bar(places, table["rho"], width=0.62, color=COLOURS[0])
    error = [table["rho"] - table["low"], table["high"] - table["rho"]]
    axes.errorbar(places, table["rho"], yerr=error, fmt="none", ecolor="#1a1a1a", elinewidth=0.8)
    for place, value in zip(places, table["rho"], strict=True):
        axes.text(place, max(value, 0) + 0.03, f"{value:.2f}", ha="center", fontsize=SMALL)
    axes.set_xticks(places, table["component"])
    axes.set_ylim(min(0.0, table["rho"].min() - 0.05), 1.1)
    style(axes, x="component", y=f"{_RHO} before / after")
    return figure


def _draw_layers(layers: pd.DataFrame, components: list[str]) -> Drawing:
    figure, axes = panels(columns=len(components), width=2.3, height=2.2, sharey=True)
    for place, (panel, component) in enumerate(zip(axes, components, strict=True)):
        rows = layers[layers["component"] == component]
        line(panel, rows["layer"], rows["rho"], rows["low"], rows["high"], place)
        layer_ticks(panel, int(layers["layer"].max()))
        panel.set_ylim(min(0.0, layers["low"].min() - 0.03), 1.03)
        style(
            panel,
            x=words.LAYER,
            y=_RHO if not place else "",
            title=f"({'abcdefgh'[place]}) {component}",
        )
    return figure


def _step_sentences(table: pd.DataFrame, layers: pd.DataFrame, late: list[str]) -> list[str]:
    ranked = table.sort_values("rho")
    least, most = ranked.iloc[-1], ranked.iloc[0]
    found = [
        f"Averaged over layers and sequences, {most.component} changes the map most "
        f"(ρ = {words.number(most.rho)}) and {least.component} least (ρ = "
        f"{words.number(least.rho)})."
    ]
    parts = []
    for component in late:
        rows = layers[layers["component"] == component].set_index("layer")["rho"].dropna()
        if len(rows) > 1:
            parts.append(
                f"{component} most in layer {rows.idxmin()} (ρ = {words.number(rows.min())}) and "
                f"least in layer {rows.idxmax()} ({words.number(rows.max())})"
            )
    if parts:
        found.append(f"By layer, the map is changed by {'; by '.join(parts)}.")
    third = int(layers["layer"].max()) // 3
    if third:
        last = int(layers["layer"].max())
        trends = []
        for component in late:
            rows = layers[layers["component"] == component].set_index("layer")["rho"]
            early, end = rows.loc[:third].mean(), rows.loc[last - third + 1 :].mean()
            word = "more" if end < early else "less"
            trends.append(
                f"{component} changes it {word} (mean ρ {words.number(end)} against "
                f"{words.number(early)})"
            )
        found.append(
            f"In the last {third} layer{'s' * (third > 1)}, compared with the first "
            f"{third if third > 1 else ''}".rstrip()
            + f": {listed(trends)}."
        )
    return found


# Figure 9 --------------------------------------------------------------------------------------


def cancellation(evidence: Evidence) -> Result | None:
    """The map before the feed-forward block beside every later one."""
    pair = feed_forward_pair(evidence.scopes)
    if pair is None:
        return None
    chain = [scope for scope in evidence.scopes if scope.endswith("-N")]
    later = chain[chain.index(pair[1]) :]
    names = shortest(evidence.scopes)
    pairs = [_ordered(evidence, pair[0], scope) for scope in later]
    overall = _with_intervals(evidence, _per_sequence(evidence, pairs, by_layer=False))
    by_layer = _with_intervals(evidence, _per_sequence(evidence, pairs, by_layer=True))
    frames = [
        by_layer.loc[key].reset_index().assign(scope=scope, through=names[scope])
        for key, scope in zip(pairs, later, strict=True)
    ]
    layers = pd.concat(frames, ignore_index=True)
    layers = layers[["through", "scope", "layer", "rho", "low", "high"]]
    means = {scope: float(overall.loc[key, "rho"]) for key, scope in zip(pairs, later, strict=True)}
    formats = {"rho": ".3f", "low": ".3f", "high": ".3f"}
    return Result(
        tables={
            "similarity-from-before": Table(
                layers,
                f"{_RHO} between {pair[0]} and every later scope, per layer (Figure 9).",
                formats,
            )
        },
        figures={
            "similarity-from-before": Figure(
                lambda: _draw_lines(layers, pair[0]),
                f"Similarity of the map before the feed-forward block ({pair[0]}) with the maps "
                "behind each later component, per layer, with 95 % intervals (Figure 9).",
            )
        },
        sentences=_cancellation_sentences(means, later, names, layers),
        summary={f"ρ of the map before FF and behind {names[s]}": v for s, v in means.items()},
    )


def _draw_lines(layers: pd.DataFrame, before: str) -> Drawing:
    figure, (axes,) = panels(width=4.2, height=2.7)
    for place, (through, rows) in enumerate(layers.groupby("through", sort=False)):
        name = f"behind {through}"
        line(axes, rows["layer"], rows["rho"], rows["low"], rows["high"], place, name)
    layer_ticks(axes, int(layers["layer"].max()))
    axes.set_ylim(min(0.0, layers["low"].min() - 0.03), 1.03)
    style(axes, x=words.LAYER, y=f"{_RHO} with {before}")
    legend(axes, loc="lower left")
    return figure


def _cancellation_sentences(
    means: dict[str, float], later: list[str], names: dict[str, str], layers: pd.DataFrame
) -> list[str]:
    first, last = later[0], later[-1]
    found = [
        "Beside the map before the feed-forward block, the map has a mean similarity of "
        + listed([f"{words.number(means[s])} behind {names[s]}" for s in later])
        + "."
    ]
    if len(later) > 1:
        rows = layers.pivot(index="layer", columns="scope", values="rho")
        back = rows.index[rows[last] > rows[first]]
        if len(back):
            found.append(
                f"What follows the block undoes part of its change in {layers_in_words(back)} of "
                f"{len(rows)}: the map at the end of the layer is nearer to the one before the "
                "block than the block's own output is."
            )
        else:
            found.append(
                "In no layer is the map at the end of the layer nearer to the one before the block "
                "than the block's own output is: nothing is undone."
            )
    return found


# Figure 12 -------------------------------------------------------------------------------------


def matrix(evidence: Evidence) -> Result | None:
    """Every scope beside every other."""
    found = evidence.sql("SELECT scope_a, scope_b, avg(rho) AS rho FROM similarity GROUP BY ALL")
    scopes = evidence.scopes
    square = pd.DataFrame(np.eye(len(scopes)), index=scopes, columns=scopes)
    for row in found.itertuples():
        square.loc[row.scope_a, row.scope_b] = square.loc[row.scope_b, row.scope_a] = row.rho
    pair = whole_block_pair(scopes)
    sentences, summary, comparisons = [], {}, []
    if pair is not None:
        rho = float(square.loc[pair[0], pair[1]])
        sentences = [
            f"The map behind the first residual ({pair[0]}) and that of the whole layer "
            f"({pair[1]}) have a mean similarity of {words.number(rho, 3)}."
        ]
        summary = {"ρ of ATTNRES and the whole layer": rho}
        comparisons = compare(
            "figure12/", {"figure12/RES1~LN2": rho}, evidence.model, evidence.data
        )
    off = found.sort_values("rho")
    sentences.append(
        f"Least alike of all are {off.iloc[0].scope_a} and {off.iloc[0].scope_b} (ρ = "
        f"{words.number(off.iloc[0].rho)}), most alike {off.iloc[-1].scope_a} and "
        f"{off.iloc[-1].scope_b} ({words.number(off.iloc[-1].rho)})."
    )
    return Result(
        tables={
            "similarity-matrix": Table(
                square.rename_axis("scope").reset_index(),
                f"{_RHO} between all scopes, averaged over layers and sequences (Figure 12).",
                dict.fromkeys(scopes, ".2f"),
            )
        },
        figures={
            "similarity-matrix": Figure(
                lambda: _draw_matrix(square),
                f"{_RHO} between the maps of all scopes, averaged over layers and sequences "
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
    bar = figure.colorbar(image, ax=axes, shrink=0.7, label=_RHO)
    bar.ax.tick_params(labelsize=SMALL)
    bar.set_label(_RHO, fontsize=SMALL)
    return figure


_SOURCE = "Kobayashi et al. 2024, section 4"
EXPERIMENTS = (
    Experiment(
        name="similarity",
        title="How much each component changes the map",
        source=f"{_SOURCE}, Table 1 and Figure 5",
        question="By how much does each component of a layer change the attribution map?",
        method=(
            "Spearman's ρ (ties by average rank) between the maps before and after a component, "
            "over all pairs of tokens that the attention allows, for each layer and sequence; then "
            "the mean. Intervals: percentile bootstrap over sequences."
        ),
        needs="masked",
        work=steps,
        absent="the model has no two scopes that follow each other",
    ),
    Experiment(
        name="cancellation",
        title="What becomes of the feed-forward block's change",
        source=f"{_SOURCE}, Figure 9",
        question="Do the residual connection and the normalisation behind FF cancel its effect?",
        method="Spearman's ρ between the map before the block and the map behind each later part.",
        needs="masked",
        work=cancellation,
        absent="the feed-forward block stands beside the attention, so it mixes no tokens",
    ),
    Experiment(
        name="scopes",
        title="All scopes beside each other",
        source=f"{_SOURCE}, Figure 12",
        question="Which points of a layer have similar maps?",
        method="Spearman's ρ between the maps of every two scopes, averaged as above.",
        needs="masked",
        work=matrix,
    ),
)
