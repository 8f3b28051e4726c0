"""Spearman's ρ between two quantities of (layer, component) cells, with intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normlens.analysis.bootstrap import Array, divided, resample_counts
from normlens.analysis.ranks import centred_ranks

#: Fewer cells have no order that a correlation could tell from chance.
FEWEST = 4


class CellCorrelation(NamedTuple):
    """ρ over cells, with an interval over sequences and one over cells."""

    cells: int
    rho: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    cells_low: float = float("nan")
    cells_high: float = float("nan")


def row_spearman(a: Array, b: Array) -> Array:
    """Spearman's ρ of every two rows, (…, p) × 2 → (…,); NaN where one of them is constant."""
    first, second = centred_ranks(a), centred_ranks(b)
    squares = (first**2).sum(axis=-1) * (second**2).sum(axis=-1)
    return np.clip(divided((first * second).sum(axis=-1), np.sqrt(squares)), -1, 1)


def mean_draws(values: ArrayLike, resamples: int, seed: int) -> tuple[Array, Array]:
    """Means (k,) of the columns of (s, k), and those of resampled sequences, (resamples, k).

    NaN cells are left out column by column. The draws are those of every bootstrap with this seed
    over as many sequences, so that two quantities of the same sequences are resampled together.
    """
    cells = np.asarray(values, dtype=np.float64)
    present = ~np.isnan(cells)
    filled = np.where(present, cells, 0)
    drawn = np.full((resamples, cells.shape[1]), np.nan)
    for rows, weights in resample_counts(len(cells), resamples, np.random.default_rng(seed)):
        drawn[rows] = divided(weights @ filled, weights @ present.astype(np.float64))
    return divided(filled.sum(axis=0), present.sum(axis=0)), drawn


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
    if np.isnan(rho):
        return CellCorrelation(size)
    return CellCorrelation(size, rho, *_ends(over_sequences, level), *_ends(over_cells, level))


def _ends(drawn: Array, level: float) -> tuple[float, float]:
    """Percentiles of the draws that have a ρ; NaN where fewer than half of them have."""
    present = drawn[~np.isnan(drawn)]
    if len(present) < max(2, len(drawn) / 2):
        return float("nan"), float("nan")
    tail = (1 - level) / 2
    low, high = np.quantile(present, [tail, 1 - tail])
    return float(low), float(high)
