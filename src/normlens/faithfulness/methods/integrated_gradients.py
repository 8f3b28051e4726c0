"""``integrated-gradients`` (Sundararajan et al. 2017), by Captum.

    e_k · ∫₀¹ ∂s/∂e_k (α e) dα

from the baseline 0 at the embeddings' output, with 50 Gauss–Legendre steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from normlens.errors import MissingDependencyError
from normlens.faithfulness.methods.base import Method, MethodOptions, Scores
from normlens.faithfulness.outputs import affordable
from normlens.faithfulness.questions import Question
from normlens.faithfulness.scoring import Scorer, check_gradients
from normlens.options import AUTO

if TYPE_CHECKING:
    from normlens.lens import Lens


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


INTEGRATED_GRADIENTS = Method("integrated-gradients", integrals, check_captum)
