"""The rank of the word that must decide, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import toy

from normlens.errors import InputError
from normlens.studies.faithfulness.protocols import EVIDENCE, Example, deciding_words

TEXT = "The keys to the cabinet, keys"
LABELS = ["The", "keys", "to", "the", "cabinet", ",", "keys"]
#: "cabinet" is two tokens
WORDS = [0, 1, 2, 3, 4, 4, 5, 6]


def example(evidence: str, seed: int = 0) -> Example:
    asked = toy.question(range(10, 18), kind="next-token", text=TEXT, words=WORDS, labels=LABELS)
    return Example(asked, seed, evidence)


def rank(evidence: str, scores: list[float]) -> float | None:
    return toy.value(EVIDENCE.on(toy.LENS), example(evidence), scores, {})["most"]


def test_a_word_is_the_sum_of_its_tokens():
    scores = [0.1, 0.5, 0.2, 0.3, 0.3, 0.4, 0.0, -1.0]
    assert rank("cabinet", scores) == 1.0  # 0.3 + 0.4
    assert rank("keys", scores) == 1 / 2
    assert rank("to", scores) == 1 / 4
    assert rank("The", scores) == 1 / 5


def test_of_several_occurrences_the_best_counts():
    assert rank("keys", [0.1, -1, 0, 0, 0, 0, 0, 3.0]) == 1.0
    assert rank("keys", [4.0, -1, 0, 0, 0, 0, 0, 3.0]) == 1 / 2


def test_it_is_a_whole_word_with_its_capitals():
    assert deciding_words(example("the").question.encoded, "the")[1] == {3}
    assert deciding_words(example("The").question.encoded, "The")[1] == {0}
    for missing in ("key", "Cabinet", "NA", ""):
        with pytest.raises(InputError):
            deciding_words(example("x").question.encoded, missing)


def test_evidence_of_several_words_counts_as_one():
    words, deciding = deciding_words(example("x").question.encoded, "to the cabinet")
    assert words.tolist() == [0, 1, 2, 2, 2, 2, 3, 4]
    assert deciding == {2}
    assert rank("to the cabinet", [0.5, 0.9, 0.3, 0.3, 0.3, 0.3, 0, 0]) == 1.0


def test_equal_scores_rank_by_the_seed():
    ranks = [
        toy.value(EVIDENCE.on(toy.LENS), example("to", seed), [0.0] * 8, {})["most"]
        for seed in range(200)
    ]
    # Every place is as probable: the mean of 1, 1/2, …, 1/7.
    assert np.mean([r for r in ranks if r]) == pytest.approx(np.mean(1 / np.arange(1, 8)), abs=0.06)
    assert set(ranks) == {1 / place for place in range(1, 8)}


def test_one_word_says_nothing():
    asked = toy.question(
        [10, 11], kind="next-token", text="Katherine", words=[0, 0], labels=["Katherine"]
    )
    assert toy.value(EVIDENCE.on(toy.LENS), Example(asked, 0, "Katherine"), [1, 2], {}) == {
        "most": None
    }
