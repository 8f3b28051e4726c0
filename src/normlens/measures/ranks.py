"""Spearman's ρ of maps and of scores, with intervals."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normlens.measures.bootstrap import (
    Array,
    Means,
    divided,
    percentile_interval,
    resample_counts,
)

# Numbers in half precision, before anything is computed with them.


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """The array in float32 where it is in float16, in which sums soon overflow or stand still."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


# Spearman's ρ of many maps at once: each is ranked once, however many it is compared with.


def centred_ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """``2 · rank − (p + 1)`` of each row (…, p), ties by average rank; NaN in a row that has one.

    Twice a centred average rank is a whole number, so that sums of products are exact in float64
    (up to p ≈ 300,000) and do not depend on the order of summation.
    """
    from scipy.stats import rankdata  # which takes long to import

    return 2 * rankdata(values, axis=-1) - (values.shape[-1] + 1)


def spearman_matrix(values: NDArray[Any]) -> NDArray[np.float64]:
    """Spearman's ρ between all rows, (…, s, p) → (…, s, s); NaN where a row is constant.

    ρ is the correlation of the average ranks; Kobayashi et al. 2024, section 4.
    """
    ranks = centred_ranks(values)
    products = ranks @ ranks.swapaxes(-1, -2)
    squares = np.diagonal(products, axis1=-2, axis2=-1)
    squares = np.where(squares > 0, squares, np.nan)
    return np.clip(products / np.sqrt(squares[..., :, None] * squares[..., None, :]), -1, 1)


def grouped_spearman(rank: Array, counts: Array, places: Array, squares: float) -> float:
    """Spearman's ρ over single values, of which each of `counts` has one of the `rank`s; or NaN.

    `places` are sums over a rank's values of their average ranks by the other quantity, less the
    mean, and `squares` is the sum of these squared, over all values.
    """
    _, inverse = np.unique(rank, return_inverse=True)
    tied = np.bincount(inverse, weights=counts)
    place = (np.cumsum(tied) - (tied + counts.sum()) / 2)[inverse]  # average rank, less the mean
    product = float((counts * place**2).sum()) * squares
    return float((place * places).sum()) / product**0.5 if product else float("nan")


def places_by_score(
    scores: Array, ties: NDArray[np.uint64], highest_first: bool = True
) -> NDArray[np.intp]:
    """The places of scores in their order; of equal ones the lower number in `ties` goes first.

    That holds in both directions: a score that is the same for all says as little as a random
    order, wherever the tokens stand.
    """
    return np.lexsort((ties, -scores if highest_first else scores))


# The similarity of two maps: Spearman's ρ.


def spearman(a: NDArray[Any], b: NDArray[Any], allowed: NDArray[Any]) -> NDArray[np.float64]:
    """Spearman's ρ of two maps, per layer: (layer, i, j) × 2 → (layer,).

    Ties get their average rank. Only pairs that attention allows count: zeros that both maps share
    by construction would inflate ρ. It is NaN where one of the maps is constant.
    Kobayashi et al. 2024, section 4.
    """
    layers = zip(a, b, allowed, strict=True)
    return np.array([row_spearman(x[mask], y[mask]) for x, y, mask in layers])


# Spearman's ρ with gold scores as a statistic of a whole data set (STS-B), with intervals.


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
    columns = np.column_stack([reference, values]).astype(np.float64)
    size, scores = len(columns), np.asarray(gold, dtype=np.float64)
    usable = np.flatnonzero(np.isfinite(columns).all(axis=0) & (size > 2))

    def agreement(places: NDArray[np.intp]) -> Array:
        """ρ of every column in resamples that hold the pairs at these places, (r, n) → (r, k)."""
        rho = np.full((len(places), columns.shape[1]), np.nan)
        gold_ranks = centred_ranks(scores[places])
        for column in usable:
            rho[:, column] = _correlation(centred_ranks(columns[places, column]), gold_ranks)
        return rho

    every = np.arange(size)
    (rho,) = agreement(every[None])
    drawn = np.full((resamples, columns.shape[1]), np.nan)
    for rows, weights in resample_counts(size, resamples, np.random.default_rng(seed)):
        times = weights.ravel().astype(np.intp)
        drawn[rows] = agreement(np.repeat(np.tile(every, len(weights)), times).reshape(-1, size))

    moved = drawn[:, 1:] - drawn[:, :1]
    return RankAgreement(
        percentile_interval(rho[1:], drawn[:, 1:], level),
        percentile_interval(rho[1:] - rho[0], moved, level),
        moved,
    )


def _correlation(a: Array, b: Array) -> Array:
    """The correlation of centred ranks, (…, n) × 2 → (…,)."""
    squares = (a * a).sum(axis=-1) * (b * b).sum(axis=-1)
    return np.clip(divided((a * b).sum(axis=-1), np.sqrt(squares)), -1, 1)


# Spearman's ρ between two quantities of (layer, component) cells, with intervals.


#: Fewer cells have no order that a correlation could tell from chance.
FEWEST = 4


class CellCorrelation(NamedTuple):
    """ρ over cells, with an interval over sequences and one over cells."""

    cells: int
    rho: float = np.nan
    low: float = np.nan
    high: float = np.nan
    cells_low: float = np.nan
    cells_high: float = np.nan


def row_spearman(a: Array, b: Array) -> Array:
    """Spearman's ρ of every two rows, (…, p) × 2 → (…,); NaN where one of them is constant."""
    return _correlation(centred_ranks(a), centred_ranks(b))


def cell_correlation(
    first: ArrayLike,
    second: ArrayLike,
    first_drawn: Array,
    second_drawn: Array,
    seed: int = 0,
    level: float = 0.95,
) -> CellCorrelation:
    """ρ between two quantities of cells, (k,) × 2, whose resamples are (resamples, k) × 2.

    The interval over sequences holds ρ of every resample, in which both quantities were computed
    anew from the same sequences: how certain this ρ of these cells is. The one over cells draws
    cells with replacement: what ρ might be of other layers and components. Cells without one of the
    quantities are left out; everything is NaN for fewer than four cells or where one is constant.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    usable = np.isfinite(a) & np.isfinite(b)
    a, b = a[usable], b[usable]
    size = len(a)
    if size < FEWEST:
        return CellCorrelation(size)
    rho = float(row_spearman(a, b))
    over_sequences = row_spearman(first_drawn[:, usable], second_drawn[:, usable])
    places = np.random.default_rng(seed).integers(0, size, (len(first_drawn), size))
    over_cells = row_spearman(a[places], b[places])
    drawn = np.column_stack([over_sequences, over_cells])
    # Fewer than half of the draws with a ρ, or no ρ of the data, have no interval.
    enough = (~np.isnan(drawn)).sum(axis=0) >= max(2, len(drawn) / 2)
    ends = percentile_interval(np.array([rho, rho]), drawn, level, enough)
    return CellCorrelation(size, rho, *np.column_stack(ends[1:]).ravel().tolist())
