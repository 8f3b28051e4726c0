"""Tables 2 and 3: the pairs of subwords that are amplified most. Kobayashi et al. 2024."""

from __future__ import annotations

import pandas as pd

from normlens.corpus.measures.tokens import feed_forward_pair, whole_block_pair
from normlens.papers.base import Evidence, Experiment
from normlens.papers.kobayashi2024.related_pairs.pair_tables import has_pairs
from normlens.reports import words
from normlens.reports.base import Result, Table


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


EXPERIMENT = Experiment(
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
