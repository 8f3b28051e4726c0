"""Related pairs against all other pairs at the same distances, with sequences as the sample.

The pairs of one sequence share its words, its length and its maps: a test that takes them as
independent finds differences where there are none. Here whole sequences are resampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normlens.measures.bootstrap import (
    Array,
    MeanComparison,
    Means,
    divided,
    percentile_interval,
    resample_counts,
    studentised,
)


@dataclass(frozen=True)
class DistanceSums:
    """Pairs of one kind by sequence s and distance d: how many, and sums of their k scores."""

    count: Array  # (s, d)
    total: Array  # (s, d, k)
    squares: Array  # (s, d, k)

    def at(self, distances: NDArray[np.bool_]) -> DistanceSums:
        parts = (self.count, self.total, self.squares)
        return DistanceSums(*(part[:, distances] for part in parts))


class Reweighted(NamedTuple):
    """A comparison of related pairs with others, and how many pairs and sequences it rests on."""

    comparison: MeanComparison  # of related pairs (first) and others (second), (k,) each
    pairs: int  # related pairs that were compared
    left_out: int  # related pairs at distances where there is no other pair
    sequences: int  # that hold a related pair that was compared


def compare_reweighted(
    related: DistanceSums,
    others: DistanceSums,
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> Reweighted:
    """Compare related pairs' mean score with that of others, reweighted to the same distances.

    ``T − O`` with ``T = Σ_d t_d / N`` and ``O = Σ_d n_d (o_d / m_d) / N``: at distance d there are
    n_d related pairs with sum t_d and m_d others with sum o_d, and N = Σ_d n_d. Related pairs at
    distances without others are left out, in the data and in each resample.

    Sequences are drawn with replacement and all of this, weights included, is computed anew. The
    statistic is ``t = (T − O) / e`` with the linearised standard error e over sequences;
    ``p = (1 + #{|t*| ≥ |t|}) / (1 + resamples)`` with ``t* = ((T − O)* − (T − O)) / e*``, and the
    difference's interval is the symmetric one that excludes 0 where p < 1 − level (Efron and
    Tibshirani 1993, section 12.5; Cameron, Gelbach and Miller 2008). Intervals of both means are
    percentile intervals. NaN, apart from the means, if fewer than two sequences hold related pairs.

    The effect is Hedges' g of N related pairs and as many others, distributed over d alike.
    """
    usable = (related.count.sum(axis=0) > 0) & (others.count.sum(axis=0) > 0)
    left_out = int(related.count[:, ~usable].sum())
    related, others = related.at(usable), others.at(usable)
    pairs, sequences = int(related.count.sum()), int((related.count.sum(axis=1) > 0).sum())
    size, _, columns = related.total.shape
    parts = [
        (related.count, related.total[:, :, k], others.count, others.total[:, :, k])
        for k in range(columns)
    ]

    def estimates(weights: Array) -> Array:
        """T, O and the squared error of each score, (b, s) → (3, b, k)."""
        return np.stack([_estimate(weights, *part) for part in parts], axis=-1)

    (first,), (second,), (error,) = estimates(np.ones((1, size)))
    difference = first - second
    drawn = np.full((3, resamples, columns), np.nan)
    if sequences > 1:
        for rows, weights in resample_counts(size, resamples, np.random.default_rng(seed)):
            drawn[:, rows] = estimates(weights)
    drawn = drawn[:, ~np.isnan(drawn[0]).any(axis=1)]  # no related pair, no estimate
    moved = np.abs(studentised(drawn[0] - drawn[1] - difference, drawn[2]))
    reach, p = np.full((2, columns), np.nan)
    if len(moved):
        extreme = moved >= np.abs(studentised(difference, error))
        p = (1 + extreme.sum(axis=0)) / (1 + len(moved))
        reach = np.quantile(moved, level, axis=0, method="higher") * np.sqrt(error)
        reach = np.where(np.isfinite(reach), reach, np.nan)
    enough = sequences > 1
    comparison = MeanComparison(
        first=percentile_interval(first, drawn[0], level, enough),
        second=percentile_interval(second, drawn[1], level, enough),
        difference=Means(difference, difference - reach, difference + reach),
        effect=_effect(related, others),
        p=p,
    )
    return Reweighted(comparison, pairs, left_out, sequences)


def _estimate(weights: Array, n: Array, t: Array, m: Array, o: Array) -> tuple[Array, Array, Array]:
    """T, O and the square of the error of T − O under weights of the sequences, (b, s) → (b,) × 3.

    The error's square is ``Σ_s w_s ψ_s²`` with the influence of sequence s on T − O:
    ``ψ_s = [t_s − T n_s − Σ_d ((o_d/m_d − O) n_sd + (n_d/m_d) (o_sd − (o_d/m_d) m_sd))] / N``.
    """
    n_d, t_d, m_d, o_d = (weights @ part for part in (n, t, m, o))  # (b, d)
    there = m_d > 0
    n_d = np.where(there, n_d, 0.0)
    number = n_d.sum(axis=1)
    mean_d = np.divide(o_d, m_d, out=np.zeros_like(o_d), where=there)
    share = np.divide(n_d, m_d, out=np.zeros_like(n_d), where=there)
    first = divided(np.where(there, t_d, 0.0).sum(axis=1), number)
    second = divided((n_d * mean_d).sum(axis=1), number)
    counted = there.astype(np.float64)
    influence = (
        np.hstack([counted, -counted * (first - second)[:, None] - mean_d, -share, share * mean_d])
        @ np.hstack([t, n, o, m]).T
    )  # (b, s)
    squared_error = divided((weights * influence**2).sum(axis=1), number**2)
    return first, second, squared_error


def _effect(related: DistanceSums, others: DistanceSums) -> Array:
    n, m = related.count.sum(axis=0), others.count.sum(axis=0)
    number = n.sum()
    if number < 2:
        return np.full(related.total.shape[2], np.nan)
    first = related.total.sum(axis=(0, 1)) / number
    weight = (n / m)[:, None] / number
    second = (weight * others.total.sum(axis=0)).sum(axis=0)
    squares = related.squares.sum(axis=(0, 1)) / number
    squares = squares - first**2 + (weight * others.squares.sum(axis=0)).sum(axis=0) - second**2
    deviation = np.sqrt(np.maximum(squares / 2 * number / (number - 1), 0))
    return (1 - 3 / (8 * number - 9)) * divided(first - second, deviation)


# One draw of other pairs at the related pairs' distances: Kobayashi et al. 2024, section 5.


#: Pairs of a group, at most, that the bootstrap draws from.
TESTED = 5_000
#: Share of the related pairs, at most, that may stay without a partner.
UNMATCHED = 0.05


def matched(
    related: NDArray[np.intp], others: NDArray[np.intp], limit: int = TESTED
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Match related pairs with as many others of the same distance; return both sides' indices.

    Both sides' (groups of) distances are given in a random order, and pairs are taken in it: each
    related pair gets an other pair that no other has. Where others of a distance run out, fewer
    related pairs are taken altogether, so that at most `UNMATCHED` of them stay without one.
    """
    available = np.bincount(others, minlength=int(related.max(initial=0)) + 1)
    usable = np.flatnonzero(available[related] > 0)
    rank = _ranks_within(related[usable])
    free = rank < available[related[usable]]
    allowed = np.cumsum(~free) <= UNMATCHED * np.arange(1, len(free) + 1)
    length = int(np.flatnonzero(allowed).max(initial=-1)) + 1
    chosen = np.flatnonzero(free[:length])[:limit]
    begins = np.cumsum(available) - available
    by_group = np.argsort(others, kind="stable")
    places = usable[chosen]
    return places, by_group[begins[related[places]] + rank[chosen]]


def proportional(groups: NDArray[np.intp], counts: NDArray[Any], limit: int) -> NDArray[np.intp]:
    """Choose at most `limit` pairs, from each group of distances in proportion to its `counts`.

    `groups` is that of sampled pairs, in a random order. The first few of the places are in that
    proportion too.
    """
    available = np.bincount(groups, minlength=len(counts))
    share = counts / max(counts.sum(), 1)
    there = share > 0
    if not there.any():
        return np.empty(0, dtype=np.intp)
    size = min(limit, int((available[there] / share[there]).min()))
    ends = np.rint(size * np.cumsum(share)).astype(np.int64)
    wanted = np.minimum(np.diff(ends, prepend=0), available)
    rank = _ranks_within(groups)
    chosen = np.flatnonzero(rank < wanted[groups])
    return chosen[np.argsort((rank[chosen] + 0.5) / wanted[groups[chosen]], kind="stable")]


def _ranks_within(groups: NDArray[np.intp]) -> NDArray[np.intp]:
    """How many of the same group stand before each."""
    order = np.argsort(groups, kind="stable")
    ranks = np.empty(len(groups), dtype=np.intp)
    ranks[order] = np.arange(len(groups)) - np.searchsorted(groups[order], groups[order])
    return ranks
