import numpy as np
import pytest
from one_case import in_one_case
from scipy import stats

from normlens.measures import bootstrap
from normlens.measures.bootstrap import benjamini_hochberg, compare_means, hedges_g, mean_intervals


def draws(size: int, resamples: int, chance: np.random.Generator) -> list[np.ndarray]:
    """Which values each resample holds, one by one."""
    return [chance.integers(0, size, size, dtype=np.uint32) for _ in range(resamples)]


def test_columns_leave_out_their_own_nan() -> None:
    values = np.random.default_rng(1).normal(5, 1, (30, 3))
    values[::3, 1] = np.nan
    values[1, 2] = np.nan
    expected = []
    for places in draws(30, 400, np.random.default_rng(0)):
        expected.append(np.nanmean(values[places], axis=0))
    mean, low, high = mean_intervals(values, resamples=400, level=0.9)
    np.testing.assert_allclose(mean, np.nanmean(values, axis=0))
    np.testing.assert_allclose([low, high], np.quantile(expected, [0.05, 0.95], axis=0))


def slow_comparison(a: np.ndarray, b: np.ndarray, resamples: int, seed: int) -> tuple:
    """Efron and Tibshirani's algorithm 16.2, step by step."""

    def statistic(x: np.ndarray, y: np.ndarray) -> float:
        error = np.sqrt(x.var(ddof=1) / len(x) + y.var(ddof=1) / len(y))
        return (x.mean() - y.mean()) / error

    chance = np.random.default_rng(seed)
    first, second = draws(len(a), resamples, chance), draws(len(b), resamples, chance)
    pooled = np.concatenate([a, b]).mean()
    shifted = a - a.mean() + pooled, b - b.mean() + pooled
    extreme, differences = 0, []
    for x, y in zip(first, second, strict=True):
        extreme += abs(statistic(shifted[0][x], shifted[1][y])) >= abs(statistic(a, b))
        differences.append(a[x].mean() - b[y].mean())
    return (1 + extreme) / (1 + resamples), *np.quantile(differences, [0.025, 0.975])


@in_one_case("shift", [0.0, 0.4])
def test_comparison_agrees_with_an_obvious_loop(shift: float) -> None:
    chance = np.random.default_rng(7)
    a, b = chance.lognormal(size=40) + shift, chance.lognormal(size=25)
    found = compare_means(a, b, resamples=400, seed=5)
    p, low, high = slow_comparison(a, b, 400, 5)
    assert 0.01 < p < 1  # somewhere between, where errors would show
    assert found.p[0] == pytest.approx(p)
    assert found.difference.mean[0] == pytest.approx(a.mean() - b.mean())
    assert (found.difference.low[0], found.difference.high[0]) == pytest.approx((low, high))
    assert found.first.mean[0] == pytest.approx(a.mean())
    assert found.first.low[0] < a.mean() < found.first.high[0]
    assert found.second.low[0] < b.mean() < found.second.high[0]
    assert found.effect[0] == pytest.approx(hedges_g(a, b)[0])


def test_columns_are_tested_as_if_each_were_alone() -> None:
    chance = np.random.default_rng(0)
    a, b = chance.normal(size=(30, 4)), chance.normal(0.3, 1, (20, 4))
    together = compare_means(a, b, resamples=300, seed=2)
    for column in range(4):
        alone = compare_means(a[:, column], b[:, column], resamples=300, seed=2)
        assert together.p[column] == alone.p[0]
        assert together.difference.low[column] == pytest.approx(alone.difference.low[0])


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(0)
    a, b = chance.normal(size=(31, 3)), chance.normal(size=(17, 3))
    whole, interval = compare_means(a, b, 101), mean_intervals(a, 101)
    monkeypatch.setattr(bootstrap, "CHUNK", 70)
    monkeypatch.setattr(bootstrap, "DRAWN", 40)
    parts, part_interval = compare_means(a, b, 101), mean_intervals(a, 101)
    np.testing.assert_array_equal(whole.p, parts.p)
    np.testing.assert_allclose(whole.difference, parts.difference)
    np.testing.assert_allclose(interval, part_interval)


@in_one_case("sizes", [(0, 5), (1, 5), (5, 1), (0, 0), (1, 1)])
def test_tiny_groups_have_no_p(sizes: tuple[int, int]) -> None:
    a, b = (np.arange(float(size)) for size in sizes)
    found = compare_means(a, b, resamples=100)
    assert np.isnan([found.p, found.effect, *found.difference[1:], *found.first[1:]]).all()
    assert np.isnan(found.first.mean[0]) == (sizes[0] == 0)


@in_one_case("size", [0, 1])
def test_tiny_samples_have_no_interval(size: int) -> None:
    (mean,), (low,), (high,) = mean_intervals(np.full((size, 1), 3.0), resamples=100)
    assert np.isnan([low, high]).all()
    assert np.isnan(mean) if size == 0 else mean == 3.0
    columns = np.array([[np.nan, 1.0], [np.nan, np.nan]])
    means, lows, highs = mean_intervals(columns, resamples=100)
    assert np.isnan(means[0])
    assert means[1] == 1.0
    assert np.isnan([lows, highs]).all()


def test_hedges_g_by_hand() -> None:
    # Means 3 and 1, variances 1 and 1: d = 2, and 1 − 3 / (4 · 6 − 9) = 0.8.
    assert hedges_g([2.0, 3.0, 4.0], [0.0, 1.0, 2.0])[0] == pytest.approx(1.6)
    assert hedges_g([0.0, 1.0, 2.0], [2.0, 3.0, 4.0])[0] == pytest.approx(-1.6)


def test_benjamini_hochberg_passes_nan_on() -> None:
    p = np.random.default_rng(0).uniform(size=40) ** 2
    adjusted = benjamini_hochberg(np.insert(p, [0, 20], np.nan))
    assert np.isnan(adjusted[[0, 21]]).all()
    np.testing.assert_allclose(adjusted[~np.isnan(adjusted)], stats.false_discovery_control(p))
    assert benjamini_hochberg([]).shape == (0,)
