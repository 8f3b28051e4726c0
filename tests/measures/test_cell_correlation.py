"""Correlations over cells against SciPy and obvious loops."""

import numpy as np
import pytest
from scipy import stats

from normlens.measures.bootstrap import loss_changes
from normlens.measures.ranks import cell_correlation, mean_draws, row_spearman


def test_rows_agree_with_scipy() -> None:
    chance = np.random.default_rng(0)
    a, b = chance.integers(0, 6, (2, 5, 12)).astype(float)
    expected = [stats.spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(row_spearman(a, b), expected)
    assert np.isnan(row_spearman(np.ones((1, 4)), np.arange(4.0)[None])).all()


def test_both_quantities_are_resampled_together() -> None:
    chance = np.random.default_rng(1)
    size, cells = 20, 8
    changes = chance.uniform(0, 1, (size, cells)) + np.arange(cells) / 5
    changes[3, 2] = np.nan
    intact, counts = chance.gamma(3, 1, size), chance.integers(1, 30, size)
    losses = intact[:, None] + chance.normal(0, 1, (size, cells)) + np.arange(cells) / 9
    mean, drawn = mean_draws(changes, 200, seed=5)
    delta = loss_changes(losses, intact, counts, resamples=200, seed=5)
    result = cell_correlation(mean, delta.change.mean, drawn, delta.drawn, seed=5)
    again = np.random.default_rng(5)
    expected = []
    for _ in range(200):
        s = again.integers(0, size, size, dtype=np.uint32)
        cost = (counts[s, None] * (losses - intact[:, None])[s]).sum(axis=0)
        expected.append(stats.spearmanr(np.nanmean(changes[s], axis=0), cost).statistic)
    assert result.rho == pytest.approx(stats.spearmanr(mean, delta.change.mean).statistic)
    assert (result.low, result.high) == pytest.approx(np.quantile(expected, [0.025, 0.975]))
    assert result.cells == cells
    assert result.cells_low < result.rho < result.cells_high


def test_cells_without_a_quantity_are_left_out() -> None:
    a = np.array([1.0, 2.0, np.nan, 3.0, 4.0, 5.0])
    b = np.array([1.0, 2.0, 9.0, 3.0, 4.0, np.inf])
    draws = np.tile(a, (50, 1)), np.tile(b, (50, 1))
    result = cell_correlation(a, b, *draws)
    assert (result.rho, result.low, result.high, result.cells) == (1.0, 1.0, 1.0, 4)
