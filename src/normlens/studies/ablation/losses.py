"""Losses: what is asked of a model about a sequence, and what is made of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normlens import layers
from normlens.corpus.data.spans import EncodedRecord, mask_tokens
from normlens.errors import InputError, UnsupportedModelError, check_choice
from normlens.explain.rollouts import cosine_distance
from normlens.explain.whole_vectors import through_steps
from normlens.inputs.text import Encoded
from normlens.layers import FIRST, LAST, MEAN
from normlens.models.base import NoHead, read_head
from normlens.pipeline.batches import SCORE_TOLERANCE
from normlens.studies.ablation.options import AUTO, CLASSES, DRIFT, MASKED, NAMES, NEXT_TOKEN
from normlens.studies.model_calls import call
from normlens.trace.locking import other_forwards
from normlens.trace.run import model_inputs, plain_options

if TYPE_CHECKING:
    from normlens.lens import Lens

# What is asked of the model about one text, and what a loss says of a sequence.


@dataclass(frozen=True)
class Question:
    """One text as the model reads it for a loss; the same for all ablations.

    `key` names the text in the data: masks and resampling depend on it.
    """

    key: str
    encoded: Encoded
    places: tuple[int, ...] = ()  # the positions whose scores are read
    targets: tuple[int, ...] = ()  # the token at each of them, or one class


@dataclass(frozen=True)
class Outcome:
    """The loss of one sequence, which is a mean over `count` tokens (or classes, or vectors).

    It is NaN or infinite where the values of an ablated model overflow.
    """

    loss: float
    count: int
    cosine: float | None = None  # of a pair's two vectors


# What every loss does: ask a question about a text, read the answer, judge it.


class Loss:
    """One loss of one model."""

    name: ClassVar[str]

    def __init__(self, lens: Lens, *, seed: int = 0):
        """Refuse a model that does not have this loss."""
        self.lens, self.seed = lens, seed

    def question(self, encoded: Encoded, key: str, label: str | int | None = None) -> Question:
        """Ask about a text; raises InputError where it has no such loss."""
        return Question(key, encoded)

    def read(
        self, questions: Sequence[Question], inputs: dict[str, Tensor], output: Any
    ) -> list[Tensor]:
        """Read one answer per question from the body's output. For use inside `alone`."""
        raise NotImplementedError

    def check(self, question: Question) -> None:
        """Raise unless a whole run of the model gives the same answer. For use inside `alone`."""

    def outcome(self, answers: Sequence[Tensor], intact: Sequence[Tensor], count: int) -> Outcome:
        """The loss of a sequence: `answers` to its texts, those of the `intact` model, and targets.

        A sequence is one text, or the two of a pair.
        """
        return Outcome(float(answers[0]), count)


class ScoreLoss(Loss):
    """−log p of tokens or of a class: a loss of scores, which the model's head gives."""

    task: ClassVar[str]

    def __init__(self, lens: Lens, *, seed: int = 0):
        super().__init__(lens, seed=seed)
        try:
            self.head = read_head(lens.adapter)
        except NoHead:
            raise InputError(f"{lens.name} has no head; ask for drift") from None
        if self.head.task != self.task:
            raise InputError(f"{lens.name} is no {self.task}; leave the loss {self.name!r} out")
        # The body, and those of its parts that hold all layers: OPT's head calls such a part.
        blocks = set(lens.adapter.blocks())
        self._bodies = [
            module
            for module in lens.adapter.model.modules()
            if not isinstance(module, nn.ModuleList) and blocks <= set(module.modules()) - {module}
        ]

    def scores(self, output: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Run the model's head on the body's `output`.

        The head is the model's code with all that it does to its scores (soft caps, transforms).
        """
        with other_forwards(dict.fromkeys(self._bodies, lambda _: lambda *__, **___: output)):
            return self._whole_scores(inputs)

    def check(self, question: Question) -> None:
        inputs = model_inputs(self.lens.adapter, [question.encoded], self.lens.device)
        scores = self._whole_scores(inputs)
        targets = torch.tensor(question.targets, device=scores.device)
        rows = scores[0, list(question.places)] if question.places else scores
        expected = negative_log_likelihood(rows, targets).mean()
        [answer] = self.read([question], inputs, call(self.lens, self.lens.adapter.model, inputs))
        error = float((answer - expected).abs() / expected.abs().clamp_min(1))
        tolerance = SCORE_TOLERANCE[self.lens.dtype]
        if not error <= tolerance:
            raise UnsupportedModelError(
                f"its head alone misses the loss by {error:.1e} (at most {tolerance:.0e})"
            )

    def _whole_scores(self, inputs: Mapping[str, Tensor]) -> Tensor:
        whole = self.lens.adapter.whole
        answered = whole(**inputs, **plain_options(whole))
        for name in ("logits", "prediction_logits"):
            scores = getattr(answered, name, None)
            if scores is not None:
                return scores
        return answered[0]


def negative_log_likelihood(scores: Tensor, targets: Tensor) -> Tensor:
    """−log softmax(scores)[target] in float64, of scores (row, word or class)."""
    wide = scores.double()
    return wide.logsumexp(-1) - wide.gather(1, targets[:, None])[:, 0]


#: Bytes of scores that are held at once.
SCORES_LIMIT = 1 << 28


class TokenLoss(ScoreLoss):
    """The mean negative log-likelihood of a sequence's targets."""

    def read(
        self, questions: Sequence[Question], inputs: dict[str, Tensor], output: Any
    ) -> list[Tensor]:
        y = output[0]  # (b, i, d)
        rows = [b for b, question in enumerate(questions) for _ in question.places]
        places = [place for question in questions for place in question.places]
        targets = [target for question in questions for target in question.targets]
        index = torch.tensor([rows, places, targets], device=y.device)
        words = self.lens.adapter.config.vocab_size
        # Scores in the model's precision and in float64, and what the logarithm needs.
        at_once = max(1, SCORES_LIMIT // (words * (self.lens.dtype.itemsize + 24)))
        # Heads of language models act on every vector by itself, so only those that are asked for
        # need their scores.
        parts = zip(y[index[0], index[1]].split(at_once), index[2].split(at_once), strict=True)
        losses = [self._losses(output, vectors, aims) for vectors, aims in parts]
        counts = [len(question.places) for question in questions]
        return [part.mean() for part in torch.cat(losses).cpu().split(counts)]

    def _losses(self, output: Any, vectors: Tensor, targets: Tensor) -> Tensor:
        """−log p(target) of each vector, which stand alone in what the body returned."""
        if isinstance(output, tuple):
            alone: Any = (vectors[None], *([None] * (len(output) - 1)))
        else:
            alone = type(output)(last_hidden_state=vectors[None])
        mask = torch.ones_like(targets[None])
        scores = self.scores(alone, {"input_ids": targets[None], "attention_mask": mask})
        return negative_log_likelihood(scores[0], targets)


class NextTokenLoss(TokenLoss):
    """−log p(token i + 1 | tokens up to i), at every position but the last."""

    name, task = NEXT_TOKEN, layers.CAUSAL

    def __init__(self, lens: Lens, *, seed: int = 0):
        super().__init__(lens, seed=seed)
        if not lens.causal:
            raise InputError(f"{lens.name} looks ahead and predicts no next token; ask for drift")

    def question(self, encoded: Encoded, key: str, label: str | int | None = None) -> Question:
        if len(encoded) < 2:
            raise InputError("one token alone has no next token")
        return Question(key, encoded, tuple(range(len(encoded) - 1)), tuple(encoded.ids[1:]))


class MaskedLoss(TokenLoss):
    """−log p(token) at the masked positions, given all others."""

    name, task = MASKED, layers.MASKED

    def __init__(self, lens: Lens, *, seed: int = 0):
        super().__init__(lens, seed=seed)
        if getattr(lens.tokenizer, "mask_token_id", None) is None:
            raise InputError(f"{lens.name} has no mask token; load its own tokenizer")

    def question(self, encoded: Encoded, key: str, label: str | int | None = None) -> Question:
        copied = {item.name: getattr(encoded, item.name) for item in fields(Encoded)}
        masked = mask_tokens(EncodedRecord(**copied, id=key), self.lens.tokenizer, seed=self.seed)
        places = tuple(i for i, token in enumerate(encoded.ids) if masked.ids[i] != token)
        if not places:
            raise InputError("there is no ordinary token that could be masked")
        return Question(key, masked, places, tuple(encoded.ids[place] for place in places))


class ClassLoss(ScoreLoss):
    """−log p(label) of a classifier whose classes exclude each other."""

    name, task = CLASSES, layers.SEQUENCES

    def __init__(self, lens: Lens, *, seed: int = 0):
        super().__init__(lens, seed=seed)
        self._classes = 0 if self.head.output is None else self.head.output.weight.shape[1]
        if not self.head.exclusive or self._classes < 2:
            raise InputError(f"{lens.name} does not choose one of several classes; ask for drift")
        self._labels = {name: index for index, name in self.head.labels.items()}

    def question(self, encoded: Encoded, key: str, label: str | int | None = None) -> Question:
        if label is None:
            raise InputError("it has no label; the data need one for each sequence")
        try:
            number = self._labels[str(label)] if label in self._labels else int(label)
        except ValueError:
            number = -1
        if not 0 <= number < self._classes:
            names = ", ".join(self._labels) or f"0 to {self._classes - 1}"
            raise InputError(f"unknown label {label!r}; {self.lens.name} has {names}")
        return Question(key, encoded, (), (number,))

    def read(
        self, questions: Sequence[Question], inputs: dict[str, Tensor], output: Any
    ) -> list[Tensor]:
        padding = getattr(self.lens.adapter.whole.config, "pad_token_id", None)
        if len(questions) == 1 or padding is not None:
            scores = self.scores(output, inputs)  # (b, class)
        else:
            # A decoder without a padding token cannot tell where padded sequences end.
            rows = []
            for b, n in enumerate(inputs["attention_mask"].sum(1).tolist()):
                alone = {name: values[b : b + 1, :n] for name, values in inputs.items()}
                rows.append(self.scores(_row(output, b, n), alone))
            scores = torch.cat(rows)
        targets = torch.tensor([question.targets[0] for question in questions])
        return list(negative_log_likelihood(scores, targets.to(scores.device)).cpu())


def _row(output: Any, b: int, n: int) -> Any:
    """One row of what a body returned, without its padding."""
    if isinstance(output, tuple):
        return (output[0][b : b + 1, :n], *output[1:])
    pooled = getattr(output, "pooler_output", None)
    others = {} if pooled is None else {"pooler_output": pooled[b : b + 1]}
    return type(output)(last_hidden_state=output[0][b : b + 1, :n], **others)


class DriftLoss(Loss):
    """The drift 1 − cos of a sentence's vector from the intact model's, and the cosine of a pair.

    A text's vectors become one as the model's sentence-transformers files say, or by their mean.
    """

    name = DRIFT

    def __init__(self, lens: Lens, *, seed: int = 0):
        super().__init__(lens, seed=seed)
        self._head = lens.pooling.head(lens.adapter.end(), lens.device).to(torch.float64)

    def read(
        self, questions: Sequence[Question], inputs: dict[str, Tensor], output: Any
    ) -> list[Tensor]:
        vectors = []
        for y, question in zip(output[0], questions, strict=True):
            n = len(question.encoded)
            read = {MEAN: slice(0, n), FIRST: slice(0, 1), LAST: slice(n - 1, n)}[self._head.reads]
            vectors.append(through_steps(self._head.steps, y[read].double().mean(0)))
        return list(torch.stack(vectors).cpu())

    def outcome(self, answers: Sequence[Tensor], intact: Sequence[Tensor], count: int) -> Outcome:
        drift = cosine_distance(torch.stack([*answers]), torch.stack([*intact])).mean()
        pair = len(answers) == 2
        cosine = float(F.cosine_similarity(answers[0], answers[1], dim=0)) if pair else None
        return Outcome(float(drift), len(answers), cosine)


# Losses by name: which one a model has, chosen by its head.
#
# | name | loss of a sequence | model |
# |---|---|---|
# | next-token | mean −log p(next token), special tokens included | causal language model |
# | masked | mean −log p(token) at seeded masks, 12 % of ordinary tokens | masked language model |
# | classes | −log p(label) | sequence classifier |
# | drift | 1 − cos(vector, vector of the intact model), the mean of a pair | any body |
#
# Scores are those that the model computes, logarithms are taken in float64.


LOSSES: dict[str, type[Loss]] = {
    loss.name: loss for loss in (NextTokenLoss, MaskedLoss, ClassLoss, DriftLoss)
}


def choose_loss(lens: Lens, name: str = AUTO, *, seed: int = 0) -> Loss:
    """The loss of this name; "auto" is that of the model's head, or drift where it has none.

    A loss that the model does not have is refused in one line.
    """
    if any(layer.by_source for layer in lens.layers):
        raise UnsupportedModelError(f"ablations do not know layers like those of {lens.name}")
    if lens.two_stacks:
        raise UnsupportedModelError(f"{lens.name} reads two sequences; ablations need one")
    check_choice(name, NAMES, "loss")
    if name == AUTO:
        name = _loss_of_head(lens)
    return LOSSES[name](lens, seed=seed)


def _loss_of_head(lens: Lens) -> str:
    try:
        task = read_head(lens.adapter).task
    except NoHead:
        return DRIFT
    for loss in (NextTokenLoss, MaskedLoss, ClassLoss):
        if loss.task == task:
            return loss.name
    raise InputError(f"there is no loss for {lens.name}, a {task}; ask for {DRIFT}")
