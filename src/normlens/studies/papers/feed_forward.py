"""What the feed-forward block does: Kobayashi et al. 2024, Figures 9 to 11, Tables 2 and 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from normlens.corpus.measures.tokens import feed_forward_pair, whole_block_pair
from normlens.figures.canvas import COLOURS
from normlens.scopes import layers_in_words, shortest, thinned
from normlens.studies.papers.pair_samples import has_pairs
from normlens.studies.papers.published import Evidence, Experiment
from normlens.studies.papers.similarity import (
    FORMATS,
    RHO,
    curves_of,
    layer_means,
    similarities,
)
from normlens.studies.reports.contents import Figure, Result, Table
from normlens.studies.reports.drawing import correlation_limits, layer_lines, legend, panels, style

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
    overall, by_layer = similarities(evidence, [(pair[0], scope) for scope in later])
    layers = pd.concat(
        [
            frame.assign(scope=scope, through=names[scope])
            for scope, frame in zip(later, by_layer, strict=True)
        ],
        ignore_index=True,
    )[["through", "scope", "layer", "rho", "low", "high"]]
    return Result(
        tables={
            "similarity-from-before": Table(
                layers,
                f"{RHO} between {pair[0]} and every later scope, per layer (Figure 9).",
                FORMATS,
            )
        },
        figures={
            "similarity-from-before": Figure(
                lambda: _draw_cancellation(layers, pair[0]),
                f"Similarity of the map before the feed-forward block ({pair[0]}) with the maps "
                "behind each later component, per layer, with 95 % intervals (Figure 9).",
            )
        },
        sentences=[
            "Where ρ rises behind a later component, that component undoes part of the block's "
            "change."
        ],
        summary={
            f"ρ of the map before FF and behind {names[scope]}": rho
            for scope, rho in zip(later, overall["rho"].tolist(), strict=True)
        },
    )


def _draw_cancellation(layers: pd.DataFrame, before: str) -> Drawing:
    curves = {
        f"behind {through}": rows[["layer", "rho", "low", "high"]]
        for through, rows in layers.groupby("through", sort=False)
    }
    figure, axes = layer_lines(curves, f"{RHO} with {before}", width=4.2, height=2.7)
    correlation_limits(axes, layers["low"].min())
    legend(axes, loc="lower left")
    return figure


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
    ratio = means["ff_output_norm"] / means["bypassed_norm"]
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
        sentences=["The longer of two vectors that are added counts for more in their sum."],
        summary={"‖FF output‖ ÷ ‖bypassed‖, mean over layers": float(ratio.mean())},
    )


def _draw_norms(means: pd.DataFrame) -> Drawing:
    labels = {"ff_output_norm": "FF's output", "bypassed_norm": "bypassed vector"}
    figure, axes = layer_lines(curves_of(means, labels), "mean norm")
    values = means[list(labels)]
    if values.max(axis=None) > 50 * values.min(axis=None) > 0:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
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
    has_gamma = values["gamma"].notna().any()
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
        sentences=["A dimension with a large output and a low γ is one that LN shrinks again."],
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
    scopes, settings = evidence.scopes, evidence.settings
    tables: dict[str, Table] = {}
    for name, pair, what, source in (
        ("amplified-by-ff", feed_forward_pair(scopes), "the feed-forward block", "Table 2"),
        (
            "amplified-by-layer",
            whole_block_pair(scopes),
            "everything behind the first residual",
            "Table 3",
        ),
    ):
        if pair is None or (frame := _top(evidence, pair)).empty:
            continue
        tables[name] = Table(
            frame,
            f"The {settings.top} ordered pairs of subwords that {what} amplifies most, per layer "
            f"({source}): mean amplification, how often the pair occurs (at least "
            f"{settings.min_count} times), and its mean share of the source's column before "
            f"({pair[0]}) and after ({pair[1]}).",
            {"amplification": ".4f", "before": ".4f", "after": ".4f"},
            shown=3 * settings.top,
        )
    if not tables:
        return None
    frames = [table.frame for table in tables.values()]
    pairs = [frame.set_index(["layer", "source", "target"]).index for frame in frames]
    for frame, own in zip(frames, pairs, strict=True):
        frame["in both"] = len(frames) == 2 and own.isin(pairs[0]) & own.isin(pairs[1])
    return Result(
        tables=tables,
        sentences=[
            "A source is what a target draws from; “in both” marks pairs that are among the most "
            "amplified of their layer in both tables."
        ],
    )


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
