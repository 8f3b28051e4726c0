"""Paired differences against SciPy and by hand, and the level of their test under the null."""

from __future__ import annotations

import numpy as np
import pytest
from one_case import in_one_case
from scipy import stats

from normlens.measures import bootstrap
from normlens.measures.bootstrap import holm, mean_intervals, paired_differences, sign_flip_p


def drawn(n: int, k: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.3, 1, (n, k))


@in_one_case("n", [2, 3, 7, 11])
def test_few_examples_take_every_flip_as_scipy_does(n: int) -> None:
    differences = drawn(n, seed=n)[:, 0]
    zeros = np.zeros(n)
    expected = stats.permutation_test(
        (differences, zeros),
        lambda a, b: np.mean(a - b),
        permutation_type="samples",
        n_resamples=np.inf,
    ).pvalue
    assert sign_flip_p(differences)[0] == pytest.approx(expected)


def test_p_by_hand() -> None:
    # Of the 8 flips of (1, 2, 4) only the data and its opposite have a sum of 7 or −7.
    assert sign_flip_p([1.0, 2.0, 4.0])[0] == 2 / 8
    # Sums of (3, 1, −2): ±6 twice, ±4 twice, ±2 twice, 0 twice; |3 + 1 − 2| = 2.
    assert sign_flip_p([3.0, 1.0, -2.0])[0] == 6 / 8
    assert sign_flip_p(np.zeros(40))[0] == 1
    # Ties count although their sums are rounded differently.
    assert sign_flip_p([0.1, 0.2, 0.3])[0] == sign_flip_p([1.0, 2.0, 3.0])[0] == 2 / 8


def test_drawn_flips_are_close_to_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = drawn(14, 3, seed=5)
    exact = sign_flip_p(differences, flips=1 << 14)
    by_chance = sign_flip_p(differences, flips=(1 << 14) - 1, seed=3)
    np.testing.assert_allclose(by_chance, exact, atol=4 * np.sqrt(0.25 / (1 << 14)))
    assert (by_chance != exact).any()
    monkeypatch.setattr(bootstrap, "CHUNK", 50)
    np.testing.assert_array_equal(sign_flip_p(differences, (1 << 14) - 1, seed=3), by_chance)
    np.testing.assert_array_equal(sign_flip_p(differences, 1 << 14), exact)


def test_differences_are_of_shared_examples() -> None:
    first, second = drawn(30, 2, seed=1), drawn(30, 2, seed=2)
    first[3, 0] = second[7, 0] = np.nan
    compared = paired_differences(first, second, resamples=500, flips=2000, seed=4)
    both = np.delete(np.arange(30), [3, 7])
    alone = paired_differences(first[both, 0], second[both, 0], 500, 2000, seed=4)
    assert compared.examples.tolist() == [28, 30]
    assert compared.mean[0] == pytest.approx((first - second)[both, 0].mean())
    assert compared.p[0] == alone.p[0]
    (mean,), (low,), (high,) = mean_intervals((first - second)[:, 1:2], 500, seed=4)
    assert (compared.mean[1], compared.low[1], compared.high[1]) == pytest.approx((mean, low, high))


@in_one_case("n", [0, 1])
def test_too_few_examples_have_no_p(n: int) -> None:
    compared = paired_differences(np.ones((n, 1)), np.zeros((n, 1)))
    assert np.isnan([compared.low[0], compared.high[0], compared.p[0]]).all()


def test_holm_by_hand() -> None:
    # 4 · .01, then the largest of that and 3 · .02, 2 · .03, 1 · .04.
    np.testing.assert_allclose(holm([0.04, 0.01, 0.03, 0.02]), [0.06, 0.04, 0.06, 0.06])
    np.testing.assert_allclose(holm([0.9, 0.5]), [1, 1])
    np.testing.assert_allclose(holm([0.01, np.nan, 0.04]), [0.02, np.nan, 0.04])
    assert holm([]).size == 0
