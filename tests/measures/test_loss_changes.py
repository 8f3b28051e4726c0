"""Changes of the loss against obvious loops."""

import numpy as np
from one_case import in_one_case

from normlens.measures.bootstrap import loss_changes, place_among


def example(size: int = 25) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    chance = np.random.default_rng(3)
    intact = chance.gamma(4, 1, size)
    losses = intact[:, None] + chance.normal([0.1, 2.0, 0.0], [0.2, 1.0, 1e-9], (size, 3))
    return losses, intact, chance.integers(1, 60, size)


def test_interval_agrees_with_an_obvious_loop() -> None:
    losses, intact, counts = example()
    chance = np.random.default_rng(7)
    expected = []
    for _ in range(300):
        s = chance.integers(0, 25, 25, dtype=np.uint32)
        before = (counts[s] * intact[s]).sum() / counts[s].sum()
        expected.append((counts[s, None] * losses[s]).sum(axis=0) / counts[s].sum() - before)
    change, drawn = loss_changes(losses, intact, counts, resamples=300, seed=7)
    total = counts.sum()
    expected_change = (counts @ losses) / total - counts @ intact / total
    np.testing.assert_allclose(change.mean, expected_change, atol=1e-12)
    np.testing.assert_allclose(drawn, expected, atol=1e-12)
    np.testing.assert_allclose(
        change[1:], np.quantile(expected, [0.025, 0.975], axis=0), atol=1e-12
    )


def test_sequences_that_were_not_scored_do_not_count() -> None:
    losses, intact, counts = example()
    more = [np.vstack([losses, [np.nan] * 3]), np.append(intact, np.nan), np.append(counts, 0)]
    change, drawn = loss_changes(*more, resamples=50)
    expected = loss_changes(losses, intact, counts, resamples=50).change.mean
    np.testing.assert_allclose(change.mean, expected, rtol=1e-12)
    assert np.isfinite(drawn).all()


@in_one_case("broken", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_is_not_left_out(broken: float) -> None:
    losses, intact, counts = example()
    losses[4, 1] = broken
    change = loss_changes(losses, intact, counts, 50).change
    assert np.isnan([end[1] for end in change]).all()
    assert np.isfinite([end[[0, 2]] for end in change]).all()


def test_place_among_draws() -> None:
    assert place_among(2.0, np.arange(20) / 10) == (0, 1 / 21)
    assert place_among(0.0, np.arange(20) / 10) == (20, 1.0)
    assert place_among(1.0, [1.0, 0.5, np.nan]) == (1, 2 / 3)
    for nothing in (place_among(1.0, []), place_among(float("nan"), [1.0])):
        assert np.isnan(nothing[1])
