"""Scores of a text's variants, from plain forward passes of the real model, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normlens.errors import InputError
from normlens.layers import Head
from normlens.models.base import read_head
from normlens.options import AUTO
from normlens.studies.faithfulness.questions import (
    COSINE,
    Entering,
    Question,
    Variant,
    alone,
    by_batches,
    logits,
    same_kind,
    sentence_head,
    text_vectors,
)
from normlens.trace.locking import Hooks

if TYPE_CHECKING:
    from normlens.lens import Lens

# What an attribution costs: rows that pass the model's layers, forward and backward.
#
# A row is one sequence. Passes are counted layer by layer, so that a method that runs single
# layers again is charged for those.


@dataclass(frozen=True)
class Passes:
    """Passes of single texts through all layers."""

    forward: float = 0.0
    backward: float = 0.0

    def __add__(self, other: Passes) -> Passes:
        return Passes(self.forward + other.forward, self.backward + other.backward)

    def per(self, texts: int) -> Passes:
        """The same for one of several texts that went together."""
        return Passes(self.forward / texts, self.backward / texts)


class Counter:
    """Counts while `counted` is open."""

    def __init__(self, layers: int):
        self._layers = layers
        self._forward = self._backward = 0

    @property
    def passes(self) -> Passes:
        """What has been counted so far."""
        return Passes(self._forward / self._layers, self._backward / self._layers)

    def behind(self, _: nn.Module, __: Any, ___: Any, output: Any) -> None:
        """Count the rows of a block's call; used as a hook."""
        vectors: Tensor = output[0] if isinstance(output, (tuple, list)) else output
        rows = len(vectors)
        self._forward += rows
        if vectors.requires_grad:
            vectors.register_hook(lambda _: self._back(rows))

    def _back(self, rows: int) -> None:
        # Autograd calls it on a thread of its own.
        self._backward += rows


@contextmanager
def counted(lens: Lens) -> Iterator[Counter]:
    """Count the passes through the model that this thread causes while this is open."""
    blocks = list(lens.adapter.blocks())
    counter = Counter(len(blocks))
    with Hooks() as hooks:
        for block in {id(block): block for block in blocks}.values():
            hooks.behind(block, counter.behind)
        yield counter


# Scores of a text's variants, from plain forward passes of the real model.
#
# score = logit(target) − logit(contrast), or u·v / ‖u‖


#: What stands for a prediction where there is none, as of a cosine.
NO_PREDICTION = -1


class Scored(NamedTuple):
    """What the model says of each variant; each array is (variant,)."""

    score: NDArray[np.float64]
    probability: NDArray[np.float64]  # of the target; NaN for a cosine
    predicted: NDArray[np.int64]  # the class or token with the largest logit; −1 for a cosine


class Scorer:
    """Scores variants of one text, and vectors in place of its embeddings."""

    def __init__(self, lens: Lens, question: Question, *, batch_size: int | str = AUTO):
        self.lens, self.question, self.batch_size = lens, question, batch_size

    def scores(self, variants: Sequence[Variant | Sequence[int]]) -> Scored:
        """Run variants of the text, given by `Question`'s methods or by their ids."""
        asked = [(self.question, variants)]
        return score_variants(self.lens, asked, batch_size=self.batch_size)[0]

    def embeddings(self) -> Tensor:
        """What each token owns at the start: the vectors (k, d) that enter the first layer."""
        check_gradients(self.lens)
        vectors: list[Tensor] = []

        def keep(x: Tensor) -> Tensor:
            vectors.append(x.detach().to(self.lens.compute_dtype))
            return x

        alone(
            self.lens, lambda: score_rows(self.lens, [(self.question, self.question.whole)], keep)
        )
        return vectors[0][0]

    def differentiable(self, vectors: Tensor) -> Tensor:
        """The scores (b,) with vectors (b, k, d) in place of the embeddings, for autograd."""
        check_gradients(self.lens)
        rows = [(self.question, self.question.whole)] * len(vectors)

        def replace(x: Tensor) -> Tensor:
            return vectors.to(x)

        return alone(self.lens, lambda: score_rows(self.lens, rows, replace)[:, 0], gradients=True)


def score_variants(
    lens: Lens,
    asked: Sequence[tuple[Question, Sequence[Variant | Sequence[int]]]],
    *,
    batch_size: int | str = AUTO,
) -> list[Scored]:
    """Score variants of several texts, which share batches; a repeated variant runs once."""
    rows: dict[tuple[int, Variant], int] = {}
    places: list[list[int]] = []
    for number, (question, variants) in enumerate(asked):
        made = [v if isinstance(v, Variant) else question.with_ids(v) for v in variants]
        places.append([rows.setdefault((number, variant), len(rows)) for variant in made])
    if not rows:
        return [_scored(np.empty((0, 3))) for _ in asked]
    pairs = [(asked[number][0], variant) for number, variant in rows]
    same_kind(question for question, _ in pairs)

    def work(batch: list[int]) -> Tensor:
        return score_rows(lens, [pairs[place] for place in batch])

    head = head_of(lens, pairs[0][0])
    numbers = by_batches(lens, head, [variant for _, variant in pairs], batch_size, work).numpy()
    if not np.isfinite(numbers[:, 0]).all():
        raise InputError(
            f"{lens.name} gives scores that are not finite for a variant of a text; load it in "
            "float32 (dtype='float32')"
        )
    return [_scored(numbers[chosen]) for chosen in places]


def score_rows(
    lens: Lens, rows: Sequence[tuple[Question, Variant]], entering: Entering | None = None
) -> Tensor:
    """Score, probability and prediction (b, 3) of a batch; the score knows its gradient.

    For use inside `outputs.alone`.
    """
    questions, variants = [question for question, _ in rows], [variant for _, variant in rows]
    if questions[0].kind == COSINE:
        u = text_vectors(lens, sentence_head(lens), variants, entering).double()
        v = torch.from_numpy(np.stack([q.other for q in questions if q.other is not None])).to(u)
        cosines = (u * v).sum(-1) / torch.linalg.vector_norm(u, dim=-1)
        nothing = torch.full_like(cosines, float("nan"))
        return torch.stack([cosines, nothing, torch.full_like(cosines, NO_PREDICTION)], dim=-1)
    head = read_head(lens.adapter)
    own = logits(lens, variants, entering).double()  # (b, c)
    targets = torch.tensor([question.target for question in questions], device=own.device)
    target = own.gather(-1, targets[:, None])[:, 0]
    contrasts = torch.tensor([question.contrast or 0 for question in questions], device=own.device)
    against = own.gather(-1, contrasts[:, None])[:, 0]
    alone_asked = torch.tensor([question.contrast is None for question in questions])
    score = torch.where(alone_asked.to(own.device), target, target - against)
    detached = target.detach()
    if head.exclusive:
        probability = (detached - own.detach().logsumexp(-1)).exp()
    else:
        probability = detached.sigmoid()
    return torch.stack([score, probability, own.argmax(-1).to(own)], dim=-1)


def head_of(lens: Lens, question: Question) -> Head:
    """The head that gives a question's score."""
    return sentence_head(lens) if question.kind == COSINE else read_head(lens.adapter)


def check_gradients(lens: Lens) -> None:
    """Refuse models whose embeddings reach the score by other ways than through the first layer."""
    if (outside := lens.adapter.outside_scopes()) is not None:
        raise InputError(
            f"gradients of the embeddings of {lens.name} would miss a way around its layers: "
            f"{outside}"
        )


def _scored(numbers: NDArray[np.float64]) -> Scored:
    return Scored(numbers[:, 0], numbers[:, 1], numbers[:, 2].astype(np.int64))
