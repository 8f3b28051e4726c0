"""``vectors``: ‖V_k‖, the length of what a token gives to the vector that the score is read from.

Of a cosine it is ‖u_k‖, the length of the token's part of the text's vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from normlens.explain.whole_vectors import parts_of_texts
from normlens.faithfulness.costs import every_source
from normlens.faithfulness.methods.base import Method, MethodOptions, Scores
from normlens.faithfulness.methods.frozen_network import check_network
from normlens.faithfulness.methods.places import place_read
from normlens.faithfulness.outputs import sentence_head
from normlens.faithfulness.questions import COSINE, Question
from normlens.inputs.text import Encoded
from normlens.layers import MEAN, SENTENCES, Head
from normlens.options import INPUT, AnalysisOptions, CosineOptions

if TYPE_CHECKING:
    from normlens.lens import Lens


def lengths(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> list[Scores]:
    """The lengths (k,) of each text's vectors."""
    encoded = [question.encoded for question in questions]
    if questions[0].kind == COSINE:
        return _pooled(lens, sentence_head(lens), encoded, options)
    places = [place_read(lens, question) for question in questions]
    if None in places:  # all of one head, which reads the mean
        return _pooled(lens, Head(SENTENCES, MEAN), encoded, options)
    chosen = AnalysisOptions(
        scopes=lens.layers[-1].scopes[-1],
        layers=-1,
        origin=INPUT,
        batch_size=options.batch_size,
        memory_limit=options.memory_limit,
    )
    maps = lens.analyse(encoded, chosen)
    rows = (one[one.scopes[-1]][-1][place] for one, place in zip(maps, places, strict=True))
    return [row.astype(np.float64) for row in rows]


def _pooled(
    lens: Lens, head: Head, encoded: Sequence[Encoded], options: MethodOptions
) -> list[Scores]:
    chosen = CosineOptions(batch_size=options.batch_size, memory_limit=options.memory_limit)
    parts = parts_of_texts(lens, head, list(encoded), chosen)
    return [np.linalg.norm(part.tokens, axis=-1) for part in parts]


VECTORS = Method("vectors", lengths, check_network, every_source)
