"""The other pairs that related pairs are compared with: Kobayashi et al. 2024, section 5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normlens.corpus.measures.pairs import EDGES

#: Pairs of a group, at most, that the bootstrap draws from.
TESTED = 5_000
#: Share of the related pairs, at most, that may stay without a partner.
UNMATCHED = 0.05


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


def matched_groups(related: Sample, others: Sample) -> Groups:
    """Take pairs of a relation and as many other pairs at the same distances."""
    here, there = matched(related.distance, others.distance)
    return related.where(here), others.where(there)


def matched(
    related: NDArray[np.int64], others: NDArray[np.int64], limit: int = TESTED
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Match related pairs with as many others at the same distances; return both sides' indices.

    Both sides' distances |i − j| are given in a random order, and pairs are taken in it: each
    related pair gets an other pair that no other has. Where others of a distance run out, fewer
    related pairs are taken altogether, so that at most `UNMATCHED` of them stay without one.
    Distances that share a stratum of the sample count as one.
    """
    here, there = (np.searchsorted(EDGES, distance) for distance in (related, others))
    size = len(EDGES) + 1
    available = np.bincount(there, minlength=size)
    usable = np.flatnonzero(available[here] > 0)
    rank = pd.Series(here[usable]).groupby(here[usable]).cumcount().to_numpy(np.int64)
    free = rank < available[here[usable]]
    allowed = np.cumsum(~free) <= UNMATCHED * np.arange(1, len(free) + 1)
    length = int(np.flatnonzero(allowed).max(initial=-1)) + 1
    chosen = np.flatnonzero(free[:length])[:limit]
    begins = np.cumsum(available) - available
    by_stratum = np.argsort(there, kind="stable")
    places = usable[chosen]
    return places, by_stratum[begins[here[places]] + rank[chosen]]


def near_and_far(others: Sample, counts: NDArray[Any]) -> Groups:
    """Take other pairs of adjacent tokens, and of tokens further apart, as often as they occur.

    `counts` says how many pairs there are in each stratum of distances.
    """
    near = np.flatnonzero(others.distance == 1)[:TESTED]
    apart = np.where(np.arange(len(counts)) > np.searchsorted(EDGES, 1), counts, 0)
    far = proportional(others.distance, apart, len(near))
    size = min(len(near), len(far))
    return others.where(near[:size]), others.where(far[:size])


def stratum_counts(distance: NDArray[Any], count: NDArray[Any] | None = None) -> NDArray[Any]:
    """Count the pairs (`count` of them each) in each of the sample's strata of distances."""
    return np.bincount(np.searchsorted(EDGES, distance), count, minlength=len(EDGES) + 1)


def proportional(distance: NDArray[np.int64], counts: NDArray[Any], limit: int) -> NDArray[np.intp]:
    """Choose at most `limit` pairs, from each stratum in proportion to its pairs' `counts`.

    `distance` is that of sampled pairs, in a random order. The first few of the places are in that
    proportion too.
    """
    strata = np.searchsorted(EDGES, distance)
    available = np.bincount(strata, minlength=len(counts))
    share = counts / max(counts.sum(), 1)
    there = share > 0
    if not there.any():
        return np.empty(0, dtype=np.intp)
    size = min(limit, int((available[there] / share[there]).min()))
    ends = np.rint(size * np.cumsum(share)).astype(np.int64)
    wanted = np.minimum(np.diff(ends, prepend=0), available)
    rank = pd.Series(strata).groupby(strata).cumcount().to_numpy(np.int64)
    chosen = np.flatnonzero(rank < wanted[strata])
    return chosen[np.argsort((rank[chosen] + 0.5) / wanted[strata[chosen]], kind="stable")]
