"""The pairs of one layer from a run's tables: by sequence, sampled one by one, and by subwords."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normlens.analysis.reweighting import DistanceSums
from normlens.corpus.measures.scope_pairs import ScopePair
from normlens.corpus.measures.tokens import RELATIONS
from normlens.errors import InputError
from normlens.papers.base import Evidence
from normlens.papers.kobayashi2024.related_pairs.matching import Sample, stratum_counts

#: columns without which a question about pairs would get the wrong answer
_NEEDED = {
    "amplification_distance": ("index", "relation", "distance", "count", "sum", "sum_squares"),
    "amplification_pairs": ("relation", "sum_distance"),
    "amplification_sample": ("relation", "distance", "priority", "score"),
}


def has_pairs(evidence: Evidence) -> bool:
    """Whether a run has FF-amp's tables; tables of an older NormLens are refused."""
    run = evidence.run
    if run is None or not set(_NEEDED) <= set(run.tables):
        return False
    for table, columns in _NEEDED.items():
        there = set(evidence.sql(f"SELECT * FROM {table} LIMIT 0").columns)
        if not there >= set(columns):
            raise InputError(
                f"the run over {evidence.data!r} was made by an older NormLens: its table {table} "
                f"has no column {next(name for name in columns if name not in there)!r}, without "
                "which pairs cannot be compared; make the run again with another --out"
            )
    return True


def user_relation_groups(evidence: Evidence) -> dict[str, tuple[str, ...]]:
    """List the kinds of pairs that the user defined, each with its relation."""
    rows = evidence.sql("SELECT DISTINCT relation FROM amplification_distance")
    names = sorted({str(name) for name in rows["relation"]} - set(RELATIONS))
    return {name: (name,) for name in names}


def layers_of(evidence: Evidence) -> list[int]:
    """List the layers that have pairs, from 0."""
    rows = evidence.sql("SELECT DISTINCT layer FROM amplification_distance ORDER BY layer")
    return [int(layer) for layer in rows["layer"]]


@dataclass(frozen=True)
class LayerPairs:
    """One layer's pairs of ordinary tokens under all pairs of scopes."""

    sums: pd.DataFrame  # a row per sequence, relation and distance, by these
    totals: NDArray[np.float64]  # (rows of sums, 2, scope pairs): sums and sums of squares
    drawn: pd.DataFrame  # sampled pairs, by priority
    scores: NDArray[np.float64]  # (rows of drawn, scope pairs)
    types: pd.DataFrame  # a row per relation and ordered pair of subwords
    type_sums: NDArray[np.float64]  # (rows of types, scope pairs)
    min_count: int  # occurrences of a pair of subwords, to be compared
    seed: tuple[int, int]  # of the order of the pairs of subwords

    @classmethod
    def read(cls, evidence: Evidence, layer: int, scope_pairs: list[ScopePair]) -> LayerPairs:
        settings, k = evidence.settings, len(scope_pairs)
        place = "CASE {} END AS place".format(
            " ".join(
                f"WHEN before = '{before}' AND after = '{after}' THEN {number}"
                for number, (before, after) in enumerate(scope_pairs)
            )
        )
        where = f"WHERE layer = {layer} AND relation <> 'special'"
        sums = evidence.sql(
            f'SELECT "index", relation, distance, count, sum, sum_squares, {place} '
            f'FROM amplification_distance {where} ORDER BY "index", relation, distance, place'
        )
        drawn = evidence.sql(
            f"SELECT relation, distance, priority, score, {place} FROM amplification_sample "
            f'{where} ORDER BY priority, "index", target, source, place'
        )
        types = evidence.sql(
            "SELECT relation, source_id, target_id, count, sum, sum_distance, "
            f"{place} FROM amplification_pairs {where} "
            f"AND (relation <> 'other' OR count >= {settings.min_count}) "
            "ORDER BY relation, source_id, target_id, place"
        )
        # Every pair is there under all scopes, one row after the other.
        return cls(
            sums=sums[::k].reset_index(drop=True),
            totals=np.stack(
                [sums[name].to_numpy(np.float64).reshape(-1, k) for name in ("sum", "sum_squares")],
                axis=1,
            ),
            drawn=drawn[::k].reset_index(drop=True),
            scores=drawn["score"].to_numpy(np.float64).reshape(-1, k),
            types=types[::k].reset_index(drop=True),
            type_sums=types["sum"].to_numpy(np.float64).reshape(-1, k),
            min_count=settings.min_count,
            seed=(settings.seed, layer),
        )

    def distance_sums(
        self, relations: tuple[str, ...], together: tuple[int, float] | None = None
    ) -> DistanceSums:
        """Sum the scores of some relations' pairs per sequence and distance (from 1).

        `together` takes the distances from its first to its second end as if they were one.
        """
        chosen = self.sums["relation"].isin(relations).to_numpy()
        distance = self.sums["distance"].to_numpy(np.int64)
        width = int(distance.max(initial=1))
        if together is not None:
            chosen = chosen & (distance >= together[0]) & (distance <= together[1])
            distance, width = np.ones_like(distance), 1
        number, sequence = np.unique(self.sums["index"], return_inverse=True)
        cell = (sequence * width + distance - 1)[chosen]
        shape = (len(number), width)

        def summed(values: NDArray[Any]) -> NDArray[np.float64]:
            flat = np.bincount(cell, values[chosen], minlength=shape[0] * width)
            return flat.reshape(shape).astype(np.float64)

        columns = range(self.totals.shape[2])
        return DistanceSums(
            summed(self.sums["count"].to_numpy(np.float64)),
            *(
                np.stack([summed(self.totals[:, part, k]) for k in columns], axis=2)
                for part in (0, 1)
            ),
        )

    def sampled(self, relations: tuple[str, ...]) -> Sample:
        """Take a uniform sample of some relations' pairs, in a random order."""
        kept = self.drawn["relation"].isin(relations).to_numpy()
        priority = self.drawn["priority"].to_numpy(np.uint64)
        for relation in relations if len(relations) > 1 else ():
            of_relation = (self.drawn["relation"] == relation).to_numpy()
            there = self.sums.loc[self.sums["relation"] == relation, "count"].sum()
            # Of a relation that was cut, only low priorities are there.
            if of_relation.sum() < there:
                kept = kept & (priority <= priority[of_relation].max())
        return Sample(self.drawn["distance"].to_numpy(np.int64)[kept], self.scores[kept])

    def other_counts(self) -> NDArray[Any]:
        """Count the other pairs in each stratum of the sample."""
        rows = self.sums[self.sums["relation"] == "other"]
        return stratum_counts(rows["distance"].to_numpy(np.int64), rows["count"].to_numpy())

    def typed(self, relations: tuple[str, ...]) -> Sample:
        """Average each ordered pair of subwords in some relations over its occurrences.

        Those that occur less than `min_count` times are left out. A pair's distance is its mean
        distance, rounded. The order is random.
        """
        chosen = self.types["relation"].isin(relations).to_numpy()
        rows = self.types[chosen]
        source, target = (rows[name].to_numpy(np.int64) for name in ("source_id", "target_id"))
        kinds, kind = np.unique(source << 32 | target, return_inverse=True)

        def summed(values: NDArray[Any]) -> NDArray[np.float64]:
            return np.bincount(kind, values, minlength=len(kinds)).astype(np.float64)

        count = summed(rows["count"].to_numpy(np.float64))
        often = np.flatnonzero(count >= self.min_count)
        often = np.random.default_rng(self.seed).permutation(often)
        distance = summed(rows["sum_distance"].to_numpy(np.float64))[often] / count[often]
        sums = self.type_sums[chosen]
        means = [summed(sums[:, k])[often] / count[often] for k in range(sums.shape[1])]
        return Sample(np.floor(distance + 0.5).astype(np.int64), np.stack(means, axis=1))
