"""``gradient-x-input``: the score's gradient at a token's embedding, times that embedding.

∂s/∂e_k · e_k
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from normlens.evaluate.methods.base import Method, MethodOptions, Scores
from normlens.evaluate.outputs import by_batches
from normlens.evaluate.questions import Question
from normlens.evaluate.scoring import check_gradients, head_of, score_rows

if TYPE_CHECKING:
    from normlens.lens import Lens


def products(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> list[Scores]:
    """The products (k,) of each text."""
    longest = max(map(len, questions))
    variants = [question.whole for question in questions]

    def work(places: list[int]) -> Tensor:
        entered: list[Tensor] = []

        def leaf(x: Tensor) -> Tensor:
            entered.append(x.detach().to(lens.compute_dtype).requires_grad_())
            return entered[0].to(x.dtype)

        scores = score_rows(lens, [(questions[p], variants[p]) for p in places], leaf)[:, 0]
        (gradient,) = torch.autograd.grad(scores.sum(), entered[0])  # (b, k, d)
        products = (gradient.double() * entered[0].detach().double()).sum(-1)
        return F.pad(products, (0, longest - products.shape[1]))

    head = head_of(lens, questions[0])
    rows = by_batches(lens, head, variants, options.batch_size, work, gradients=True).numpy()
    return [row[: len(question)] for question, row in zip(questions, rows, strict=True)]


GRADIENT_TIMES_INPUT = Method("gradient-x-input", products, check_gradients)
