"""Scores for links from explanations: what each source token contributes to a word's logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from normlens.alignment.options import EXPLAIN, OUTPUT
from normlens.alignment.readings import Reading
from normlens.explain.explainer import ask
from normlens.inputs.text import Encoded
from normlens.options import ExplainOptions

if TYPE_CHECKING:
    from normlens.lens import Lens


def explained(
    lens: Lens, pairs: Sequence[Encoded], batch_size: int | str
) -> Iterator[tuple[int, Reading, float]]:
    """Each pair's place, contributions and completeness error.

    Row i has the contributions of the source's tokens to the logit of the target token that the
    decoder predicts there. They are signed: a token that speaks against a word is no link to it.
    """
    options = ExplainOptions(
        flow=False, batch_size=batch_size if batch_size == "auto" else int(batch_size)
    )
    answers = ask(lens, pairs, True, options, position="all")
    for place, (pair, answer) in enumerate(zip(pairs, answers, strict=True)):
        scores = np.zeros((1, len(pair), len(pair.sequences[0])))
        for why in answer:
            scores[0, why.position] = why.source.contributions
        worst = max(float(why.completeness) for why in answer)
        yield place, Reading(EXPLAIN, None, [None], [OUTPUT], scores), worst
