"""Losses of language models: the negative log-likelihood of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normlens import layers
from normlens.ablation.loss_base import ScoreLoss, head_of
from normlens.ablation.loss_names import MASKED, NEXT_TOKEN
from normlens.ablation.passes import last_vectors, with_vectors
from normlens.ablation.questions import Outcome, Question
from normlens.corpus.data.spans import EncodedRecord, mask_tokens
from normlens.errors import InputError
from normlens.inputs.text import Encoded

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Bytes of scores that are held at once.
SCORES_LIMIT = 1 << 28


class TokenLoss(ScoreLoss):
    """The mean negative log-likelihood of a sequence's targets."""

    def read(
        self, questions: Sequence[Question], inputs: dict[str, Tensor], output: Any
    ) -> list[Tensor]:
        y = last_vectors(output)
        rows = [b for b, question in enumerate(questions) for _ in question.places]
        places = [place for question in questions for place in question.places]
        targets = [target for question in questions for target in question.targets]
        index = torch.tensor([rows, places, targets], device=y.device)
        # Heads of language models act on every vector by itself, so only those that are asked for
        # need their scores.
        vectors = y[index[0], index[1]]
        losses = [
            self._losses(output, part, aims)
            for part, aims in zip(
                vectors.split(self._at_once()), index[2].split(self._at_once()), strict=True
            )
        ]
        counts = [len(question.places) for question in questions]
        return [part.mean() for part in torch.cat(losses).cpu().split(counts)]

    def from_scores(self, question: Question, scores: Tensor) -> Tensor:
        targets = torch.tensor(question.targets, device=scores.device)
        return negative_log_likelihood(scores[0, list(question.places)], targets).mean()

    def outcome(self, question: Question, answer: Tensor, intact: Tensor) -> Outcome:
        return Outcome(float(answer), len(question.places))

    def _losses(self, output: Any, vectors: Tensor, targets: Tensor) -> Tensor:
        """−log p(target) of each vector, in float64."""
        inputs = {
            "input_ids": targets[None],
            "attention_mask": torch.ones_like(targets[None]),
        }
        scores = self.scores(with_vectors(output, vectors[None]), inputs)  # (1, token, word)
        return negative_log_likelihood(scores[0], targets)

    def _at_once(self) -> int:
        words = self.lens.adapter.config.vocab_size
        # Scores in the model's precision and in float64, and what the logarithm needs.
        return max(1, SCORES_LIMIT // (words * (self.lens.dtype.itemsize + 24)))


class NextTokenLoss(TokenLoss):
    """−log p(token i + 1 | tokens up to i), at every position but the last."""

    name = NEXT_TOKEN

    def __init__(self, lens: Lens, *, seed: int = 0):
        super().__init__(lens, seed=seed)
        head_of(lens, layers.CAUSAL, self.name)
        if not lens.causal:
            raise InputError(
                f"{lens.name} looks ahead, so it does not predict the next token; ask for the "
                "drift of its vectors (drift)"
            )

    def question(
        self,
        encoded: Encoded,
        key: str,
        *,
        label: str | int | None = None,
        second: Encoded | None = None,
    ) -> Question:
        if len(encoded) < 2:
            raise InputError("one token alone has no next token")
        places = tuple(range(len(encoded) - 1))
        return Question(key, encoded, places, tuple(encoded.ids[1:]))


class MaskedLoss(TokenLoss):
    """−log p(token) at the masked positions, given all others."""

    name = MASKED

    def __init__(self, lens: Lens, *, seed: int = 0):
        super().__init__(lens, seed=seed)
        head_of(lens, layers.MASKED, self.name)
        if getattr(lens.tokenizer, "mask_token_id", None) is None:
            raise InputError(
                f"the loss {self.name!r} needs a tokenizer with a mask token; load {lens.name} "
                "with its own"
            )

    def question(
        self,
        encoded: Encoded,
        key: str,
        *,
        label: str | int | None = None,
        second: Encoded | None = None,
    ) -> Question:
        copied = {item.name: getattr(encoded, item.name) for item in fields(Encoded)}
        masked = mask_tokens(EncodedRecord(**copied, id=key), self.lens.tokenizer, seed=self.seed)
        places = tuple(
            place for place, token in enumerate(encoded.ids) if masked.ids[place] != token
        )
        if not places:
            raise InputError("there is no ordinary token that could be masked")
        return Question(key, masked, places, tuple(encoded.ids[place] for place in places))


def negative_log_likelihood(scores: Tensor, targets: Tensor) -> Tensor:
    """−log softmax(scores)[target] in float64, of scores (token, word)."""
    wide = scores.double()
    return wide.logsumexp(-1) - wide.gather(1, targets[:, None])[:, 0]
