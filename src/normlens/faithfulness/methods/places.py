"""Where a question is read behind the last layer: one token's vector, or the mean of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normlens.explain.questions import place_of
from normlens.faithfulness.questions import COSINE, Question
from normlens.layers import FIRST, MEAN
from normlens.models.base import read_head

if TYPE_CHECKING:
    from normlens.lens import Lens


def place_read(lens: Lens, question: Question) -> int | None:
    """The token whose last vector the score is read from; None: the mean of all is."""
    if question.position is not None:
        return question.position
    if question.kind == COSINE:
        reads = lens.pooling.reads
        return None if reads == MEAN else 0 if reads == FIRST else len(question) - 1
    return place_of(lens, read_head(lens.adapter), question.encoded)


def row_read(lens: Lens, question: Question, pairs: NDArray[Any]) -> NDArray[np.float64]:
    """The row (j,) of a map (i, j) of the whole model that the score is read from."""
    place = place_read(lens, question)
    rows = pairs.astype(np.float64)
    row: NDArray[np.float64] = rows.mean(axis=0) if place is None else rows[place]
    return row
