"""Word alignment by hand: links from scores, counts, error rates and their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from normlens.measures.alignment import (
    NO_WORD,
    Counts,
    aligned_words,
    count_links,
    rates,
    resampled_rates,
)

# Three targets (rows) and four sources (columns); the last column is the end of the sentence.
SCORES = np.array(
    [
        [0.5, 0.1, 0.3, 0.1],
        [0.2, 0.3, 0.2, 0.3],
        [0.1, 0.1, 0.1, 0.7],
    ]
)


def test_subwords_of_a_target_are_averaged():
    scores = np.array([[0.9, 0.1], [0.0, 1.0], [0.0, 0.5]])
    assert aligned_words(scores, [[0, 1]], [[0], [1]]).tolist() == [1]  # 0.45 and 0.55
    assert aligned_words(scores, [[0, 2]], [[0], [1]]).tolist() == [0]  # 0.45 and 0.30
    # A mean and not a sum: the end's score is averaged alike.
    assert aligned_words(scores, [[0, 1, 2]], [[0]], [1]).tolist() == [NO_WORD]


def test_no_link_where_the_end_of_the_sentence_wins():
    columns = [[0], [1], [2]]
    assert aligned_words(SCORES, [[0], [1], [2]], columns, [3]).tolist() == [0, 1, NO_WORD]
    assert aligned_words(SCORES, [[2]], columns).tolist() == [0]  # of equal words the first
    # A word of several subwords competes with its sum.
    assert aligned_words(SCORES, [[1]], [[0, 2]], [3]).tolist() == [0]


def test_words_without_tokens_have_no_link():
    assert aligned_words(SCORES, [[], [0]], [[], [1], [2]]).tolist() == [NO_WORD, 2]
    assert aligned_words(SCORES, [[0]], [[], []]).tolist() == [NO_WORD]
    assert aligned_words(SCORES, [], [[0]]).shape == (0,)


def test_counts_and_rates_by_hand():
    """Och and Ney's rates: two of three links are possible, one is sure, of two sure ones."""
    counts = count_links({(0, 0), (1, 1), (2, 0)}, sure={(0, 0), (3, 3)}, possible={(1, 1)})
    assert counts == Counts(sure_hits=1, possible_hits=2, links=3, sure=2)
    found = rates(counts)
    assert found.aer == pytest.approx(1 - 3 / 5)
    assert found.precision == pytest.approx(2 / 3)
    assert found.recall == pytest.approx(1 / 2)


def test_rates_are_of_all_pairs_together():
    counts = np.array([[[1, 1, 1, 1]], [[0, 1, 3, 3]]])
    found = resampled_rates(counts, 200)
    assert found.rates.aer[0] == pytest.approx(1 - 3 / 8)  # not the mean of 0 and 5/6
    value, low, high = found.interval("aer")
    # A resample holds one pair twice or both once.
    assert (low[0], high[0]) == pytest.approx((0, 1 - 1 / 6))
    assert value[0] == found.rates.aer[0]


def test_differences_are_of_the_same_resamples():
    rng = np.random.default_rng(0)
    hits = rng.integers(0, 5, 40)
    better = np.stack([hits + 1, hits + 1, np.full(40, 6), np.full(40, 6)], axis=-1)
    worse = np.stack([hits, hits, np.full(40, 6), np.full(40, 6)], axis=-1)
    found = resampled_rates(np.stack([better, worse], axis=1), 300)
    mean, low, high = found.difference("aer", 1, 0)
    assert (mean[0], low[0], high[0]) == pytest.approx((1 / 6,) * 3)
    _, first_low, first_high = found.interval("aer")
    assert (first_high - first_low > 0.05).all()  # each alone is uncertain
