"""Spearman's ρ with gold scores as a statistic of a whole data set (STS-B), with intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normlens.analysis.bootstrap import Array, Means, divided, percentile_interval, resample_counts


class RankAgreement(NamedTuple):
    """ρ of every column with the gold scores, and its difference to a column of reference."""

    rho: Means  # (k,) each
    difference: Means  # (k,) each
    drawn: Array  # the difference in every resample, (resamples, k)


def rank_agreement(
    values: ArrayLike,
    reference: ArrayLike,
    gold: ArrayLike,
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> RankAgreement:
    """Spearman's ρ of `values` (n, k) with `gold` (n,), less that of `reference` (n,).

    Whole pairs of sentences are drawn, and all are ranked anew in every resample: a difference is
    of the same pairs. ρ is the correlation of average ranks. NaN where values are constant, are not
    finite, or are fewer than three.
    """
    columns = np.column_stack([np.asarray(reference, np.float64), np.asarray(values, np.float64)])
    right = np.asarray(gold, dtype=np.float64)
    usable = np.isfinite(columns).all(axis=0) & (len(right) > 2)
    ranked = [_Ranked(column) for column in columns.T]
    of_gold = _Ranked(right)
    ones = np.ones((1, len(right)))
    rho = np.full(columns.shape[1], np.nan)
    drawn = np.full((resamples, columns.shape[1]), np.nan)
    some = np.flatnonzero(usable)
    for place in some:
        rho[place] = _spearman(ones, ranked[place].centred(ones), of_gold.centred(ones))[0]
    for rows, weights in resample_counts(len(right), resamples, np.random.default_rng(seed)):
        gold_ranks = of_gold.centred(weights)
        for place in some:
            drawn[rows, place] = _spearman(weights, ranked[place].centred(weights), gold_ranks)
    levels = np.where(np.isnan(rho), np.nan, level)
    moved = drawn[:, 1:] - drawn[:, :1]
    difference = rho[1:] - rho[0]
    both = np.where(np.isnan(difference), np.nan, level)
    return RankAgreement(
        percentile_interval(rho[1:], drawn[:, 1:], levels[1:]),
        percentile_interval(difference, moved, both),
        moved,
    )


class _Ranked:
    """Values in their order, so that resamples need not sort them again."""

    def __init__(self, values: Array) -> None:
        self.order = np.argsort(values, kind="stable")
        ordered = values[self.order]
        new = np.append(True, ordered[1:] != ordered[:-1])
        self.run = np.cumsum(new) - 1  # the run of equal values that each belongs to
        starts = np.flatnonzero(new)
        self.starts, self.ends = starts, np.append(starts[1:], len(values))

    def centred(self, weights: Array) -> Array:
        """``rank − (n + 1) / 2`` of each value where resamples hold it `weights` times, (r, n)."""
        below = np.zeros((len(weights), weights.shape[1] + 1))
        np.cumsum(weights[:, self.order], axis=1, out=below[:, 1:])
        middles = (below[:, self.starts] + below[:, self.ends] - below[:, -1:]) / 2
        ranks = np.empty(weights.shape)
        ranks[:, self.order] = middles[:, self.run]
        return ranks


def _spearman(weights: Array, a: Array, b: Array) -> Array:
    """The correlation of weighted centred ranks, (r, n) × 3 → (r,)."""
    squares = (weights * a * a).sum(axis=1) * (weights * b * b).sum(axis=1)
    return np.clip(divided((weights * a * b).sum(axis=1), np.sqrt(squares)), -1, 1)
