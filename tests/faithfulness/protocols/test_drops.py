"""Values of protocols that remove tokens, where a sum over tokens says what they must be."""

from __future__ import annotations

import numpy as np
import pytest
import toy

from normlens.studies.faithfulness.protocols import (
    AOPC,
    COMPREHENSIVENESS,
    CONTRAST_DROP_END,
    CONTRAST_DROP_RANDOM,
    SUFFICIENCY,
    Example,
)

MASKED, LEFT_OUT, KEPT = (one.on(toy.LENS) for one in (AOPC, COMPREHENSIVENESS, SUFFICIENCY))

#: Ten tokens that are worth 0.10, 0.09, …, 0.01.
IDS = list(range(10, 20))
WORTH = {token: (10 - place) / 100 for place, token in enumerate(IDS)}
TRUE = [0.0, *WORTH.values(), 0.0]  # special tokens' scores do not matter


def shuffled(seed: int) -> tuple[list[int], list[float]]:
    order = np.random.default_rng(seed).permutation(10)
    ids = [IDS[place] for place in order]
    return ids, [7.0, *(WORTH[i] for i in ids), -7.0]


@pytest.mark.parametrize("seed", range(3))
def test_aopc_of_true_scores_is_the_mean_of_the_largest_sums(seed):
    ids, scores = shuffled(seed)
    got = toy.value(MASKED, Example(toy.question(ids)), scores, WORTH)
    most = np.mean([sum(range(10, 10 - k, -1)) / 100 for k in range(10)])
    least = np.mean([sum(range(1, k + 1)) / 100 for k in range(10)])
    assert got == {"most": pytest.approx(most), "least": pytest.approx(least)}
    assert (most, least) == (pytest.approx(0.33), pytest.approx(0.165))


def test_shares_are_rounded_down_and_special_tokens_stay():
    example = Example(toy.question(IDS[:7]))
    removals = MASKED.removals(example, np.array([9.0, *range(7), 9.0]))
    most = [removal for removal in removals if removal.first == "most"]
    assert [removal.removed for removal in most] == [0, 0, 1, 2, 2, 3, 4, 4, 5, 6]
    assert [removal.share for removal in most] == pytest.approx([k / 10 for k in range(10)])
    for removal in removals:
        assert (removal.variant.ids[0], removal.variant.ids[-1]) == (toy.CLS, toy.SEP)
        assert sum(i == toy.MASK for i in removal.variant.ids) == removal.removed
    assert most[2].variant.ids[7] == toy.MASK  # the last ordinary token has the largest score


def test_comprehensiveness_deletes_the_most_important_and_at_least_one():
    example = Example(toy.question(IDS))
    removals = LEFT_OUT.removals(example, np.array(TRUE))
    assert [removal.removed for removal in removals] == [1, 1, 1, 2, 5]
    assert [len(removal.variant) for removal in removals] == [11, 11, 11, 10, 7]
    got = toy.value(LEFT_OUT, example, TRUE, WORTH)
    assert got == {"most": pytest.approx(np.mean([0.10, 0.10, 0.10, 0.19, 0.40]))}


def test_sufficiency_keeps_the_most_important_and_at_least_one():
    example = Example(toy.question(IDS))
    removals = KEPT.removals(example, np.array(TRUE))
    assert [removal.removed for removal in removals] == [9, 9, 9, 8, 5]
    assert [removal.share for removal in removals] == [0.01, 0.05, 0.1, 0.2, 0.5]
    assert removals[0].variant.ids == (toy.CLS, IDS[0], toy.SEP)
    got = toy.value(KEPT, example, TRUE, WORTH)
    assert got == {"most": pytest.approx(np.mean([0.45, 0.45, 0.45, 0.36, 0.15]))}


def test_a_text_that_would_vanish_says_nothing():
    lone = Example(toy.question([10], kind="next-token"))  # without special tokens around it
    for protocol in (LEFT_OUT, KEPT):
        assert toy.value(protocol, lone, [1.0], WORTH) == {"most": None}


def test_contrast_drops_by_the_end_token_and_by_random_tokens():
    example = Example(toy.question(IDS, kind="next-token"), seed=3)
    scores = list(WORTH.values())
    worth = {**WORTH, toy.END: -1.0}
    got = toy.value(CONTRAST_DROP_END.on(toy.LENS), example, scores, worth)
    # Each replaced token costs its worth and 1 more.
    assert got["most"] == pytest.approx(0.33 + 4.5)
    vocabulary = range(20, toy.SIZE)
    drops = CONTRAST_DROP_RANDOM.on(toy.LENS)
    draw = drops.change
    flat = {**WORTH, **dict.fromkeys(vocabulary, 0.5)}
    assert toy.value(drops, example, scores, flat)["most"] == pytest.approx(0.33 - 4.5 * 0.5)
    removals = drops.removals(example, np.array(scores))
    for removal in removals:
        changed = [i not in IDS for i in removal.variant.ids]
        assert sum(changed) == removal.removed
    # A place gets the same token at every share and by every method.
    whole = draw(example, range(10)).ids
    for removal in [*removals, *drops.removals(example, np.arange(10.0))]:
        for i, own, drawn in zip(removal.variant.ids, IDS, whole, strict=True):
            assert i in (own, drawn)
    other = Example(example.question, seed=4)
    assert draw(other, range(10)).ids != whole


def test_one_set_of_tokens_is_one_variant_whoever_chose_it():
    example = Example(toy.question(IDS))
    rising = MASKED.removals(example, np.arange(12.0))
    other = MASKED.removals(example, np.array([0, *range(5), *range(9, 4, -1), 0.0]))
    halves = [
        next(r.variant for r in removals if r.first == "most" and r.share == 0.5)
        for removals in (rising, other)
    ]
    assert halves[0] == halves[1]
