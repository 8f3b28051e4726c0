"""The papers' measures on arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from normlens.measures.maps import (
    amplification,
    merge_words,
    normalise,
    outlier_dimensions,
    strongest_pairs,
)
from normlens.measures.ranks import spearman

hypothesis = pytest.importorskip("hypothesis")
given, st = hypothesis.given, hypothesis.strategies


def random_maps(seed: int, layers: int = 2, n: int = 6, causal: bool = False, ties: bool = False):
    rng = np.random.default_rng(seed)
    maps = rng.integers(1, 5, (layers, n, n)) if ties else rng.random((layers, n, n)) + 0.01
    return np.tril(maps).astype(float) if causal else maps.astype(float)


def everything(maps: np.ndarray, causal: bool) -> np.ndarray:
    allowed = np.ones(maps.shape, bool)
    return np.tril(allowed) if causal else allowed


# Similarity ---------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), causal=st.booleans(), ties=st.booleans())
def test_similarity_is_scipys_spearman_over_allowed_pairs(seed, causal, ties):
    a = random_maps(seed, causal=causal, ties=ties)
    b = random_maps(seed + 1, causal=causal, ties=ties)
    allowed = everything(a, causal)
    expected = [
        spearmanr(x[mask], y[mask]).statistic for x, y, mask in zip(a, b, allowed, strict=True)
    ]
    np.testing.assert_allclose(spearman(a, b, allowed), expected, atol=1e-12)


# Amplification ------------------------------------------------------------------------------------


def test_amplification_by_hand():
    before = np.array([[[1.0, 0.0], [3.0, 2.0]]])
    after = np.array([[[1.0, 1.0], [1.0, 3.0]]])
    np.testing.assert_allclose(amplification(before, after), [[[0.25, 0.25], [-0.25, -0.25]]])
    np.testing.assert_allclose(
        amplification(before, after, "target"), [[[-0.5, 0.5], [-0.35, 0.35]]]
    )
    np.testing.assert_allclose(amplification(before, after, "none"), after - before)


def test_a_source_that_nobody_reads_is_not_amplified():
    before, after = random_maps(0), random_maps(1)
    before[..., 2] = 0
    found = amplification(before, after)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(normalise(before)[..., 2], 0)


@given(seed=st.integers(0, 10_000), causal=st.booleans(), top=st.integers(1, 40))
def test_strongest_pairs_are_the_extremes_off_the_diagonal(seed, causal, top):
    before, after = (random_maps(seed + k, layers=1, causal=causal)[0] for k in (0, 1))
    difference = amplification(before, after)
    allowed = everything(before, causal)
    up, down = strongest_pairs(difference, allowed, top, np.eye(len(allowed), dtype=bool))
    values = np.sort(difference[allowed & ~np.eye(6, dtype=bool)])
    assert [pair.value for pair in up] == [v for v in values[::-1][:top] if v > 0]
    assert [pair.value for pair in down] == [v for v in values[:top] if v < 0]
    for pair in up + down:
        assert pair.target != pair.source
        assert allowed[pair.target, pair.source]
        assert difference[pair.target, pair.source] == pair.value


def test_outliers_are_far_from_the_mean_of_all():
    gamma = torch.full((100,), 5.0)
    gamma[[7, 40]] = torch.tensor([9.0, 1.0])
    far, others = outlier_dimensions(gamma)
    assert far.tolist() == [7, 40]
    assert sorted([*far.tolist(), *others.tolist()]) == list(range(100))
    assert outlier_dimensions(torch.ones(5))[0].numel() == 0


# Words --------------------------------------------------------------------------------------------


def test_words_sum_columns_and_average_rows():
    maps = np.arange(16.0).reshape(1, 4, 4)
    merged = merge_words(maps, [[0], [1, 2], [3]])
    expected = np.array(
        [
            [0, 1 + 2, 3],
            [(4 + 8) / 2, (5 + 6 + 9 + 10) / 2, (7 + 11) / 2],
            [12, 13 + 14, 15],
        ]
    )
    np.testing.assert_allclose(merged[0], expected)
