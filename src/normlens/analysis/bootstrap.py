"""Bootstrap intervals of means, the unpaired test of two means, effect sizes and adjusted p."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

#: Weights (resamples, values) that are held at a time.
CHUNK = 1 << 21
#: Values that are drawn at a time: as many as a processor's cache holds.
DRAWN = 1 << 15


class Means(NamedTuple):
    """Means and the ends of their percentile intervals, one of each per column."""

    mean: Array
    low: Array
    high: Array


class MeanComparison(NamedTuple):
    """Two groups' means and their difference (first − second), column by column."""

    first: Means
    second: Means
    difference: Means
    effect: Array  # Hedges' g
    p: Array


def mean_intervals(
    values: ArrayLike, resamples: int = 10_000, seed: int = 0, level: float = 0.95
) -> Means:
    """Take mean and percentile interval of every column, (n, k) → (k,) × 3: whole rows are drawn.

    NaN cells are left out column by column: a resample's mean is that of the cells it has. The ends
    are NaN for fewer than two values. Efron and Tibshirani 1993, chapter 13.
    """
    cells = np.asarray(values, dtype=np.float64)
    present = ~np.isnan(cells)
    number = present.sum(axis=0)
    totals = np.where(present, cells, 0).sum(axis=0)
    mean = divided(totals, number)
    # Sums of what is left of the mean lose no digits where the values are large and alike.
    centred = np.where(present, cells - mean, 0)
    drawn = np.full((resamples, cells.shape[1]), np.nan)
    for rows, weights in resample_counts(len(cells), resamples, np.random.default_rng(seed)):
        counts: Array | int = len(cells) if present.all() else weights @ present.astype(np.float64)
        drawn[rows] = divided(weights @ centred, counts)
    return percentile_interval(mean, mean + drawn, np.where(number > 1, level, np.nan))


def compare_means(
    first: ArrayLike,
    second: ArrayLike,
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> MeanComparison:
    """Test two means by the unpaired bootstrap, two-sided; (n, k), (m, k) → (k,) each.

    Both groups are shifted to one mean and resampled apart; p is the share of resamples whose
    statistic is at least as far from 0 as the data's own, which counts as one of them:
    ``(1 + #{|t*| ≥ |t|}) / (1 + resamples)``. The statistic is
    ``t = (ā − b̄) / sqrt(s_a²/n + s_b²/m)``. Efron and Tibshirani 1993, algorithm 16.2. Groups are
    complete (no NaN), and their columns are drawn together; results are NaN, apart from the means,
    if a group has fewer than two values. A single column may be given as (n,) and (m,).
    """
    groups = [_columns(first), _columns(second)]
    chance = np.random.default_rng(seed)
    means, drawn, errors, data_errors = [], [], [], []
    for values in groups:
        mean, moved, variance = _resampled_moments(values, resamples, chance)
        means.append(mean)
        drawn.append(moved)
        errors.append(divided(variance, len(values)))
        data_errors.append(divided(_variance(values), len(values)))
    enough = np.full(groups[0].shape[1], level if min(map(len, groups)) > 1 else np.nan)
    # A shift moves means and leaves variances: what was drawn serves the test and the intervals.
    moved = drawn[0] - drawn[1]
    difference = means[0] - means[1]
    statistic = studentised(difference, sum(data_errors))
    extreme = np.abs(studentised(moved, sum(errors))) >= np.abs(statistic)
    p = (1 + extreme.sum(axis=0)) / (1 + resamples)
    return MeanComparison(
        first=percentile_interval(means[0], means[0] + drawn[0], enough),
        second=percentile_interval(means[1], means[1] + drawn[1], enough),
        difference=percentile_interval(difference, difference + moved, enough),
        effect=hedges_g(*groups),
        p=np.where(np.isnan(enough), np.nan, p),
    )


def hedges_g(first: ArrayLike, second: ArrayLike) -> Array:
    """Difference of two means in pooled standard deviations, without small-sample bias; (k,).

    ``g = (1 − 3 / (4(n + m) − 9)) · (ā − b̄) / s`` with
    ``s² = ((n − 1) s_a² + (m − 1) s_b²) / (n + m − 2)``. Hedges 1981. NaN if a group has fewer than
    two values, or if neither varies.
    """
    a, b = _columns(first), _columns(second)
    n, m = len(a), len(b)
    if min(n, m) < 2:
        return np.full(a.shape[1], np.nan)
    pooled = ((n - 1) * _variance(a) + (m - 1) * _variance(b)) / (n + m - 2)
    difference = a.mean(axis=0) - b.mean(axis=0)
    return (1 - 3 / (4 * (n + m) - 9)) * divided(difference, np.sqrt(pooled))


def benjamini_hochberg(p: ArrayLike) -> Array:
    """Adjust p values for the false discovery rate; NaN stay NaN and do not count.

    ``p̃_(i) = min_{k ≥ i} min(1, p_(k) · number / k)``. Benjamini and Hochberg 1995.
    """
    values = np.asarray(p, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    scaled = values[order] * len(order) / np.arange(1, len(order) + 1)
    adjusted = np.full(values.shape, np.nan)
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1)
    return adjusted


def _columns(values: ArrayLike) -> Array:
    array = np.asarray(values, dtype=np.float64)
    return array[:, None] if array.ndim == 1 else array


def resample_counts(
    size: int, resamples: int, chance: np.random.Generator
) -> Iterator[tuple[slice, Array]]:
    """Count the draws of each of `size` values per resample, (some resamples, size) at a time.

    Resample by resample from one stream, so that the size of a chunk changes nothing.
    """
    if size == 0:
        return
    step = max(1, CHUNK // size)
    for begin in range(0, resamples, step):
        rows = slice(begin, min(begin + step, resamples))
        yield rows, _counted(size, rows.stop - rows.start, chance)


def _counted(size: int, resamples: int, chance: np.random.Generator) -> Array:
    weights = np.empty((resamples, size))
    step = max(1, DRAWN // size)
    for begin in range(0, resamples, step):
        part = weights[begin : begin + step]
        drawn = chance.integers(0, size, part.shape, dtype=np.uint32)
        places = drawn + size * np.arange(len(part))[:, None]
        part[:] = np.bincount(places.ravel(), minlength=part.size).reshape(part.shape)
    return weights


def _resampled_moments(
    values: Array, resamples: int, chance: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Means (k,); each resample's mean, less the group's, and its variance, (resamples, k)."""
    size, columns = values.shape
    mean = values.mean(axis=0) if size else np.full(columns, np.nan)
    centred = values - mean
    drawn = np.full((2, resamples, columns), np.nan)
    both = np.hstack([centred, centred * centred])
    for rows, weights in resample_counts(size, resamples, chance):
        sums = weights @ both / size
        drawn[0, rows], drawn[1, rows] = sums[:, :columns], sums[:, columns:]
    moved, squares = drawn
    return mean, moved, np.maximum(divided((squares - moved * moved) * size, size - 1), 0)


def _variance(values: Array) -> Array:
    """Variance with n − 1 in the denominator; NaN for fewer than two values."""
    if len(values) < 2:
        return np.full(values.shape[1], np.nan)
    return values.var(axis=0, ddof=1)


def studentised(difference: Array, squared_error: Array | int) -> Array:
    """``difference / error``; infinite where only the error is 0, and 0 where both are."""
    infinite = np.where(difference == 0, 0.0, np.copysign(np.inf, difference))
    return np.divide(difference, np.sqrt(squared_error), out=infinite, where=squared_error != 0)


def percentile_interval(mean: Array, drawn: Array, level: Array) -> Means:
    """Take percentile intervals of the resampled values, (resamples, k); NaN where the level is."""
    ends = np.full((2, len(mean)), np.nan)
    for column in np.flatnonzero(~np.isnan(level)):
        some = drawn[:, column]
        tail = (1 - level[column]) / 2
        ends[:, column] = np.quantile(some[~np.isnan(some)], [tail, 1 - tail])
    return Means(mean, *ends)


def divided(a: Array, b: ArrayLike) -> Array:
    """``a / b``, NaN where b is not above 0."""
    below = np.broadcast_to(np.asarray(b, dtype=np.float64), a.shape)
    return np.divide(a, below, out=np.full(a.shape, np.nan), where=below > 0)
