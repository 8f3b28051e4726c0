"""``leave-one-out``: how much the score drops without a token.

    s(text) − s(text with token k masked)

Where the tokenizer has no mask token, the token is deleted. Special tokens, which removals never
touch, have 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from normlens.evaluate.methods.base import Method, MethodOptions, Scores
from normlens.evaluate.questions import Question, mask_token
from normlens.evaluate.scoring import score_variants
from normlens.evaluate.variants import Variant

if TYPE_CHECKING:
    from normlens.lens import Lens


def drops(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> list[Scores]:
    """The drops (k,) of each text's score."""
    mask = mask_token(lens)
    left_out = [_removable(question, mask) for question in questions]
    asked = [
        (question, [question.whole, *(_without(question, place, mask) for place in places)])
        for question, places in zip(questions, left_out, strict=True)
    ]
    drops = []
    scored = score_variants(lens, asked, batch_size=options.batch_size)
    for question, places, one in zip(questions, left_out, scored, strict=True):
        scores = np.zeros(len(question))
        scores[places] = one.score[0] - one.score[1:]
        drops.append(scores)
    return drops


def _removable(question: Question, mask: int | None) -> list[int]:
    """The ordinary tokens; a text's only token cannot be deleted, and has 0."""
    if mask is None and len(question) == 1:
        return []
    if mask is None and question.position == 0:
        # The score is read at the first token, which sees no other: nothing is left without it.
        return [place for place in question.ordinary if place > 0]
    return question.ordinary


def _without(question: Question, place: int, mask: int | None) -> Variant:
    return question.without([place]) if mask is None else question.replaced([place], mask)


LEAVE_ONE_OUT = Method("leave-one-out", drops)
