"""Rank correlations of cells and of maps against SciPy and obvious loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from one_case import in_one_case
from scipy import stats

from normlens.measures import tensors
from normlens.measures.bootstrap import loss_changes, mean_draws
from normlens.measures.ranks import cell_correlation, row_spearman, spearman_matrix
from normlens.measures.tensors import spearman_matrices


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


def drawn(batch: int = 3, scopes: int = 4, n: int = 6, values: int = 1000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(values)
    whole = torch.randint(values, (batch, scopes, n, n), generator=generator)
    return whole.float() / values


def masks(n: int = 6) -> torch.Tensor:
    ragged = torch.ones(3, n, n, dtype=torch.bool)
    ragged[1, 4:], ragged[1, :, 4:] = False, False
    ragged[2] = ragged[2].tril()
    return ragged


@in_one_case("values", [1000, 5, 2])
@in_one_case("at_once", [1, 1 << 20])
@in_one_case("spoilt", [torch.nan, torch.inf, -torch.inf])
def test_ragged_batches_with_ties(values, at_once, spoilt, monkeypatch):
    """What is not allowed does not count, and infinite entries beside it have ranks."""
    monkeypatch.setattr(tensors, "AT_ONCE", at_once)
    maps, allowed = drawn(values=values), masks()
    if spoilt == spoilt:
        maps[:, 1, :2, 0] = spoilt
    found = spearman_matrices(maps.masked_fill(~allowed[:, None], spoilt), allowed)
    for index in range(3):
        flat = maps[index].numpy()[:, allowed[index].numpy()]
        np.testing.assert_allclose(found[index], spearman_matrix(flat), atol=1e-14)


def test_constant_maps_and_nan_have_no_correlation():
    maps, allowed = drawn(), masks()
    maps[0, 1] = 0.5
    maps[1, 2, 0, 0] = torch.nan
    found = spearman_matrices(maps, allowed)
    assert found[0, 1].isnan().all()
    assert found[1, 2].isnan().all()
    assert not found[2].isnan().any()
    keep = torch.tensor([0, 1, 3])
    assert not found[1][keep][:, keep].isnan().any()


def test_sums_of_products_are_exact_for_512_tokens():
    # Two rankings of all pairs, one the reverse of the other but for the first two: the products
    # of ranks differ in their last digits, which only an exact sum keeps.
    count = 512 * 512
    up = torch.arange(count, dtype=torch.float32)
    down = up.flip(0)
    down[:2] = down[:2].flip(0)
    maps = torch.stack([up, down]).view(1, 2, 512, 512)
    found = spearman_matrices(maps, torch.ones(1, 512, 512, dtype=torch.bool))
    ranks = [2 * int(value) - (count - 1) for value in up.tolist()]
    square = sum(rank * rank for rank in ranks)
    # Neighbours that change places add 2 · 2 to the sum of products, which was minus the square.
    assert found[0, 0, 1].item() == (4 - square) / square


def test_the_order_of_pairs_changes_nothing():
    chance = np.random.default_rng(1)
    values = chance.integers(0, 300, (6, 2000)).astype(np.float32)
    shuffled = spearman_matrix(values[:, chance.permutation(2000)])
    np.testing.assert_array_equal(spearman_matrix(values), shuffled)
    values[2, 5] = np.nan
    assert np.isnan(spearman_matrix(values)[2]).all()
