"""Agreement with gold scores against SciPy on every resample."""

import numpy as np
from one_case import in_one_case
from scipy import stats

from normlens.measures.ranks import rank_agreement


def example(size: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    chance = np.random.default_rng(2)
    gold = chance.integers(0, 11, size) / 2  # many ties, as in STS-B
    reference = gold + chance.normal(0, 1, size)
    values = np.column_stack([reference + chance.normal(0, 2, size), np.round(reference)])
    return values, reference, gold


def test_resamples_agree_with_scipy() -> None:
    values, reference, gold = example()
    again = np.random.default_rng(9)
    rho = []
    for _ in range(150):
        s = again.integers(0, 40, 40, dtype=np.uint32)
        rho.append([stats.spearmanr(x[s], gold[s]).statistic for x in (reference, *values.T)])
    drawn = np.array(rho)
    result = rank_agreement(values, reference, gold, resamples=150, seed=9)
    now = [stats.spearmanr(x, gold).statistic for x in (reference, *values.T)]
    np.testing.assert_allclose(result.rho.mean, now[1:])
    np.testing.assert_allclose(result.rho[1:], np.quantile(drawn[:, 1:], [0.025, 0.975], axis=0))
    moved = drawn[:, 1:] - drawn[:, :1]
    np.testing.assert_allclose(result.difference.mean, np.subtract(now[1:], now[0]))
    np.testing.assert_allclose(result.difference[1:], np.quantile(moved, [0.025, 0.975], axis=0))


@in_one_case("broken", ["constant", "not finite", "few"])
def test_no_agreement_without_an_order(broken: str) -> None:
    values, reference, gold = example()
    if broken == "constant":
        values[:, 0] = 0.5
    elif broken == "not finite":
        values[3, 0] = np.nan
    else:
        values, reference, gold = values[:2], reference[:2], gold[:2]
    result = rank_agreement(values, reference, gold, 50)
    assert np.isnan([end[0] for end in (*result.rho, *result.difference, *result.drawn)]).all()
    if broken != "few":
        ends = (*result.rho, *result.difference, *result.drawn)
        assert np.isfinite([end[1] for end in ends]).all()
