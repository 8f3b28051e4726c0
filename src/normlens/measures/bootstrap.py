"""Bootstrap intervals, paired and unpaired comparisons, and changes of a loss."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Bootstrap intervals of means, the unpaired test of two means, effect sizes and adjusted p.


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
    mean, drawn = mean_draws(values, resamples, seed)
    enough = (~np.isnan(np.asarray(values, np.float64))).sum(axis=0) > 1
    return percentile_interval(mean, drawn, level, enough)


def mean_draws(values: ArrayLike, resamples: int, seed: int) -> tuple[Array, Array]:
    """Means (k,) of the columns of (s, k), and those of resampled rows, (resamples, k).

    NaN cells are left out column by column. The draws are those of every bootstrap with this seed
    over as many rows, so that two quantities of the same sequences are resampled together.
    """
    cells = np.asarray(values, dtype=np.float64)
    present = ~np.isnan(cells)
    return drawn_ratios(np.where(present, cells, 0), present, resamples, seed)


def ratio_intervals(total: Array, count: Array, resamples: int = 10_000, seed: int = 0) -> Means:
    """Take R = Σs / Σc of every column with its percentile interval over rows; (n, k) × 2.

    R's linear form ``R + (s − R c) / mean(c)``, whose mean is R, is resampled: long and short rows
    then weigh as in R itself. Davison and Hinkley 1997, section 2.7.
    """
    ratio = total.sum(axis=0) / count.sum(axis=0)
    return mean_intervals(ratio + (total - ratio * count) / count.mean(axis=0), resamples, seed)


def compare_means(
    first: ArrayLike, second: ArrayLike, resamples: int = 10_000, seed: int = 0, level: float = 0.95
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
    moments = [_resampled_moments(values, resamples, chance) for values in groups]
    (first_mean, first_moved, _), (second_mean, second_moved, _) = moments
    enough = min(map(len, groups)) > 1
    # A shift moves means and leaves variances: what was drawn serves the test and the intervals.
    difference, moved = first_mean - second_mean, first_moved - second_moved
    sizes = [len(values) for values in groups]
    error = sum(divided(_variance(values), len(values)) for values in groups)
    errors = sum(divided(drawn, size) for (*_, drawn), size in zip(moments, sizes, strict=True))
    extreme = np.abs(studentised(moved, errors)) >= np.abs(studentised(difference, error))
    p = (1 + extreme.sum(axis=0)) / (1 + resamples)
    return MeanComparison(
        first=percentile_interval(first_mean, first_mean + first_moved, level, enough),
        second=percentile_interval(second_mean, second_mean + second_moved, level, enough),
        difference=percentile_interval(difference, difference + moved, level, enough),
        effect=hedges_g(*groups),
        p=np.where(enough, p, np.nan),
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

    from scipy.stats import false_discovery_control  # which takes long to import

    return _adjusted(p, false_discovery_control)


def holm(p: ArrayLike) -> Array:
    """Adjust p values for the chance of any false discovery; NaN stay NaN and do not count.

    ``p̃_(i) = max_{k ≤ i} min(1, (number − k + 1) · p_(k))``. Holm 1979.
    """

    return _adjusted(p, lambda some: np.maximum.accumulate(some * np.arange(len(some), 0, -1)))


def _adjusted(p: ArrayLike, adjust: Callable[[Array], Array]) -> Array:
    """Adjust the p values that are numbers, given from the smallest on, to at most 1."""
    values = np.array(p, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    values[order] = np.minimum(adjust(values[order]), 1)
    return values


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
    step, drawn_at_once = max(1, CHUNK // size), max(1, DRAWN // size)
    for begin in range(0, resamples, step):
        weights = np.empty((min(step, resamples - begin), size))
        for first in range(0, len(weights), drawn_at_once):
            part = weights[first : first + drawn_at_once]
            drawn = chance.integers(0, size, part.shape, dtype=np.uint32)
            places = drawn + size * np.arange(len(part))[:, None]
            part[:] = np.bincount(places.ravel(), minlength=part.size).reshape(part.shape)
        yield slice(begin, begin + len(weights)), weights


def drawn_ratios(
    above: Array, below: ArrayLike, resamples: int, seed: int | np.random.Generator
) -> tuple[Array, Array]:
    """``Σ_s above_sk / Σ_s below_sk``, (k,), and that of resamples of s, (resamples, k).

    NaN where the sum below is not above 0, and in all resamples if there is nothing to draw.
    """
    counted = np.asarray(below, dtype=np.float64)
    ratio = divided(above.sum(axis=0), counted.sum(axis=0))
    # Sums of what is left of the ratio lose no digits where the values are large and alike.
    left = above - np.where(counted > 0, counted * ratio, 0)
    drawn = np.full((resamples, above.shape[1]), np.nan)
    for rows, weights in resample_counts(len(above), resamples, np.random.default_rng(seed)):
        drawn[rows] = ratio + divided(weights @ left, weights @ counted)
    return ratio, drawn


def _resampled_moments(
    values: Array, resamples: int, chance: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Means (k,); each resample's mean, less the group's, and its variance, (resamples, k)."""
    size = len(values)
    mean = divided(values.sum(axis=0), size)
    centred = values - mean
    both = np.hstack([centred, centred * centred])
    _, drawn = drawn_ratios(both, np.ones((size, 1)), resamples, chance)
    moved, squares = np.split(drawn, 2, axis=1)
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


def percentile_interval(
    mean: Array, drawn: Array, level: float, enough: NDArray[np.bool_] | bool = True
) -> Means:
    """Take percentile intervals of the resampled values, (resamples, k).

    NaN where there is no mean, no resample with a number, or not `enough` data.
    """
    ends = np.full((2, len(mean)), np.nan)
    known = ~np.isnan(mean) & ~np.isnan(drawn).all(axis=0) & enough
    for column in np.flatnonzero(known):
        some = drawn[:, column]
        tail = (1 - level) / 2
        ends[:, column] = np.quantile(some[~np.isnan(some)], [tail, 1 - tail])
    return Means(mean, *ends)


def divided(a: Array, b: ArrayLike) -> Array:
    """``a / b``, NaN where b is not above 0."""
    below = np.broadcast_to(np.asarray(b, dtype=np.float64), a.shape)
    return np.divide(a, below, out=np.full(a.shape, np.nan), where=below > 0)


# Paired comparisons: mean differences on the same examples, their intervals and p values.


#: Fewer examples than this have no interval that deserves its name.
LEAST_EXAMPLES = 10
#: Sums of the same numbers in another order differ by less than this share of their size.
ROUNDING = 1e-12


class PairedDifferences(NamedTuple):
    """Mean differences (first − second) with intervals and p values, one of each per column."""

    examples: NDArray[np.int64]  # that both have
    mean: Array
    low: Array
    high: Array
    p: Array


def paired_differences(
    first: ArrayLike,
    second: ArrayLike,
    resamples: int = 10_000,
    flips: int = 100_000,
    seed: int = 0,
    level: float = 0.95,
) -> PairedDifferences:
    """Compare two columns of values on the same examples, (n, k) and (n, k) → (k,) each.

    The interval is the percentile bootstrap's over examples, p is the sign-flip test's
    (`sign_flip_p`). Examples that either column lacks (NaN) are left out, column by column; with
    fewer than two left, interval and p are NaN.
    """
    differences = _columns(first) - _columns(second)
    examples = np.count_nonzero(~np.isnan(differences), axis=0)
    means = mean_intervals(differences, resamples, seed, level)
    return PairedDifferences(examples, *means, sign_flip_p(differences, flips, seed))


def sign_flip_p(differences: ArrayLike, flips: int = 100_000, seed: int = 0) -> Array:
    """Test whether differences (n, k) lie around 0: two-sided p by flipping signs, (k,).

    Under the null hypothesis a difference is as likely as its opposite. With n examples there are
    2ⁿ flips: if these are no more than `flips`, all are taken, and p is the share of those whose
    |mean| is at least the data's; else `flips` of them are drawn, and the data counts as one more:
    ``p = (1 + #{|mean*| ≥ |mean|}) / (1 + flips)``. (The t statistic orders flips as |mean| does.)
    Fisher 1935, section 21; Phipson and Smyth 2010. NaN are left out; fewer than two values have
    no p.
    """
    columns = _columns(differences)
    present = ~np.isnan(columns)
    p = np.full(columns.shape[1], np.nan)
    # Columns that lack the same examples share their flips.
    for pattern in np.unique(present, axis=1).T if columns.shape[1] else ():
        alike = np.flatnonzero((present == pattern[:, None]).all(axis=0))
        if pattern.sum() > 1:
            p[alike] = _flipped(columns[np.ix_(pattern, alike)], flips, seed)
    return p


def _flipped(values: Array, flips: int, seed: int) -> Array:
    """Take p of complete columns (n, k), some patterns of signs at a time."""
    rows = len(values)
    exact = rows < 63 and 1 << rows <= flips
    total = 1 << rows if exact else flips
    sums = np.abs(values.sum(axis=0)) - ROUNDING * np.abs(values).sum(axis=0)
    extreme = np.zeros(values.shape[1])
    bits = np.random.default_rng(seed).bit_generator
    words = -(-rows // 64)  # every pattern begins at a new word: the size of chunks changes nothing
    step = max(1, CHUNK // rows)
    for begin in range(0, total, step):
        end = min(begin + step, total)
        flipped: NDArray[Any]
        if exact:
            flipped = np.arange(begin, end)[:, None] >> np.arange(rows) & 1
        else:
            drawn = bits.random_raw((end - begin, words)).astype("<u8")
            flipped = np.unpackbits(drawn.view(np.uint8), axis=1, count=rows)
        signs = np.where(flipped, -1.0, 1.0)
        extreme += np.count_nonzero(np.abs(signs @ values) >= sums, axis=0)
    return extreme / total if exact else (1 + extreme) / (1 + total)


# What an intervention costs: the change of the loss, with sequences as the sample.


class LossChanges(NamedTuple):
    """Changes of the loss, one per column, and their values in every resample."""

    change: Means  # (k,) each
    drawn: Array  # (resamples, k)


def loss_changes(
    losses: ArrayLike,
    intact: ArrayLike,
    counts: ArrayLike,
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> LossChanges:
    """``Δ_k = Σ_s n_s (l_sk − l_s) / Σ_s n_s``: losses (s, k) against the intact model's (s,).

    l is a sequence's mean loss over its n_s scored tokens, so that Δ is the change of the corpus's
    mean loss per token; where each sequence is scored once (n_s = 1) it is the mean of the
    sequences' changes. Whole sequences are drawn, each with its loss before and after: the interval
    is that of a paired difference (percentiles; Efron and Tibshirani 1993, chapter 13). A loss that
    is not finite makes its column NaN: the sequences that broke must not be left out. Intervals are
    NaN for fewer than two sequences that were scored (n_s > 0). The resamples are those of every
    bootstrap with this seed over as many sequences.
    """
    number = np.asarray(counts, dtype=np.float64)
    scored = number > 0
    before, after = (np.asarray(given, np.float64) for given in (intact, losses))
    difference = np.where(scored[:, None], after - before[:, None], 0)
    finite = np.isfinite(difference).all(axis=0)
    weighted = number[:, None] * np.where(finite, difference, np.nan)
    change, drawn = drawn_ratios(weighted, number[:, None], resamples, seed)
    return LossChanges(percentile_interval(change, drawn, level, bool(scored.sum() > 1)), drawn)


def place_among(value: float, draws: ArrayLike) -> tuple[int, float]:
    """How many random draws reach `value`, and the one-sided p of its rank among them.

    ``p = (1 + #{draws ≥ value}) / (1 + number)``: under the null hypothesis the value is one more
    draw. Draws that are NaN do not count; NaN if there is none, or no value.
    """
    others = np.asarray(draws, dtype=np.float64)
    others = others[~np.isnan(others)]
    if not len(others) or np.isnan(value):
        return 0, np.nan
    reached = int((others >= value).sum())
    return reached, (1 + reached) / (1 + len(others))


# Seeded draws that depend on what they are for, and on nothing else.


def draws(count: int, *purpose: object) -> NDArray[np.uint64]:
    """The first `count` numbers, of 64 random bits each, of the stream of this purpose.

    NumPy promises the raw stream of a bit generator for good. A longer draw begins with the shorter
    one, so the number at a position does not depend on a sequence's padding.
    """
    digest = hashlib.sha256("\n".join(map(str, purpose)).encode()).digest()
    generator = np.random.PCG64(int.from_bytes(digest, "big"))
    return np.asarray(generator.random_raw(count), dtype=np.uint64)


def numbers_of_text(seed: int, ids: Sequence[int], purpose: str, count: int) -> NDArray[np.uint64]:
    """Such numbers of a text, which depend on the seed, its tokens and their purpose alone."""
    digest = hashlib.sha256(json.dumps([purpose, seed, *map(int, ids)]).encode()).digest()
    return np.random.PCG64(int.from_bytes(digest[:16], "big")).random_raw(count)
