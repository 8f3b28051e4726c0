"""Paired comparisons: mean differences on the same examples, their intervals and p values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normlens.analysis.bootstrap import CHUNK, Array, mean_intervals

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
    differences = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    if differences.ndim == 1:
        differences = differences[:, None]
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
    columns = np.asarray(differences, np.float64)
    columns = columns[:, None] if columns.ndim == 1 else columns
    present = ~np.isnan(columns)
    p = np.full(columns.shape[1], np.nan)
    # Columns that lack the same examples share their flips.
    for pattern in np.unique(present, axis=1).T if columns.shape[1] else ():
        alike = np.flatnonzero((present == pattern[:, None]).all(axis=0))
        if pattern.sum() > 1:
            p[alike] = _flipped(columns[np.ix_(pattern, alike)], flips, seed)
    return p


def _flipped(values: Array, flips: int, seed: int) -> Array:
    """Take p of complete columns (n, k)."""
    rows = len(values)
    exact = rows < 63 and 1 << rows <= flips
    total = 1 << rows if exact else flips
    sums = np.abs(values.sum(axis=0)) - ROUNDING * np.abs(values).sum(axis=0)
    extreme = np.zeros(values.shape[1])
    for signs in _all_signs(rows) if exact else _drawn_signs(rows, flips, seed):
        extreme += np.count_nonzero(np.abs(signs @ values) >= sums, axis=0)
    return extreme / total if exact else (1 + extreme) / (1 + total)


def _all_signs(rows: int) -> Iterator[Array]:
    """Give every pattern of signs once, (some patterns, rows) at a time."""
    step = max(1, CHUNK // rows)
    for begin in range(0, 1 << rows, step):
        patterns = np.arange(begin, min(begin + step, 1 << rows))[:, None]
        yield np.where(patterns >> np.arange(rows) & 1, -1.0, 1.0)


def _drawn_signs(rows: int, flips: int, seed: int) -> Iterator[Array]:
    """Draw patterns of signs, pattern by pattern from one stream."""
    bits = np.random.default_rng(seed).bit_generator
    step = max(1, CHUNK // rows)
    words = -(-rows // 64)  # every pattern begins at a new word: the size of chunks changes nothing
    for begin in range(0, flips, step):
        drawn = bits.random_raw((min(step, flips - begin), words)).astype("<u8")
        yield np.where(np.unpackbits(drawn.view(np.uint8), axis=1, count=rows), -1.0, 1.0)


def holm(p: ArrayLike) -> Array:
    """Adjust p values for the chance of any false discovery; NaN stay NaN and do not count.

    ``p̃_(i) = max_{k ≤ i} min(1, (number − k + 1) · p_(k))``. Holm 1979.
    """
    values = np.asarray(p, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    scaled = values[order] * np.arange(len(order), 0, -1)
    adjusted = np.full(values.shape, np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return adjusted
