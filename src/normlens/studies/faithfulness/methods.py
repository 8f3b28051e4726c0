"""Attribution methods, with one contract: questions in, a score per token out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normlens.errors import InputError, MissingDependencyError
from normlens.options import AUTO
from normlens.studies.faithfulness.questions import (
    Question,
    affordable,
    by_batches,
    mask_token,
    same_kind,
)
from normlens.studies.faithfulness.scoring import (
    Passes,
    Scorer,
    check_gradients,
    head_of,
    score_rows,
    score_variants,
)

if TYPE_CHECKING:
    from normlens.lens import Lens

# The contract of a method: a lens and questions make one score for each token of each text.
#
# A higher score says that the token speaks more for the question's score. Methods with a
# direction give signed scores of that very number; the others say how much a token is mixed in.


Scores: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class MethodOptions:
    """How methods run; `seed` is that of `random`, `steps` are those of integrated gradients."""

    batch_size: int | str = AUTO
    seed: int = 0
    steps: int = 50

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"integrated gradients take at least 1 step, not {self.steps}")


Compute: TypeAlias = Callable[["Lens", Sequence[Question], MethodOptions], Sequence[Any]]


@dataclass(frozen=True)
class Method:
    """A method by its name; calling it gives a score for every token of every question."""

    name: str
    compute: Compute
    #: raises, in one line, for a lens that the method cannot work with
    needs: Callable[[Lens], None] = lambda lens: None
    #: passes of the frozen network for a text of so many tokens, which no hook on the model sees
    frozen_passes: Callable[[int], Passes] = lambda tokens: Passes()

    def __call__(
        self, lens: Lens, questions: Sequence[Question], options: MethodOptions = MethodOptions()
    ) -> list[Scores]:
        """One score per token of each text, special tokens included, in float64."""
        self.needs(lens)
        if not questions:
            return []
        same_kind(questions)
        given = list(self.compute(lens, questions, options))
        if len(given) != len(questions):
            raise InputError(
                f"the method {self.name!r} gave {len(given)} arrays of scores for "
                f"{len(questions)} questions; it must give one for each"
            )
        return [self._checked(q, scores) for q, scores in zip(questions, given, strict=True)]

    def _checked(self, question: Question, given: Any) -> Scores:
        try:
            scores = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the method {self.name!r} gave {type(given).__name__}, which is no array of "
                "numbers; return one score per token"
            ) from error
        if scores.shape != (len(question),):
            shape = "×".join(map(str, scores.shape)) or "one number"
            raise InputError(
                f"the method {self.name!r} gave scores of shape {shape} for a text of "
                f"{len(question)} tokens; it must give one per token, special tokens included"
            )
        if not np.isfinite(scores).all():
            place = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise InputError(
                f"the method {self.name!r} gave {scores[place]} for token {place} "
                f"({question.encoded.tokens[place]!r}); scores must be finite numbers"
            )
        return scores


# ``random`` and ``first-token``: what attributions must do better than.


def random_scores(
    lens: Lens, questions: Sequence[Question], options: MethodOptions
) -> list[Scores]:
    """Scores (k,) from −1 to 1 that depend on a text's tokens and the seed alone.

    Their mean is 0: positive ones would add up to rank words of many tokens first.
    """
    scores = []
    for question in questions:
        named = ",".join(map(str, [options.seed, *question.encoded.ids]))
        seed = list(hashlib.sha256(named.encode()).digest())
        scores.append(2 * np.random.default_rng(seed).random(len(question)) - 1)
    return scores


def earliness(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> list[Scores]:
    """Scores (k,) that fall from 1 at the first ordinary token to 0; special tokens have 0."""
    scores = []
    for question in questions:
        places, falling = question.ordinary, np.zeros(len(question))
        falling[places] = 1 - np.arange(len(places)) / max(1, len(places))
        scores.append(falling)
    return scores


# ``leave-one-out``: how much the score drops without a token.
#
#     s(text) − s(text with token k masked)
#
# Where the tokenizer has no mask token, the token is deleted. Special tokens, which removals
# never touch, have 0.


def drops(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> list[Scores]:
    """The drops (k,) of each text's score."""
    mask = mask_token(lens)
    left_out = [_removable(question, mask) for question in questions]
    asked = []
    for question, places in zip(questions, left_out, strict=True):
        changed = [
            question.without([place]) if mask is None else question.replaced([place], mask)
            for place in places
        ]
        asked.append((question, [question.whole, *changed]))
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


# ``gradient-x-input``: the score's gradient at a token's embedding, times that embedding.
#
# ∂s/∂e_k · e_k


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


# ``integrated-gradients`` (Sundararajan et al. 2017), by Captum.
#
#     e_k · ∫₀¹ ∂s/∂e_k (α e) dα
#
# from the baseline 0 at the embeddings' output, with 50 Gauss–Legendre steps.


def integrals(lens: Lens, questions: Sequence[Question], options: MethodOptions) -> list[Scores]:
    """The attributions (k,) of each text."""
    return [_integral(lens, question, options) for question in questions]


def _integral(lens: Lens, question: Question, options: MethodOptions) -> Scores:
    scorer = Scorer(lens, question)
    e = scorer.embeddings()[None]  # (1, k, d)
    size = options.batch_size
    at_once = affordable(lens, len(question), gradients=True) if size == AUTO else int(size)
    attributions = (
        _captum()
        .IntegratedGradients(scorer.differentiable)
        .attribute(
            e,
            baselines=torch.zeros_like(e),
            n_steps=options.steps,
            method="gausslegendre",
            internal_batch_size=min(at_once, options.steps),
        )
    )
    scores: Scores = attributions[0].detach().double().sum(-1).cpu().numpy()
    return scores


def check_captum(lens: Lens) -> None:
    """Refuse where Captum is missing, or gradients would miss a way around the layers."""
    _captum()
    check_gradients(lens)


def _captum() -> Any:
    try:
        import captum.attr
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "integrated-gradients needs Captum; run: pip install 'normlens[evaluate]'"
        ) from error
    return captum.attr
