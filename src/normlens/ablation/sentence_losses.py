"""Losses of whole sequences: of their class, and of their one vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normlens.ablation.loss_base import Loss, ScoreLoss, head_of
from normlens.ablation.loss_names import CLASSES, DRIFT
from normlens.ablation.passes import last_vectors
from normlens.ablation.questions import Outcome, Question
from normlens.ablation.token_losses import negative_log_likelihood
from normlens.errors import InputError
from normlens.explain.rollouts import cosine_distance
from normlens.explain.whole_vectors import through_steps
from normlens.inputs.text import Encoded
from normlens.layers import FIRST, LAST, MEAN, SEQUENCES

if TYPE_CHECKING:
    from normlens.lens import Lens


class ClassLoss(ScoreLoss):
    """−log p(label) of a classifier whose classes exclude each other."""

    name = CLASSES

    def __init__(self, lens: Lens, *, seed: int = 0):
        super().__init__(lens, seed=seed)
        head = head_of(lens, SEQUENCES, self.name)
        classes = 0 if head.output is None else head.output.weight.shape[1]
        if not head.exclusive or classes < 2:
            raise InputError(
                f"{lens.name} does not choose one of several classes, so it has no such loss; ask "
                "for the drift of its vectors (drift)"
            )
        self._labels = {name: index for index, name in head.labels.items()}
        self._classes = classes

    def question(
        self,
        encoded: Encoded,
        key: str,
        *,
        label: str | int | None = None,
        second: Encoded | None = None,
    ) -> Question:
        if label is None:
            raise InputError("it has no label; the data need one for each sequence")
        return Question(key, encoded, targets=(self._class(label),))

    def read(
        self, questions: Sequence[Question], inputs: dict[str, Tensor], output: Any
    ) -> list[Tensor]:
        scores = self._class_scores(inputs, output)  # (b, class)
        targets = torch.tensor([question.targets[0] for question in questions])
        return list(negative_log_likelihood(scores, targets.to(scores.device)).cpu())

    def from_scores(self, question: Question, scores: Tensor) -> Tensor:
        targets = torch.tensor(question.targets, device=scores.device)
        return negative_log_likelihood(scores, targets)[0]

    def outcome(self, question: Question, answer: Tensor, intact: Tensor) -> Outcome:
        return Outcome(float(answer), 1)

    def _class_scores(self, inputs: dict[str, Tensor], output: Any) -> Tensor:
        config, size = self.lens.adapter.whole.config, len(inputs["input_ids"])
        if size == 1 or getattr(config, "pad_token_id", None) is not None:
            return self.scores(output, inputs)
        # A decoder without a padding token cannot tell where padded sequences end.
        lengths = inputs["attention_mask"].sum(1).tolist()
        rows = []
        for b, n in enumerate(lengths):
            alone = {name: values[b : b + 1, :n] for name, values in inputs.items()}
            rows.append(self.scores(_row(output, b, n), alone))
        return torch.cat(rows)

    def _class(self, label: str | int) -> int:
        if label in self._labels:
            return self._labels[str(label)]
        try:
            number = int(label)
        except ValueError:
            number = -1
        if not 0 <= number < self._classes:
            raise InputError(
                f"unknown label {label!r}; the classes of {self.lens.name} are "
                f"{', '.join(self._labels) or f'0 to {self._classes - 1}'}"
            )
        return number


class DriftLoss(Loss):
    """How far a sentence's vector turns from the intact model's, and the cosine of a pair.

    A text's vectors become one as the model's sentence-transformers files say, or by their mean.
    """

    name = DRIFT

    def __init__(self, lens: Lens, *, seed: int = 0):
        super().__init__(lens, seed=seed)
        self._head = lens.pooling.head(lens.adapter.end(), lens.device).to(torch.float64)

    def question(
        self,
        encoded: Encoded,
        key: str,
        *,
        label: str | int | None = None,
        second: Encoded | None = None,
    ) -> Question:
        return Question(key, encoded, second=second)

    def read(
        self, questions: Sequence[Question], inputs: dict[str, Tensor], output: Any
    ) -> list[Tensor]:
        y = last_vectors(output)
        texts = [text for question in questions for text in question.texts]
        vectors = torch.stack([self._vector(y[b], len(text)) for b, text in enumerate(texts)]).cpu()
        return list(vectors.split([len(question.texts) for question in questions]))

    def outcome(self, question: Question, answer: Tensor, intact: Tensor) -> Outcome:
        drift = cosine_distance(answer, intact).mean()
        if question.second is None:
            return Outcome(float(drift), 1)
        cosine = F.cosine_similarity(answer[0], answer[1], dim=0)
        return Outcome(float(drift), 2, float(cosine))

    def _vector(self, y: Tensor, n: int) -> Tensor:
        read = {MEAN: slice(0, n), FIRST: slice(0, 1), LAST: slice(n - 1, n)}[self._head.reads]
        return through_steps(self._head.steps, y[read].double().mean(0))


def _row(output: Any, b: int, n: int) -> Any:
    """One row of what a body returned, without its padding."""
    if isinstance(output, tuple):
        return (output[0][b : b + 1, :n], *output[1:])
    pooled = getattr(output, "pooler_output", None)
    others = {} if pooled is None else {"pooler_output": pooled[b : b + 1]}
    return type(output)(last_hidden_state=output[0][b : b + 1, :n], **others)
