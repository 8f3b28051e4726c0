"""``random`` and ``first-token``: what attributions must do better than."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from normlens.evaluate.methods.base import Method, MethodOptions, Scores
from normlens.evaluate.questions import Question

if TYPE_CHECKING:
    from normlens.lens import Lens


def random_scores(
    lens: Lens, questions: Sequence[Question], options: MethodOptions
) -> list[Scores]:
    """Scores (k,) from 0 to 1 that depend on a text's tokens and the seed alone."""
    return [_generator(question, options.seed).random(len(question)) for question in questions]


def _generator(question: Question, seed: int) -> np.random.Generator:
    named = ",".join(map(str, [seed, *question.encoded.ids]))
    return np.random.default_rng(list(hashlib.sha256(named.encode()).digest()))


def earliness(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> list[Scores]:
    """Scores (k,) that fall from 1 at the first ordinary token to 0; special tokens have 0."""
    scores = []
    for question in questions:
        places, falling = question.ordinary, np.zeros(len(question))
        falling[places] = 1 - np.arange(len(places)) / max(1, len(places))
        scores.append(falling)
    return scores


RANDOM = Method("random", random_scores)
FIRST_TOKEN = Method("first-token", earliness)
