from __future__ import annotations

import numpy as np
import pytest

from normlens.measures.reweighting import matched, proportional
from normlens.studies.papers.pair_samples import strata

hypothesis = pytest.importorskip("hypothesis")
given, st = hypothesis.given, hypothesis.strategies

distances = st.lists(st.integers(1, 90), max_size=60).map(lambda d: np.array(d, dtype=np.int64))


def stratum(distance: np.ndarray) -> list[int]:
    """Distances one by one to 16, then to 32, to 64, and beyond."""
    upper = [d if d <= 16 else 32 if d <= 32 else 64 if d <= 64 else 65 for d in distance.tolist()]
    return upper


@given(distances, distances, st.integers(1, 40))
def test_matched_pairs_have_the_same_distances(target, others, limit):
    a, b = matched(strata(target), strata(others), limit)
    assert len(a) == len(b) <= limit
    assert len(set(a.tolist())) == len(a)
    assert len(set(b.tolist())) == len(b)
    assert stratum(target[a]) == stratum(others[b])
    assert (np.diff(a) > 0).all()
    if set(stratum(target[:1])) & set(stratum(others)):
        assert len(a)


def test_matching_takes_every_pair_that_it_can():
    target = np.array([1, 2, 1, 99, 1])
    a, b = matched(target, np.array([5, 1, 2, 1, 1, 1]))
    assert a.tolist() == [0, 1, 2, 4]
    assert b.tolist() == [1, 2, 3, 4]


def test_scarce_others_limit_all_distances_alike():
    """Taking all pairs at distance 2 but few at 1 would change what is being compared."""
    target = np.random.default_rng(0).permutation(np.repeat([1, 2], [800, 800]))
    others = np.repeat([1, 2], [100, 5_000])
    chosen, _ = matched(target, others)
    assert 180 <= len(chosen) <= 250
    assert np.mean(target[chosen] == 1) == pytest.approx(0.5, abs=0.1)


def test_proportional_undoes_the_strata_of_the_sample():
    """As many pairs were sampled at 2 as at 3, where there are four times as many."""
    distance = np.random.default_rng(0).permutation(np.repeat([1, 2, 3], [500, 500, 500]))
    counts = np.zeros(19)
    counts[[1, 2]] = 1_000, 4_000
    chosen = proportional(distance - 1, counts, 400)
    found = distance[chosen]
    assert [int((found == d).sum()) for d in (1, 2, 3)] == [0, 80, 320]
    assert len(set(chosen.tolist())) == 400
    assert int((found[:100] == 3).sum()) == 80
    assert len(proportional(distance - 1, counts, 10_000)) == 625  # 3 runs out at 500
    assert len(proportional(distance - 1, np.zeros(19), 10)) == 0
