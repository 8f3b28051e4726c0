"""What every loss does: ask a question about a sequence, read the answer, judge it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from normlens.ablation.passes import bodies_of, body_pass, head_pass
from normlens.ablation.questions import Outcome, Question
from normlens.errors import InputError, UnsupportedModelError
from normlens.inputs.text import Encoded
from normlens.layers import Head
from normlens.models.base import NoHead, read_head
from normlens.pipeline.batches import SCORE_TOLERANCE
from normlens.trace.run import model_inputs, plain_options

if TYPE_CHECKING:
    from normlens.lens import Lens


class Loss:
    """One loss of one model."""

    name: ClassVar[str]

    def __init__(self, lens: Lens, *, seed: int = 0):
        """Refuse a model that does not have this loss."""
        self.lens, self.seed = lens, seed

    def question(
        self,
        encoded: Encoded,
        key: str,
        *,
        label: str | int | None = None,
        second: Encoded | None = None,
    ) -> Question:
        """What is asked about a sequence; raises an InputError where it has no such loss."""
        raise NotImplementedError

    def read(
        self, questions: Sequence[Question], inputs: dict[str, Tensor], output: Any
    ) -> list[Tensor]:
        """The answers in what the body returned for these inputs, one for each question.

        For use inside `normlens.ablation.passes.model_ready`.
        """
        raise NotImplementedError

    def check(self, question: Question) -> None:
        """Raise unless the model, run whole on this sequence, gives the same answer.

        For use inside `normlens.ablation.passes.model_ready`.
        """

    def outcome(self, question: Question, answer: Tensor, intact: Tensor) -> Outcome:
        """The loss of an answer, and what it is the mean over; `intact` is the intact model's."""
        raise NotImplementedError


class ScoreLoss(Loss):
    """A loss of scores, which the model's head gives from what its body returned."""

    def __init__(self, lens: Lens, *, seed: int = 0):
        super().__init__(lens, seed=seed)
        self._bodies = bodies_of(lens)

    def scores(self, output: Any, inputs: dict[str, Tensor]) -> Tensor:
        """The scores that the model gives where its body returns `output`."""
        return scores_of(head_pass(self.lens.adapter.whole, self._bodies, output, inputs))

    def from_scores(self, question: Question, scores: Tensor) -> Tensor:
        """The answer in the scores that the whole model returns for one sequence."""
        raise NotImplementedError

    def check(self, question: Question) -> None:
        lens, whole = self.lens, self.lens.adapter.whole
        inputs = model_inputs(lens.adapter, question.texts, lens.device)
        expected = self.from_scores(question, scores_of(whole(**inputs, **plain_options(whole))))
        [answer] = self.read([question], inputs, body_pass(lens, inputs))
        error = float((answer - expected).abs() / expected.abs().clamp_min(1))
        tolerance = SCORE_TOLERANCE[lens.dtype]
        if not error <= tolerance:
            raise UnsupportedModelError(
                f"the head of {lens.name}, run behind its body, misses the whole model's loss by "
                f"{error:.1e} (tolerance {tolerance:.0e}); its scores need more than the body's "
                "vectors"
            )


def scores_of(answered: Any) -> Tensor:
    """The scores in what a model returned."""
    for name in ("logits", "prediction_logits"):
        scores = getattr(answered, name, None)
        if scores is not None:
            return scores
    return answered[0]


def head_of(lens: Lens, task: str, loss: str) -> Head:
    """The model's head, which must be one of this task."""
    try:
        head = read_head(lens.adapter)
    except NoHead:
        raise InputError(
            f"the loss {loss!r} is that of a {task}, and {lens.name} has no head; ask for the "
            "drift of its vectors (drift), or load a model with a head"
        ) from None
    if head.task != task:
        raise InputError(
            f"the loss {loss!r} is that of a {task}, and {lens.name} is a {head.task}; leave the "
            "loss out to have its own"
        )
    return head
