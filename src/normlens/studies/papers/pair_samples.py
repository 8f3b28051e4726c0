"""Which related pairs are compared with which others, and those of one layer from a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normlens.corpus.measures.tokens import EDGES, GROUPS, RELATIONS, UNRELATED, ScopePair
from normlens.measures.reweighting import TESTED, DistanceSums, matched, proportional
from normlens.studies.papers.published import Evidence
from normlens.studies.papers.settings import PAPER

# The other pairs that related pairs are compared with: Kobayashi et al. 2024, section 5.


@dataclass(frozen=True)
class Sample:
    """Pairs of one kind in a random order: scores (pairs, scope pairs) and distances."""

    distance: NDArray[np.int64]
    score: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.distance)

    def where(self, chosen: NDArray[Any]) -> Sample:
        return Sample(self.distance[chosen], self.score[chosen])


Groups = tuple[Sample, Sample]  # related pairs and as many others


def strata(distance: NDArray[Any]) -> NDArray[np.intp]:
    """Return the stratum of each distance |i − j|; long distances share strata."""
    return np.searchsorted(EDGES, distance)


def matched_groups(related: Sample, others: Sample) -> Groups:
    """Take pairs of a relation and as many other pairs at the same distances."""
    here, there = matched(strata(related.distance), strata(others.distance))
    return related.where(here), others.where(there)


def near_and_far(others: Sample, counts: NDArray[Any]) -> Groups:
    """Take other pairs of adjacent tokens, and of tokens further apart, as often as they occur.

    `counts` says how many pairs there are in each stratum of distances.
    """
    near = np.flatnonzero(others.distance == 1)[:TESTED]
    apart = np.where(np.arange(len(counts)) > strata(np.int64(1)), counts, 0)
    far = proportional(strata(others.distance), apart, len(near))
    size = min(len(near), len(far))
    return others.where(near[:size]), others.where(far[:size])


def stratum_counts(distance: NDArray[Any], count: NDArray[Any] | None = None) -> NDArray[Any]:
    """Count the pairs (`count` of them each) in each of the sample's strata of distances."""
    return np.bincount(strata(distance), count, minlength=len(EDGES) + 1)


# Which pairs are compared, and those of one layer from a run's tables.
#
# They are there by sequence, sampled one by one, and by subwords.


_SAME_SUBWORD = "same_subword"
_NEEDED = {"amplification_distance", "amplification_pairs", "amplification_sample"}


def has_pairs(evidence: Evidence) -> bool:
    """Whether a run has FF-amp's tables."""
    return evidence.run is not None and set(evidence.run.tables) >= _NEEDED


@dataclass(frozen=True)
class Pairs:
    """Pairs of some relations; those of one and the same subword are among them, or left out."""

    relations: tuple[str, ...]
    same_subword: bool = True


#: The kinds of pairs that footnote 7 of the paper is about: those of words and of entities.
OF_PAPER = tuple(name for name in GROUPS if name != "same_type")
#: Pairs of ordinary tokens that have nothing in common.
UNRELATED_PAIRS = Pairs(("other",))


def compared(name: str, relations: tuple[str, ...], others: str) -> tuple[Pairs, Pairs]:
    """The pairs of a kind, and those that they are compared with (before distances are matched).

    In the paper (section 5.2, footnote 7) the others are all pairs that are not of that kind,
    special tokens included, and pairs of one subword are left out on both sides. They stay on the
    kind's side if it is theirs or a user's. A pair of a user's relation may be of any kind as well,
    which the tables do not tell: it is not among the others.
    """
    if others != PAPER:
        return Pairs(relations), UNRELATED_PAIRS
    rest = tuple(relation for relation in RELATIONS if relation not in relations)
    return Pairs(relations, same_subword=name not in OF_PAPER), Pairs(rest, same_subword=False)


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
    """One layer's pairs under all pairs of scopes; a column tells those of one subword."""

    sums: pd.DataFrame  # a row per sequence, relation, distance and whether they are of one subword
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
        of_paper = settings.others == PAPER
        place = "CASE {} END AS place".format(
            " ".join(
                f"WHEN before = '{before}' AND after = '{after}' THEN {number}"
                for number, (before, after) in enumerate(scope_pairs)
            )
        )
        where = f"WHERE layer = {layer}" + ("" if of_paper else " AND relation <> 'special'")
        sums = evidence.sql(
            f'SELECT "index", relation, {_SAME_SUBWORD}, distance, count, sum, sum_squares, '
            f"{place} FROM amplification_distance {where} "
            f'ORDER BY "index", relation, {_SAME_SUBWORD}, distance, place'
        )
        drawn = evidence.sql(
            f"SELECT relation, {_SAME_SUBWORD}, distance, priority, score, {place} "
            f'FROM amplification_sample {where} ORDER BY priority, "index", target, source, place'
        )
        # Rarer ones cannot be compared, whatever the relations that are taken together.
        types = evidence.sql(
            "SELECT relation, source_id, target_id, count, sum, sum_distance, "
            f"source_id = target_id AS {_SAME_SUBWORD}, {place} FROM amplification_pairs {where} "
            "QUALIFY sum(count) OVER (PARTITION BY before, after, source_id, target_id) "
            f">= {settings.min_count} ORDER BY relation, source_id, target_id, place"
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
        self, pairs: Pairs, together: tuple[int, float] | None = None
    ) -> DistanceSums:
        """Sum the scores of some pairs per sequence and distance (from 1).

        `together` takes the distances from its first to its second end as if they were one.
        """
        chosen = _are(self.sums, pairs)
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

    def sampled(self, pairs: Pairs) -> Sample:
        """Take a sample of some pairs, in a random order.

        It is uniform; where unrelated pairs are among them, which are sampled from each distance
        apart, it is uniform for each distance.
        """
        kept = _are(self.drawn, pairs)
        if len(pairs.relations) > 1:
            kept &= self._priority <= self._cuts(pairs.relations)[self._stratum]
        return Sample(self.drawn["distance"].to_numpy(np.int64)[kept], self.scores[kept])

    @cached_property
    def drawable(self) -> Callable[[Pairs], tuple[Sample, Sample]]:
        """The samples of a kind of pairs, each made once: pairs of subwords, and occurrences."""
        return cache(lambda kind: (self.typed(kind), self.sampled(kind)))

    def _cuts(self, relations: tuple[str, ...]) -> NDArray[np.uint64]:
        """The highest priority, for each distance, up to which pairs of all relations are there.

        Of a stratum of the sample that was cut, only low priorities are there.
        """
        cuts = np.full(len(EDGES) + 1, np.iinfo(np.uint64).max)
        for relation in relations:
            drawn = (self.drawn["relation"] == relation).to_numpy()
            rows = self.sums[self.sums["relation"] == relation]
            there = stratum_counts(rows["distance"].to_numpy(np.int64), rows["count"].to_numpy())
            apart = relation in UNRELATED
            for strata in np.arange(len(cuts))[:, None] if apart else [np.arange(len(cuts))]:
                here = self._priority[drawn & np.isin(self._stratum, strata)]
                if len(here) < there[strata].sum():
                    cuts[strata] = np.minimum(cuts[strata], here.max())
        return cuts

    @cached_property
    def _priority(self) -> NDArray[np.uint64]:
        return self.drawn["priority"].to_numpy(np.uint64)

    @cached_property
    def _stratum(self) -> NDArray[np.intp]:
        return strata(self.drawn["distance"].to_numpy(np.int64))

    def other_counts(self) -> NDArray[Any]:
        """Count the other pairs in each stratum of the sample."""
        rows = self.sums[self.sums["relation"] == "other"]
        return stratum_counts(rows["distance"].to_numpy(np.int64), rows["count"].to_numpy())

    def typed(self, pairs: Pairs) -> Sample:
        """Average each ordered pair of subwords over its occurrences among some pairs.

        Those that occur less than `min_count` times are left out. A pair's distance is its mean
        distance, rounded. The order is random.
        """
        chosen = _are(self.types, pairs)
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


def _are(rows: pd.DataFrame, pairs: Pairs) -> NDArray[np.bool_]:
    """Which rows of a table are of these pairs."""
    chosen = rows["relation"].isin(pairs.relations)
    if not pairs.same_subword:
        chosen &= ~rows[_SAME_SUBWORD].astype(bool)
    return chosen.to_numpy(bool, copy=True)
