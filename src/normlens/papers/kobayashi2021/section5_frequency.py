"""Section 5: mixing ratio against the frequency of the subword. Kobayashi et al. 2021."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from normlens.measures.ranks import spearman_matrix
from normlens.papers.base import Evidence, Experiment
from normlens.papers.kobayashi2021.frequency_ranks import subword_ranks
from normlens.papers.kobayashi2021.frequency_scatter import (
    COLUMNS,
    KINDS,
    draw,
    drawn_scopes,
)
from normlens.papers.kobayashi2021.mixing_table import (
    FIRST_TOKEN,
    attention_block,
    has_mixing,
    in_model_order,
)
from normlens.papers.published import compare
from normlens.reports import words
from normlens.reports.base import Figure, Result, Table

#: Occurrences in the scatter plot, about.
_POINTS = 20_000


def frequency(evidence: Evidence) -> Result | None:
    """Correlate mixing ratio and frequency rank per method, over occurrences and over types."""
    if not has_mixing(evidence):
        return None
    groups = {kind: _groups(evidence, where) for kind, where in KINDS.items()}
    scopes = in_model_order(evidence, set(groups["ordinary"]["scope"]))
    if not scopes:
        return None
    ranks, unranked = subword_ranks(evidence, groups["all"])
    table = _table(groups, scopes, ranks)
    occurrences = int(groups["all"].loc[groups["all"]["scope"] == scopes[0], "occurrences"].sum())
    measured = {
        f"frequency/{kind}/{row['method']}": float(row[COLUMNS[kind, "occurrences"]])
        for _, row in table.iterrows()
        for kind in KINDS
    }
    origin = (
        "ranks of the subwords in this corpus"
        if evidence.settings.ranks is None
        else f"ranks from {Path(evidence.settings.ranks).name}"
    )
    drawn = drawn_scopes(scopes)
    share = min(1.0, _POINTS / occurrences)
    sample = "" if share == 1 else f" About {_POINTS:,} of {occurrences:,} occurrences are drawn."
    return Result(
        tables={
            "frequency": Table(
                table,
                "Spearman's ρ between mixing ratio and frequency rank (rank 1: most frequent; "
                f"{origin}). The first two columns are over occurrences of tokens, as in the "
                "paper, the last two over types of subwords (mean over their occurrences). Masked "
                "tokens are left out.",
                dict.fromkeys(COLUMNS.values(), ".3f"),
            )
        },
        figures={
            "frequency": Figure(
                lambda: draw(evidence, drawn, ranks, table, share),
                "Mixing ratio (mean over layers) of token occurrences against the frequency rank "
                f"of their subword ({origin}), with the median over bins of rank (black line)."
                + sample,
            )
        },
        sentences=[
            *_sentences(table, scopes, groups, unranked),
            *([FIRST_TOKEN] if evidence.model["causal"] else []),
        ],
        # The published figures have ranks from BERT's training data.
        comparisons=[
            replace(comparison, same=comparison.same and evidence.settings.ranks is not None)
            for part in ("all", "ordinary")
            for comparison in compare(f"frequency/{part}/", measured, evidence.model, evidence.data)
        ],
        summary={
            f"ρ of mixing ratio and frequency rank, {row['method']}": float(
                row[COLUMNS["ordinary", "occurrences"]]
            )
            for _, row in table.iterrows()
        },
    )


def _groups(evidence: Evidence, where: str) -> pd.DataFrame:
    """Count each method's subwords, with their mean ratio and sums of the occurrences' ranks.

    `place` is an occurrence's average rank by its ratio among all of its method, less their mean.
    Spearman's ρ with anything that depends on the subword alone follows from these sums. Ratios are
    rounded to ten digits: the order in which a mean over layers was summed must not break ties.
    """
    return evidence.sql(
        f"""
        WITH occurrence AS (
            SELECT scope, any_value(token_id) AS token_id, round(avg(ratio), 10) AS ratio
            FROM mixing WHERE {where} AND NOT isnan(ratio) GROUP BY scope, "index", position
        ), placed AS (
            SELECT scope, token_id, ratio,
                rank() OVER (PARTITION BY scope ORDER BY ratio)
                + (count(*) OVER (PARTITION BY scope, ratio) - 1) / 2.0
                - (count(*) OVER (PARTITION BY scope) + 1) / 2.0 AS place
            FROM occurrence
        )
        SELECT scope, token_id, count(*) AS occurrences, round(avg(ratio), 10) AS ratio,
            sum(place) AS place, sum(place * place) AS square
        FROM placed GROUP BY scope, token_id ORDER BY scope, token_id
        """
    )


def _table(groups: dict[str, pd.DataFrame], scopes: list[str], ranks: pd.Series) -> pd.DataFrame:
    rows = []
    for scope in scopes:
        row: dict[str, Any] = {"method": scope}
        for (kind, over), name in COLUMNS.items():
            subwords = groups[kind][groups[kind]["scope"] == scope]
            rank = ranks.loc[subwords["token_id"]].to_numpy()
            if over == "occurrences":
                row[name] = _grouped_spearman(subwords, rank)
            else:
                row[name] = spearman_matrix(np.stack([subwords["ratio"].to_numpy(), rank]))[0, 1]
        rows.append(row)
    return pd.DataFrame(rows)


def _grouped_spearman(groups: pd.DataFrame, rank: np.ndarray) -> float:
    """Spearman's ρ of ratio and rank over occurrences; NaN where one of them is constant."""
    counts = groups["occurrences"].to_numpy()
    _, inverse = np.unique(rank, return_inverse=True)
    tied = np.bincount(inverse, weights=counts)
    place = (np.cumsum(tied) - (tied + counts.sum()) / 2)[inverse]  # average rank, less the mean
    squares = float((counts * place**2).sum()) * float(groups["square"].sum())
    if squares == 0:
        return math.nan
    return float((place * groups["place"].to_numpy()).sum()) / math.sqrt(squares)


def _sentences(
    table: pd.DataFrame,
    scopes: list[str],
    groups: dict[str, pd.DataFrame],
    unranked: int,
) -> list[str]:
    number = words.number
    everything, ordinary = (COLUMNS[kind, "occurrences"] for kind in KINDS)
    subwords = groups["ordinary"][groups["ordinary"]["scope"] == scopes[0]]
    rho = table.set_index("method")
    chain = any(scope.endswith("-N") for scope in scopes)
    scope = attention_block(scopes) if chain else scopes[-1]
    value = rho.loc[scope, ordinary]
    special = len(groups["all"]) > len(groups["ordinary"])
    beside = f" ({number(rho.loc[scope, everything])} with special tokens)" if special else ""
    sentences = []
    if math.isfinite(value):
        size = len(subwords)
        less = "less" if value < 0 else "more"
        sentences.append(
            f"Over {subwords['occurrences'].sum():,} occurrences of {size:,} "
            f"subword{'s' * (size != 1)}, the mixing ratio by {scope} has a correlation of "
            f"{number(value)} with the frequency rank{beside}: the rarer a subword, the {less} it "
            "is mixed with others" + (", though the relation is weak." if abs(value) < 0.1 else ".")
        )
    ranked = rho[ordinary].dropna().sort_values(key=abs)
    if len(ranked) > 1:
        sentences.append(
            f"The relation is strongest by {ranked.index[-1]} (ρ = {number(ranked.iloc[-1])}) and "
            f"weakest by {ranked.index[0]} ({number(ranked.iloc[0])})."
        )
    if unranked:
        sentences.append(
            f"{unranked:,} subword{'s have' if unranked > 1 else ' has'} no rank in the file and "
            f"stand{'s' * (unranked == 1)} behind all others."
        )
    return sentences


EXPERIMENT = Experiment(
    name="frequency",
    title="Mixing ratio and frequency",
    source="Kobayashi et al. 2021, section 5",
    question="Are rare subwords mixed with their context less than frequent ones?",
    method=(
        "Spearman's ρ (ties by average rank) between the mixing ratio and the frequency rank "
        "of the subword, 1 being the most frequent; so a negative ρ means that rare subwords "
        "are mixed less. Over occurrences (the paper's way): every token of every sequence is "
        "one value, its ratio averaged over layers. Over types: every subword is one value, "
        "the mean of its occurrences. Masked tokens are left out, since their own subword is "
        "hidden from the model; the authors mask nothing here. Ranks are the corpus's own or "
        "come from a file; subwords without a rank in the file stand behind all others."
    ),
    needs="masked",
    work=frequency,
    absent="the run has no mixing ratios of ordinary tokens; add the measure mixing",
)
