"""Related pairs against others at the same distances, with sequences as the sample."""

import numpy as np
import pytest
from scipy import stats

from normlens.measures.bootstrap import hedges_g
from normlens.measures.reweighting import DistanceSums, compare_reweighted


class Pairs:
    """Pairs one by one: which sequence, which distance (from 1), target or not, and a score."""

    def __init__(self, sequence, distance, related, score, size):
        self.sequence, self.distance = np.asarray(sequence), np.asarray(distance)
        self.related, self.score = np.asarray(related), np.asarray(score, dtype=float)
        self.size, self.reach = size, int(self.distance.max())

    def sums(self, related: bool) -> DistanceSums:
        mine = self.related == related
        cell = self.sequence[mine] * self.reach + self.distance[mine] - 1

        def summed(values):
            cells = np.bincount(cell, values, minlength=self.size * self.reach)
            return cells.reshape(self.size, self.reach)

        score = self.score[mine]
        total, squares = summed(score)[:, :, None], summed(score**2)[:, :, None]
        return DistanceSums(summed(np.ones(len(score))), total, squares)

    def compare(self, resamples=400, seed=0):
        return compare_reweighted(self.sums(True), self.sums(False), resamples, seed)


def simulated(chance, sequences=30, effect=0.0, between=1.0, slope=0.3) -> Pairs:
    """Scores that depend on the sequence (by `between`) and on the distance (by `slope`).

    Some sequences have many targets and some have none, whatever their scores are like.
    """
    sizes = chance.integers(40, 160, sequences)
    sequence = np.repeat(np.arange(sequences), sizes)
    share = chance.beta(0.5, 2, sequences)
    distance = chance.integers(1, 7, len(sequence))
    related = chance.random(len(sequence)) < share[sequence] / np.sqrt(distance)
    score = between * chance.normal(size=sequences)[sequence] + slope * distance
    score += effect * related + chance.normal(size=len(sequence))
    return Pairs(sequence, distance, related, score, sequences)


def slow_means(pairs: Pairs, drawn) -> tuple[float, float]:
    """Both means in a list of sequences, pair by pair."""
    targets, others = [], {}
    for number in drawn:
        for place in np.flatnonzero(pairs.sequence == number):
            distance, score = pairs.distance[place], pairs.score[place]
            if pairs.related[place]:
                targets.append((distance, score))
            else:
                others.setdefault(distance, []).append(score)
    kept = [(distance, score) for distance, score in targets if distance in others]
    if not kept:
        return np.nan, np.nan
    first = np.mean([score for _, score in kept])
    return first, np.mean([np.mean(others[distance]) for distance, _ in kept])


def slow_error(pairs: Pairs) -> float:
    """The jackknife's derivative: how much a little more weight for each sequence changes T − O."""
    step, changes = 1e-5, []
    for number in range(pairs.size):
        found = []
        for sign in (-1, 1):
            weight = np.ones(pairs.size)
            weight[number] += sign * step
            sums = [pairs.sums(related) for related in (True, False)]
            n, t, m, o = (
                weight @ part for some in sums for part in (some.count, some.total[:, :, 0])
            )
            there = (m > 0) & (n > 0)
            n, t, m, o = n[there], t[there], m[there], o[there]
            found.append((t.sum() - (n * o / m).sum()) / n.sum())
        changes.append((found[1] - found[0]) / (2 * step))
    return float(np.sqrt(np.sum(np.square(changes))))


def test_means_and_resamples_agree_with_loops_over_pairs() -> None:
    pairs = simulated(np.random.default_rng(1), sequences=9, effect=0.5)
    found = pairs.compare(resamples=60, seed=3)
    first, second = slow_means(pairs, range(9))
    assert found.comparison.first.mean[0] == pytest.approx(first)
    assert found.comparison.second.mean[0] == pytest.approx(second)
    assert found.comparison.difference.mean[0] == pytest.approx(first - second)
    chance = np.random.default_rng(3)
    drawn = [slow_means(pairs, chance.integers(0, 9, 9, dtype=np.uint32)) for _ in range(60)]
    low, high = np.nanquantile(drawn, [0.025, 0.975], axis=0)
    assert [found.comparison.first.low[0], found.comparison.second.low[0]] == pytest.approx(low)
    assert [found.comparison.first.high[0], found.comparison.second.high[0]] == pytest.approx(high)


def resampled(pairs: Pairs, drawn) -> Pairs:
    """Pairs of the drawn sequences; one that was drawn twice is two."""
    places = [np.flatnonzero(pairs.sequence == number) for number in drawn]
    sequence = np.repeat(np.arange(len(places)), [len(some) for some in places])
    at = np.concatenate(places)
    parts = pairs.distance[at], pairs.related[at], pairs.score[at]
    return Pairs(sequence, *parts, len(places))


def test_p_and_the_differences_interval_are_made_of_studentised_resamples() -> None:
    pairs = simulated(np.random.default_rng(5), sequences=9, effect=0.3)
    found = pairs.compare(resamples=80, seed=2).comparison
    own, error = np.subtract(*slow_means(pairs, range(9))), slow_error(pairs)
    chance = np.random.default_rng(2)
    moved = []
    for _ in range(80):
        again = resampled(pairs, chance.integers(0, 9, 9, dtype=np.uint32))
        moved.append(abs(np.subtract(*slow_means(again, range(9))) - own) / slow_error(again))
    p = (1 + sum(t >= abs(own) / error for t in moved)) / 81
    assert 0.02 < p < 0.9  # somewhere between, where errors would show
    assert found.p[0] == pytest.approx(p)
    reach = np.quantile(moved, 0.95, method="higher") * error
    assert found.difference.low[0] == pytest.approx(own - reach, rel=1e-5)
    assert found.difference.high[0] == pytest.approx(own + reach, rel=1e-5)


def test_strong_sequences_do_not_deceive_it() -> None:
    """No difference, but scores that belong to sequences: 400 experiments, each drawn anew."""
    chance = np.random.default_rng(0)
    false = 0
    for seed in range(400):
        found = simulated(chance, between=3.0).compare(resamples=199, seed=seed)
        false += int(found.comparison.p[0] <= 0.05)
    low, high = stats.binom.interval(0.999, 400, 0.05)
    assert low <= false <= high


def test_the_effect_is_hedges_g_of_as_many_others_at_the_same_distances() -> None:
    """Others at each distance are the same few values over again: their copies are as many."""
    target = np.array([1.0, 2.0, 4.0, 3.0, 5.0, 7.0])
    distance = np.array([1, 1, 1, 1, 2, 2])
    others = {1: [0.0, 1.0], 2: [2.0, 6.0]}
    matched = np.array([0.0, 1.0, 0.0, 1.0, 2.0, 6.0])
    pairs = Pairs(
        [0, 1, 2, 0, 1, 2, 0, 1, 2, 0],
        [*distance, 1, 1, 2, 2],
        [True] * 6 + [False] * 4,
        [*target, *others[1], *others[2]],
        3,
    )
    found = pairs.compare().comparison.effect[0]
    assert found == pytest.approx(hedges_g(target, matched)[0])
