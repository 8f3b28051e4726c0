"""Section 4: how much of a token's vector comes from other tokens. Kobayashi et al. 2021."""

from __future__ import annotations

import numpy as np
import pandas as pd

from normlens.corpus.measures.tokens import CATEGORIES
from normlens.errors import listed
from normlens.measures.bootstrap import mean_intervals
from normlens.papers.base import Evidence, Experiment
from normlens.papers.kobayashi2021.mixing_heat_map import draw_grid
from normlens.papers.kobayashi2021.mixing_table import (
    FIRST_TOKEN,
    attention_block,
    category_names,
    has_mixing,
    in_model_order,
)
from normlens.papers.published import compare
from normlens.reports import words
from normlens.reports.base import Figure, Result, Table

MEAN, LOW, HIGH = "mean", "95 % low", "95 % high"
LAYER_MAX, LAYER_MIN = "highest layer mean", "lowest layer mean"
TOKEN_MAX, TOKEN_MIN = "highest token", "lowest token"


def mixing(evidence: Evidence) -> Result | None:
    """Take mean, maximum and minimum per method, and means per layer and category of tokens."""
    if not has_mixing(evidence):
        return None
    cells = evidence.sql(
        "SELECT scope, layer + 1 AS layer, category, count(*) AS tokens, sum(ratio) AS total, "
        "min(ratio) AS low, max(ratio) AS high FROM mixing WHERE NOT isnan(ratio) GROUP BY ALL"
    )
    scopes = in_model_order(evidence, set(cells["scope"]))
    if not scopes:
        return None
    names = category_names(evidence)
    layers = _means(cells, ["scope", "layer"]).unstack("layer").loc[scopes]
    table = _table(evidence, cells, layers, scopes)
    grid = _grid(cells, scopes, names)
    means = dict(zip(table["method"], table[MEAN], strict=True))
    measured = {
        f"{group}/{scope}": value
        for scope, value in means.items()
        for group in ("mixing", "mixing-poster")
    }
    per_cent = dict.fromkeys(list(table)[1:], ".2f")
    return Result(
        tables={
            "mixing": Table(
                table,
                "Mixing ratio per method in per cent: the mean over all tokens and layers with "
                "its 95 % bootstrap interval over sequences; the highest and lowest of the layers' "
                "means; the highest and lowest value of a single token in a layer.",
                per_cent,
            ),
            "mixing-layers": Table(
                grid,
                "Mixing ratio per method and layer in per cent, for each category of tokens.",
                dict.fromkeys(list(grid)[2:], ".1f"),
            ),
        },
        figures={
            "mixing": Figure(
                lambda: draw_grid(grid, scopes),
                "Mixing ratio (per cent) per layer and "
                + (
                    "category of tokens, one panel per method."
                    if len(grid.columns) > 3
                    else "method."
                ),
            )
        },
        sentences=[
            *_sentences(table, layers, cells, scopes, names),
            *([FIRST_TOKEN] if evidence.model["causal"] else []),
        ],
        comparisons=[
            *compare("mixing/", measured, evidence.model, evidence.data),
            *compare("mixing-poster/", measured, evidence.model, evidence.data),
        ],
        summary={f"Mean mixing ratio, {scope} (%)": value for scope, value in means.items()},
    )


def _means(cells: pd.DataFrame, keys: list[str]) -> pd.Series:
    """Average the ratio, in per cent, over the tokens of each group."""
    sums = cells.groupby(keys)[["total", "tokens"]].sum()
    return 100 * sums["total"] / sums["tokens"]


def _table(
    evidence: Evidence, cells: pd.DataFrame, layers: pd.DataFrame, scopes: list[str]
) -> pd.DataFrame:
    single = cells.groupby("scope").agg(low=("low", "min"), high=("high", "max")).loc[scopes]
    mean, low, high = _intervals(evidence, scopes)
    return pd.DataFrame(
        {
            "method": scopes,
            MEAN: mean,
            LOW: low,
            HIGH: high,
            LAYER_MAX: layers.max(axis=1).to_numpy(),
            LAYER_MIN: layers.min(axis=1).to_numpy(),
            TOKEN_MAX: 100 * single["high"].to_numpy(),
            TOKEN_MIN: 100 * single["low"].to_numpy(),
        }
    )


def _intervals(evidence: Evidence, scopes: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Average over all tokens and layers (per cent), with the bootstrap interval over sequences.

    With s and c a sequence's sum and count, the mean is R = Σs / Σc, a ratio of two sums. Its
    linear form ``R + (s − R c) / mean(c)``, whose mean is R, is resampled: long and short sequences
    then weigh as in R itself. Davison and Hinkley 1997, section 2.7.
    """
    sums = evidence.sql(
        'SELECT "index", scope, sum(ratio) AS total, count(*) AS tokens FROM mixing '
        "WHERE NOT isnan(ratio) GROUP BY ALL"
    )
    total, tokens = (
        sums.pivot(index="index", columns="scope", values=name)[scopes].fillna(0).to_numpy(float)
        for name in ("total", "tokens")
    )
    ratio = total.sum(axis=0) / tokens.sum(axis=0)
    linear = ratio + (total - ratio * tokens) / tokens.mean(axis=0)
    settings = evidence.settings
    return mean_intervals(100 * linear, resamples=settings.resamples, seed=settings.seed)


def _grid(cells: pd.DataFrame, scopes: list[str], names: dict[str, str]) -> pd.DataFrame:
    """Build the grid: rows by method and layer, columns for all tokens and each category."""
    present = [name for name in CATEGORIES if name in set(cells["category"])]
    wide = _means(cells, ["scope", "layer", "category"]).unstack("category")[present]
    wide = wide.rename(columns=names)
    if len(present) > 1:
        wide.insert(0, "all", _means(cells, ["scope", "layer"]))
    wide = wide.reset_index().rename(columns={"scope": "method"})
    order = wide["method"].map(scopes.index)
    wide.columns.name = None
    return (
        wide.assign(order=order)
        .sort_values(["order", "layer"], ignore_index=True)
        .drop(columns="order")
    )


def _sentences(
    table: pd.DataFrame,
    layers: pd.DataFrame,
    cells: pd.DataFrame,
    scopes: list[str],
    names: dict[str, str],
) -> list[str]:
    mean = table.set_index("method")[MEAN]
    last = attention_block(scopes) if any(s.endswith("-N") for s in scopes) else scopes[-1]
    shown = [scope for scope in dict.fromkeys(("ATTN-W", "ATTN-N", last)) if scope in scopes]
    sentences = [
        "On average over tokens and layers, other tokens have a share of "
        + listed([f"{words.fixed(mean[s], 1)} % ({s})" for s in shown])
        + "."
    ]
    if scopes[-1] not in shown:
        sentences.append(
            f"At the end of the layer ({scopes[-1]}) it is {words.fixed(mean[scopes[-1]], 1)} %."
        )
    row = layers.loc[last]
    if len(row) > 1:
        sentences.append(
            f"By {last}, tokens are mixed most in layer {row.idxmax()} "
            f"({words.fixed(row.max(), 1)} %) and least in layer {row.idxmin()} "
            f"({words.fixed(row.min(), 1)} %)."
        )
    by_category = _means(cells[cells["scope"] == last], ["category"]).sort_values()
    if len(by_category) > 1:
        least, most = (_tokens(names, str(by_category.index[k])) for k in (0, -1))
        sentences.append(
            f"Of the categories of tokens, {most} mix most by {last} "
            f"({words.fixed(by_category.iloc[-1], 1)} %) and {least} least "
            f"({words.fixed(by_category.iloc[0], 1)} %)."
        )
    return sentences


def _tokens(names: dict[str, str], category: str) -> str:
    return f"{names[category]} tokens"


EXPERIMENT = Experiment(
    name="mixing",
    title="Mixing ratio",
    source="Kobayashi et al. 2021, section 4",
    question="How much of a token's vector comes from other tokens, and how much from itself?",
    method=(
        "Mixing ratio ‖Σ_{j≠i} F_i(x_j)‖ / (‖Σ_{j≠i} F_i(x_j)‖ + ‖F_i(x_i)‖) of every token in "
        "every layer: the norm of the other tokens' sum, not a sum of norms. ATTN-W: one minus "
        "the head mean of the token's weight on itself; ATTNRES-W: half of that. Every token "
        "of every layer counts the same in the mean. Intervals: percentile bootstrap over "
        "sequences of the (linearised) mean over tokens."
    ),
    needs="masked",
    work=mixing,
    absent="the run has no mixing ratios; add the measure mixing",
)
