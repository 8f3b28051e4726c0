"""Protocols on a model whose score is a sum over tokens, by hand.

Values of texts that lose tokens are compared with plain torch in `test_against_plain_torch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from normlens.errors import InputError
from normlens.inputs.text import Encoded
from normlens.studies.faithfulness.protocols import (
    COMPREHENSIVENESS,
    EVIDENCE,
    SUFFICIENCY,
    Drops,
    Example,
    deciding_words,
)
from normlens.studies.faithfulness.questions import Question, Variant

LENS: Any = SimpleNamespace(tokenizer=None)


def asked(
    ids: Sequence[int],
    *,
    text: str | None = None,
    words: Sequence[int | None] | None = None,
    labels: Sequence[str] = (),
) -> Question:
    """A question about the next token of a text of ordinary tokens."""
    encoded = Encoded(
        [*ids],
        [f"t{i}" for i in ids],
        [False] * len(ids),
        words=None if words is None else list(words),
        word_labels=list(labels),
        text=text,
    )
    return Question(encoded, 0, 1, len(ids) - 1)


def scored(variants: Sequence[Variant], worth: Mapping[int, float]) -> list[float]:
    """The toy: a score is the sum of what the tokens are worth."""
    return [sum(worth.get(i, 0.0) for i in variant.ids) for variant in variants]


def value(
    protocol: Drops, example: Example, scores: Sequence[float], worth: Mapping[int, float]
) -> dict[str, float | None]:
    """What a protocol makes of scores, with the toy as the model."""
    given, protocol = np.array(scores, np.float64), protocol.on(LENS)
    removals = protocol.removals(example, given)
    whole, *outcomes = scored([example.question.whole, *(r.variant for r in removals)], worth)
    return protocol.values(example, given, removals, whole - np.array(outcomes))


TEXT = "The keys to the cabinet, keys"
LABELS = ["The", "keys", "to", "the", "cabinet", ",", "keys"]
#: "cabinet" is two tokens
WORDS = [0, 1, 2, 3, 4, 4, 5, 6]


def example(evidence: str, seed: int = 0) -> Example:
    question = asked(range(10, 18), text=TEXT, words=WORDS, labels=LABELS)
    return Example(question, seed, evidence)


def rank(evidence: str, scores: list[float]) -> float | None:
    return value(EVIDENCE, example(evidence), scores, {})["most"]


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
    ranks = [value(EVIDENCE, example("to", seed), [0.0] * 8, {})["most"] for seed in range(200)]
    # Every place is as probable: the mean of 1, 1/2, …, 1/7.
    assert np.mean([r for r in ranks if r]) == pytest.approx(np.mean(1 / np.arange(1, 8)), abs=0.06)
    assert set(ranks) == {1 / place for place in range(1, 8)}


def test_one_word_says_nothing():
    question = asked([10, 11], text="Katherine", words=[0, 0], labels=["Katherine"])
    assert value(EVIDENCE, Example(question, 0, "Katherine"), [1, 2], {}) == {"most": None}


def test_a_text_that_would_vanish_says_nothing():
    lone = Example(asked([10]))
    for protocol in (COMPREHENSIVENESS, SUFFICIENCY):
        assert value(protocol, lone, [1.0], {10: 1.0}) == {"most": None}


def test_shares_are_rounded_down_and_have_a_token_at_least():
    example, scores = Example(asked(range(10, 20))), np.linspace(1, 0, 10)
    gone, kept = (
        one.on(LENS).removals(example, scores) for one in (COMPREHENSIVENESS, SUFFICIENCY)
    )
    assert [removal.removed for removal in gone] == [1, 1, 1, 2, 5]
    assert [removal.removed for removal in kept] == [9, 9, 9, 8, 5]
    assert [removal.share for removal in kept] == [0.01, 0.05, 0.1, 0.2, 0.5]
    assert kept[0].variant.ids == (10,)
