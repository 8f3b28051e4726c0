"""``normlens``: what each token contributes to the score through the frozen network.

    c_k = g_k · e_k,    Σ_k c_k + biases = score

One pass of the adjoint, by the rule "ig", "gradient" or "ig-bias" for activations. Of a cosine
with v fixed, ``c_k = u_k · v / ‖u‖``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from normlens.errors import InputError
from normlens.explain.explainer import Explainer
from normlens.explain.network import check_one_sequence
from normlens.explain.questions import Question as Asked
from normlens.faithfulness.costs import Passes
from normlens.faithfulness.methods.base import Method, MethodOptions, Scores
from normlens.faithfulness.methods.places import place_read
from normlens.faithfulness.outputs import by_batches, sentence_head, text_vectors
from normlens.faithfulness.questions import COSINE, Question
from normlens.models.base import read_head
from normlens.options import IG, ExplainOptions
from normlens.results.explanation import Explanation

if TYPE_CHECKING:
    from normlens.lens import Lens


def contributions(
    lens: Lens, questions: Sequence[Question], options: MethodOptions, *, rule: str
) -> list[Scores]:
    """The contributions c_k (k,) of each text."""
    return [
        explained.contributions.astype(np.float64) / scale
        for explained, scale in explanations(lens, questions, options, rule=rule)
    ]


def explanations(
    lens: Lens, questions: Sequence[Question], options: MethodOptions, *, rule: str
) -> list[tuple[Explanation, float]]:
    """Each score traced back; of a cosine u·v is, which ‖u‖, given beside it, divides."""
    cosine = questions[0].kind == COSINE
    head = sentence_head(lens) if cosine else read_head(lens.adapter)
    chosen = ExplainOptions(
        nonlinearity=rule,
        flow=False,
        batch_size=options.batch_size,
        memory_limit=options.memory_limit,
    )
    asked = [
        Asked(
            number,
            place_read(lens, question),
            question.target,
            question.contrast,
            None if question.other is None else torch.from_numpy(question.other),
        )
        for number, question in enumerate(questions)
    ]
    encoded = [question.encoded for question in questions]
    explained = Explainer(lens, encoded, head, chosen).explain(asked)
    scales = _lengths(lens, questions, options) if cosine else [1.0] * len(questions)
    return list(zip(explained, scales, strict=True))


def _lengths(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> list[float]:
    """‖u‖ of each text."""
    head, texts = sentence_head(lens), [question.whole for question in questions]

    def lengths(places: list[int]) -> torch.Tensor:
        u = text_vectors(lens, head, [texts[place] for place in places])
        return torch.linalg.vector_norm(u, dim=-1)

    lengths_of: list[float] = by_batches(lens, head, texts, options.batch_size, lengths).tolist()
    return lengths_of


def check_network(lens: Lens) -> None:
    """Refuse models whose layers do not compose."""
    check_one_sequence(lens)
    if (outside := lens.adapter.outside_scopes()) is not None:
        raise InputError(f"scores of {lens.name} cannot be carried through its layers: {outside}")


def _adjoint(tokens: int) -> Passes:
    return Passes(backward=1.0)


def _method(name: str, rule: str) -> Method:
    return Method(name, partial(contributions, rule=rule), check_network, _adjoint)


NORMLENS = _method("normlens", IG)
NORMLENS_GRADIENT = _method("normlens-gradient", "gradient")
NORMLENS_IG_BIAS = _method("normlens-ig-bias", "ig-bias")
