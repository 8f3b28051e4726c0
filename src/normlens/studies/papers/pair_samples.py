"""Which related pairs are compared with which others, and those of one layer from a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

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


def strata(distance: ArrayLike) -> NDArray[np.intp]:
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


def stratum_counts(distance: ArrayLike, count: ArrayLike | None = None) -> NDArray[Any]:
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
    """One layer's pairs under k pairs of scopes; a column tells those of one subword.

    Scores and their sums and squares have a column for each pair of scopes, named by its number.
    """

    sums: pd.DataFrame  # a row per sequence, relation, distance and whether they are of one subword
    drawn: pd.DataFrame  # sampled pairs, by priority
    types: pd.DataFrame  # a row per relation and ordered pair of subwords
    scope_pairs: int
    min_count: int  # occurrences of a pair of subwords, to be compared
    seed: tuple[int, int]  # of the order of the pairs of subwords

    @classmethod
    def read(cls, evidence: Evidence, layer: int, scope_pairs: list[ScopePair]) -> LayerPairs:
        settings = evidence.settings

        def scored(column: str) -> str:
            return ", ".join(
                f"sum({column}) FILTER (before = '{before}' AND after = '{after}') "
                f"AS {column}_{number}"
                for number, (before, after) in enumerate(scope_pairs)
            )

        where = f"WHERE layer = {layer}"
        where += "" if settings.others == PAPER else " AND relation <> 'special'"
        keys = f'"index", relation, {_SAME_SUBWORD}, distance'
        sums = evidence.sql(
            f"SELECT {keys}, any_value(count) AS count, {scored('sum')}, {scored('sum_squares')} "
            f"FROM amplification_distance {where} GROUP BY ALL ORDER BY {keys}"
        )
        drawn = evidence.sql(
            f"SELECT {keys}, target, source, priority, {scored('score')} "
            f"FROM amplification_sample {where} GROUP BY ALL "
            'ORDER BY priority, "index", target, source'
        )
        # Rarer ones cannot be compared, whatever the relations that are taken together.
        types = evidence.sql(
            f"SELECT relation, source_id, target_id, source_id = target_id AS {_SAME_SUBWORD}, "
            "any_value(count) AS count, any_value(sum_distance) AS sum_distance, "
            f"{scored('sum')} FROM amplification_pairs {where} "
            "GROUP BY relation, source_id, target_id "
            "QUALIFY sum(any_value(count)) OVER (PARTITION BY source_id, target_id) "
            f">= {settings.min_count}"
        )
        seed = settings.seed, layer
        return cls(sums, drawn, types, len(scope_pairs), settings.min_count, seed)

    def _columns(self, name: str) -> list[str]:
        return [f"{name}_{number}" for number in range(self.scope_pairs)]

    def distance_sums(
        self, pairs: Pairs, together: tuple[int, float] | None = None
    ) -> DistanceSums:
        """Sum the scores of some pairs per sequence and distance (from 1).

        `together` takes the distances from its first to its second end as if they were one.
        """
        rows, width = _of(self.sums, pairs), int(self.sums["distance"].max())
        if together is not None:
            rows, width = rows[rows["distance"].between(*together)].assign(distance=1), 1
        sequences = self.sums["index"].unique()
        cells = pd.MultiIndex.from_product([sequences, range(1, width + 1)])
        added = rows.groupby(["index", "distance"])[
            ["count", *self._columns("sum"), *self._columns("sum_squares")]
        ].sum()
        found = added.reindex(cells, fill_value=0).to_numpy(np.float64)
        found = found.reshape(len(sequences), width, -1)
        scores = np.split(found[..., 1:], 2, axis=-1)
        return DistanceSums(found[..., 0], *scores)

    def sampled(self, pairs: Pairs) -> Sample:
        """Take a sample of some pairs, in a random order.

        It is uniform; where unrelated pairs are among them, which are sampled from each distance
        apart, it is uniform for each distance.
        """
        rows = _of(self.drawn, pairs)
        if len(pairs.relations) > 1:
            cuts = self._cuts(pairs.relations)[strata(rows["distance"])]
            rows = rows[rows["priority"].to_numpy(np.uint64) <= cuts]
        scores = rows[self._columns("score")].to_numpy(np.float64)
        return Sample(rows["distance"].to_numpy(np.int64), scores)

    @cached_property
    def drawable(self) -> Callable[[Pairs], tuple[Sample, Sample]]:
        """The samples of a kind of pairs, each made once: pairs of subwords, and occurrences."""
        return cache(lambda kind: (self.typed(kind), self.sampled(kind)))

    def _cuts(self, relations: tuple[str, ...]) -> NDArray[np.uint64]:
        """The highest priority, for each distance, up to which pairs of all relations are there.

        Of a stratum of the sample that was cut, only low priorities are there.
        """
        every = np.arange(len(EDGES) + 1)
        cuts = np.full(len(every), np.iinfo(np.uint64).max)
        for relation in relations:
            rows = self.drawn[self.drawn["relation"] == relation]
            stratum, there = strata(rows["distance"]), self.counts(relation)
            for together in every[:, None] if relation in UNRELATED else [every]:
                here = rows["priority"].to_numpy(np.uint64)[np.isin(stratum, together)]
                if len(here) < there[together].sum():
                    cuts[together] = np.minimum(cuts[together], here.max())
        return cuts

    def counts(self, relation: str) -> NDArray[Any]:
        """Count the pairs of a relation in each stratum of the sample."""
        rows = self.sums[self.sums["relation"] == relation]
        return stratum_counts(rows["distance"], rows["count"])

    def typed(self, pairs: Pairs) -> Sample:
        """Average each ordered pair of subwords over its occurrences among some pairs.

        Those that occur less than `min_count` times are left out. A pair's distance is its mean
        distance, rounded. The order is random.
        """
        columns = ["sum_distance", *self._columns("sum")]
        rows = _of(self.types, pairs).groupby(["source_id", "target_id"])
        count, sums = rows["count"].sum().to_numpy(), rows[columns].sum().to_numpy(np.float64)
        often = np.flatnonzero(count >= self.min_count)
        often = np.random.default_rng(self.seed).permutation(often)
        means = sums[often] / count[often, None]
        return Sample(np.floor(means[:, 0] + 0.5).astype(np.int64), means[:, 1:])


def _of(rows: pd.DataFrame, pairs: Pairs) -> pd.DataFrame:
    """The rows of a table that are of these pairs."""
    chosen = rows["relation"].isin(pairs.relations)
    return rows[chosen if pairs.same_subword else chosen & ~rows[_SAME_SUBWORD].astype(bool)]
