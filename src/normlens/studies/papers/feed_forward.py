"""What the feed-forward block does: Kobayashi et al. 2024, Figures 9 to 11, Tables 2 and 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normlens.corpus.measures.tokens import feed_forward_pair, whole_block_pair
from normlens.errors import listed
from normlens.figures.canvas import COLOURS
from normlens.scopes import layers_in_words, shortest, thinned
from normlens.studies.papers.pair_samples import has_pairs
from normlens.studies.papers.published import Evidence, Experiment
from normlens.studies.papers.similarity import (
    RHO,
    draw_means,
    in_table_order,
    layer_means,
    rho_per_sequence,
    which_layers,
    with_intervals,
)
from normlens.studies.reports import words
from normlens.studies.reports.contents import Figure, Result, Table
from normlens.studies.reports.drawing import layer_ticks, legend, line, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Figure 9: what becomes of the feed-forward block's change. Kobayashi et al. 2024.


def cancellation(evidence: Evidence) -> Result | None:
    """Compare the map before the feed-forward block with every later one."""
    pair = feed_forward_pair(evidence.scopes)
    if pair is None:
        return None
    chain = [scope for scope in evidence.scopes if scope.endswith("-N")]
    later = chain[chain.index(pair[1]) :]
    names = shortest(evidence.scopes)
    pairs = [in_table_order(evidence, pair[0], scope) for scope in later]
    overall = with_intervals(evidence, rho_per_sequence(evidence, pairs, by_layer=False))
    by_layer = with_intervals(evidence, rho_per_sequence(evidence, pairs, by_layer=True))
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
                f"{RHO} between {pair[0]} and every later scope, per layer (Figure 9).",
                formats,
            )
        },
        figures={
            "similarity-from-before": Figure(
                lambda: _draw_cancellation(layers, pair[0]),
                f"Similarity of the map before the feed-forward block ({pair[0]}) with the maps "
                "behind each later component, per layer, with 95 % intervals (Figure 9).",
            )
        },
        sentences=_sentences(means, later, names, layers),
        summary={f"ρ of the map before FF and behind {names[s]}": v for s, v in means.items()},
    )


def _draw_cancellation(layers: pd.DataFrame, before: str) -> Drawing:
    figure, (axes,) = panels(width=4.2, height=2.7)
    for place, (through, rows) in enumerate(layers.groupby("through", sort=False)):
        name = f"behind {through}"
        line(axes, rows["layer"], rows["rho"], rows["low"], rows["high"], place, name)
    layer_ticks(axes, int(layers["layer"].max()))
    axes.set_ylim(min(0.0, layers["low"].min() - 0.03), 1.03)
    style(axes, x=words.LAYER, y=f"{RHO} with {before}")
    legend(axes, loc="lower left")
    return figure


def _sentences(
    means: dict[str, float], later: list[str], names: dict[str, str], layers: pd.DataFrame
) -> list[str]:
    first, last = later[0], later[-1]
    sentences = [
        "Beside the map before the feed-forward block, the map has a mean similarity of "
        + listed([f"{words.fixed(means[s])} behind {names[s]}" for s in later])
        + "."
    ]
    if len(later) > 1:
        rows = layers.pivot(index="layer", columns="scope", values="rho")
        back = rows.index[rows[last] > rows[first]]
        if len(back):
            sentences.append(
                f"What follows the block undoes part of its change in {layers_in_words(back)} of "
                f"{len(rows)}: the map at the end of the layer is nearer to the one before the "
                "block than the block's own output is."
            )
        else:
            sentences.append(
                "In no layer is the map at the end of the layer nearer to the one before the block "
                "than the block's own output is: nothing is undone."
            )
    return sentences


FIGURE_9 = Experiment(
    name="cancellation",
    title="What becomes of the feed-forward block's change",
    source="Kobayashi et al. 2024, section 4, Figure 9",
    question="Do the residual connection and the normalisation behind FF cancel its effect?",
    method="Spearman's ρ between the map before the block and the map behind each later part.",
    needs="masked",
    work=cancellation,
    absent="the feed-forward block stands beside the attention, so it mixes no tokens",
)


# Figure 10: the feed-forward block's output beside what bypasses it. Kobayashi et al. 2024.


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
                lambda: _draw_norms(means),
                "Mean norm of the feed-forward block's output and of the bypassed vector, per "
                "layer (Figure 10).",
            )
        },
        sentences=sentences,
        summary={"‖FF output‖ ÷ ‖bypassed‖, mean over layers": float(defined.mean())},
    )


def _draw_norms(means: pd.DataFrame) -> Drawing:
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


FIGURE_10 = Experiment(
    name="norms",
    title="The block's output beside what bypasses it",
    source="Kobayashi et al. 2024, section 6, Figure 10",
    question="Is the feed-forward block's output small beside the bypassed vector?",
    method="Mean norm over the tokens of a sequence, then over sequences.",
    needs="masked",
    work=norms,
    absent="the run has no norms of the feed-forward block",
)


# Figure 11: the dimensions that the feed-forward block writes into. Kobayashi et al. 2024.


_SHOWN = 3  # layers whose dimensions are drawn


def dimensions(evidence: Evidence) -> Result | None:
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
    layers = sorted(values["layer"].unique())
    share = values.groupby("layer").apply(_concentration, include_groups=False)
    has_gamma = values["gamma"].notna().any()
    peak = values.loc[values["output"].idxmax()]
    sentences = [
        f"The largest mean |value| of FF's output is {words.fixed(peak.output)}, in dimension "
        f"{peak.dimension} of layer {peak.layer}, {words.fixed(share.loc[peak.layer, 'peak'], 0)} "
        "times the median of that layer's dimensions."
    ]
    if has_gamma:
        alike = int((share["special_output"] > share["other_output"]).sum())
        sentences.append(
            "The dimensions with the lowest γ have the larger mean |value| of FF's output in "
            f"{alike} of {len(layers)} layers."
        )
    columns = ["layer", "dimension", "input", "output", "gamma", "special"]
    shown = thinned(layers, _SHOWN)
    return Result(
        tables={
            "dimensions": Table(
                values[columns],
                "Mean |value| of the feed-forward block's input and output per dimension, and γ "
                "of the normalisation behind it (Figure 11).",
                {"input": ".4f", "output": ".4f", "gamma": ".4f"},
                shown=20,
            )
        },
        figures={
            "dimensions": Figure(
                lambda: _draw_dimensions(values[values["layer"].isin(shown)], has_gamma),
                "Mean |value| per dimension of FF's input and output"
                + (", γ of LN behind FF, and the special dimensions" if has_gamma else "")
                + f", in {layers_in_words(shown)}, counted from 1 (Figure 11).",
            )
        },
        sentences=sentences,
    )


def _concentration(rows: pd.DataFrame) -> pd.Series:
    special = rows["special"].to_numpy(bool)
    output = rows["output"].to_numpy()
    middle = np.median(output)
    return pd.Series(
        {
            "peak": output.max() / middle if middle else np.nan,
            "special_output": output[special].mean() if special.any() else np.nan,
            "other_output": output[~special].mean() if (~special).any() else np.nan,
        }
    )


def _draw_dimensions(values: pd.DataFrame, has_gamma: bool) -> Drawing:
    rows = [("input", "mean |FF input|"), ("output", "mean |FF output|")]
    rows += [("gamma", "γ of LN")] if has_gamma else []
    layers = sorted(values["layer"].unique())
    figure, axes = panels(columns=len(layers), rows=len(rows), width=2.4, height=1.5)
    for place, panel in enumerate(axes):
        (column, label), layer = rows[place // len(layers)], layers[place % len(layers)]
        layer_values = values[values["layer"] == layer]
        panel.vlines(layer_values["dimension"], 0, layer_values[column], color="#b8b8b8", lw=0.5)
        special = layer_values[layer_values["special"]]
        panel.vlines(special["dimension"], 0, special[column], color=COLOURS[1], lw=0.9)
        panel.plot(special["dimension"], special[column], "o", color=COLOURS[1], ms=2)
        panel.margins(x=0.01)
        style(
            panel,
            x="dimension" if place // len(layers) == len(rows) - 1 else "",
            y=label if place % len(layers) == 0 else "",
            title=f"layer {layer} (counted from 1)" if place < len(layers) else "",
        )
    return figure


FIGURE_11 = Experiment(
    name="dimensions",
    title="Special dimensions",
    source="Kobayashi et al. 2024, section 6, Figure 11",
    question="Does FF write into few dimensions, and does the normalisation shrink those?",
    method=(
        "Mean |value| over all tokens of the corpus. Special dimensions are the 1 % with the "
        "lowest γ of the normalisation behind the block."
    ),
    needs="masked",
    work=dimensions,
    absent="the run has no statistics of dimensions",
)


# Tables 2 and 3: the pairs of subwords that are amplified most. Kobayashi et al. 2024.


def top_pairs(evidence: Evidence) -> Result | None:
    """List the most amplified pairs per layer, by FF and by all behind the first residual."""
    if not has_pairs(evidence):
        return None
    by_block = feed_forward_pair(evidence.scopes)
    by_all = whole_block_pair(evidence.scopes)
    wanted = {
        "amplified-by-ff": (by_block, "the feed-forward block", "Table 2"),
        "amplified-by-layer": (by_all, "everything behind the first residual", "Table 3"),
    }
    frames = {
        name: _top(evidence, pair) for name, (pair, _, _) in wanted.items() if pair is not None
    }
    frames = {name: frame for name, frame in frames.items() if len(frame)}
    if not frames:
        return None
    overlap = _overlap(list(frames.values()))
    for frame in frames.values():
        frame["in both"] = _keys(frame).isin(overlap)
    tables = {
        name: Table(
            frame.rename(columns={"source_token": "source", "target_token": "target"}),
            f"The {evidence.settings.top} ordered pairs of subwords that {what} amplifies most, "
            f"per layer ({table}): mean amplification, how often the pair occurs (at least "
            f"{evidence.settings.min_count} times), and its mean share of the source's column "
            f"before ({pair[0]}) and after ({pair[1]}).",
            {"amplification": ".4f", "before": ".4f", "after": ".4f"},
            shown=3 * evidence.settings.top,
        )
        for name, (pair, what, table) in wanted.items()
        if pair is not None and name in frames
        for frame in [frames[name]]
    }
    sentences = [
        _strongest(frames[name], what) for name, (_, what, _) in wanted.items() if name in frames
    ]
    if len(frames) == 2:
        size = min(len(frame) for frame in frames.values())
        sentences.append(
            f"{len(overlap)} of {size} pairs are among the most amplified of their layer in both "
            "tables."
        )
    return Result(tables=tables, sentences=sentences)


def _top(evidence: Evidence, pair: tuple[str, str]) -> pd.DataFrame:
    settings = evidence.settings
    return evidence.sql(
        f"""
        SELECT layer + 1 AS layer,
               CAST(row_number() OVER ranking AS INTEGER) AS rank,
               source_token, target_token,
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


def _keys(frame: pd.DataFrame) -> pd.Series:
    return pd.Series(
        list(zip(frame["layer"], frame["source_token"], frame["target_token"], strict=True)),
        index=frame.index,
    )


def _overlap(frames: list[pd.DataFrame]) -> set[tuple[int, str, str]]:
    if len(frames) < 2:
        return set()
    return set(_keys(frames[0])) & set(_keys(frames[1]))


def _strongest(frame: pd.DataFrame, what: str) -> str:
    row = frame.loc[frame["amplification"].idxmax()]
    return (
        f"Of all layers, {what} amplifies ({row.source_token} → {row.target_token}) most, in layer "
        f"{row.layer}: from {words.fixed(row.before, 3)} to {words.fixed(row.after, 3)} of the "
        f"source's column ({row['count']} occurrences)."
    )


TABLES_2_3 = Experiment(
    name="amplified-pairs",
    title="Which pairs are amplified most",
    source="Kobayashi et al. 2024, section 5, Tables 2 and 3",
    question="Which pairs of subwords does the feed-forward block bring together?",
    method=(
        "FF-amp: both maps scaled so that each column (one source) sums to 1, then after minus "
        "before, averaged over all occurrences of an ordered pair of subwords; a token's "
        "relation to itself is left out, special tokens stay in."
    ),
    needs="plain",
    work=top_pairs,
    absent=(
        "the run has no amplification tables, no pair occurs often enough, or the feed-forward "
        "block stands beside the attention"
    ),
)
