"""Questions: the score of one text that attributions explain and that removals change.

Every method that has a direction explains the same score: logit(target) − logit(contrast), or the
cosine with another text's vector.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.explain.questions import column_of, label_of, place_of
from normlens.explain.whole_vectors import check_texts
from normlens.faithfulness.outputs import by_batches, logits, sentence_head, text_vectors
from normlens.faithfulness.variants import Variant, replaced, whole_text, with_ids, without
from normlens.inputs.text import Encoded
from normlens.layers import CAUSAL, MASKED, SEQUENCES, Head
from normlens.models.base import read_head
from normlens.options import AUTO

if TYPE_CHECKING:
    from normlens.lens import Lens

CLASSES, NEXT_TOKEN, MASKED_TOKEN, COSINE = "classes", "next-token", "masked-token", "cosine"


@dataclass(frozen=True, eq=False)
class Question:
    """One number that a model gives for one text."""

    encoded: Encoded
    target: int | None = None  # class, or vocabulary id
    contrast: int | None = None  # the score is the target's logit less this one's
    position: int | None = None  # where the score is read; None: it is of the whole text
    other: NDArray[np.float64] | None = None  # unit vector v: the score is u·v / ‖u‖
    masked: bool = False  # `position` is a mask, which the target fills

    def __post_init__(self) -> None:
        if (self.target is None) == (self.other is None):
            raise InputError("a question has a target or another text's vector, one of the two")
        if self.target is not None and self.target == self.contrast:
            raise InputError("target and contrast are the same, so there is no difference")

    @property
    def kind(self) -> str:
        """What the score is about: "classes", "next-token", "masked-token" or "cosine"."""
        if self.other is not None:
            return COSINE
        if self.position is None:
            return CLASSES
        return MASKED_TOKEN if self.masked else NEXT_TOKEN

    def __len__(self) -> int:
        return len(self.encoded)

    @cached_property
    def ordinary(self) -> list[int]:
        """The tokens that may be removed: those that are not special, nor the mask to fill."""
        slot = self.position if self.masked else None
        special = self.encoded.special
        return [place for place in range(len(self)) if not special[place] and place != slot]

    # Variants of the text, as `Scorer.scores` takes them ------------------------------------------

    @property
    def whole(self) -> Variant:
        """The text as it is."""
        return whole_text(self.encoded, self.position)

    def with_ids(self, ids: Sequence[int]) -> Variant:
        """The text with other token ids."""
        return with_ids(self.encoded, self.position, ids)

    def replaced(self, places: Collection[int], token: int | Sequence[int]) -> Variant:
        """`token`, or one for each place, in the stead of the tokens at `places`."""
        return replaced(self.whole, places, token)

    def without(self, places: Collection[int]) -> Variant:
        """The text without the tokens at `places`."""
        return without(self.whole, places, slot=self.masked)


def same_kind(questions: Iterable[Question]) -> str:
    """The kind of questions that are answered together; they must be of one."""
    kinds = sorted({question.kind for question in questions})
    if len(kinds) != 1:
        raise InputError(f"questions of several kinds ({', '.join(kinds)}); ask them apart")
    return kinds[0]


def mask_token(lens: Lens) -> int | None:
    """The token that stands for a removed one; None where the tokenizer has none."""
    mask: int | None = getattr(lens.tokenizer, "mask_token_id", None)
    return mask


# Making questions ---------------------------------------------------------------------------------


def class_head(lens: Lens) -> Head:
    """The head of a classifier of texts, or an error that says why there is no question for it."""
    head = read_head(lens.adapter)
    if head.task != SEQUENCES:
        raise InputError(f"{lens.name} is a {head.task}; classes are asked of a {SEQUENCES}")
    assert head.output is not None
    if head.output.weight.shape[1] < 2:
        raise InputError(
            f"{lens.name} gives one number for a text, so it chooses between no classes; evaluate "
            "a classifier of two classes or more"
        )
    return head


def class_questions(
    lens: Lens, encoded: Sequence[Encoded], *, batch_size: int | str = AUTO
) -> list[Question]:
    """Why each text's predicted class and not the runner-up.

    Classes that do not exclude each other have no runner-up: the score is the logit alone.
    """
    head = class_head(lens)
    best = _two_best(lens, head, [whole_text(text, None) for text in encoded], batch_size)
    return [
        Question(text, target, contrast if head.exclusive else None)
        for text, (target, contrast) in zip(encoded, best, strict=True)
    ]


def next_token_questions(
    lens: Lens, encoded: Sequence[Encoded], *, batch_size: int | str = AUTO
) -> list[Question]:
    """Why each text's most probable next token and not the second."""
    texts = [whole_text(text, len(text) - 1) for text in encoded]
    best = _two_best(lens, word_head(lens), texts, batch_size)
    return [
        Question(text, target, contrast, len(text) - 1)
        for text, (target, contrast) in zip(encoded, best, strict=True)
    ]


def _two_best(
    lens: Lens, head: Head, texts: Sequence[Variant], batch_size: int | str
) -> list[list[int]]:
    """The two columns with the largest logits of each text, the larger first."""
    if not texts:
        return []

    def best(places: list[int]) -> torch.Tensor:
        scores = logits(lens, [texts[place] for place in places])
        # Of equal scores the first column comes first, as it does in argmax.
        order = scores.double().sort(dim=-1, descending=True, stable=True)
        return order.indices[:, :2]

    columns: list[list[int]] = by_batches(lens, head, texts, batch_size, best).long().tolist()
    return columns


def word_head(lens: Lens) -> Head:
    """The head of a language model, or an error that says what there is instead."""
    head = read_head(lens.adapter)
    if head.task not in (CAUSAL, MASKED):
        raise InputError(f"{lens.name} is a {head.task}; words are asked of a language model")
    return head


def word_question(lens: Lens, encoded: Encoded, good: str | int, bad: str | int) -> Question:
    """Why `good` and not `bad` comes next, or stands at the mask: by the first token of each.

    Behind a text of a causal model, a word that comes without its space is given one.
    """
    head = word_head(lens)
    place = place_of(lens, head, encoded)

    def column(word: str | int, what: str) -> int:
        if isinstance(word, str) and head.task == CAUSAL:
            word = _behind(encoded, word)
        return column_of(word, head, lens.tokenizer, encoded, place, True, what)

    target, contrast = column(good, "target"), column(bad, "contrast")
    if target == contrast:
        raise InputError(
            f"{good!r} and {bad!r} begin with the same token "
            f"({label_of(target, head, lens.tokenizer)}), so the model does not choose between "
            "them there; give words that differ in their first token"
        )
    return Question(encoded, target, contrast, place, masked=head.task == MASKED)


def _behind(encoded: Encoded, word: str) -> str:
    text = encoded.text
    spaced = word[:1].isspace() or (isinstance(text, str) and text[-1:].isspace())
    return word if spaced else f" {word}"


def cosine_questions(
    lens: Lens, pairs: Sequence[tuple[Encoded, Encoded]], *, batch_size: int | str = AUTO
) -> list[Question]:
    """What makes the first text of each pair similar to the second, whose vector is fixed."""
    written = [(a.text, b.text) for a, b in pairs]
    check_texts(
        [(a, b) for a, b in written if isinstance(a, str) and isinstance(b, str)], lens.pooling
    )
    head = sentence_head(lens)
    others = {whole_text(other, None): None for _, other in pairs}
    if not others:
        return []
    texts = list(others)

    def pooled(places: list[int]) -> torch.Tensor:
        return text_vectors(lens, head, [texts[place] for place in places])

    vectors = by_batches(lens, head, texts, batch_size, pooled).numpy()
    units = dict(zip(texts, vectors / _lengths(vectors), strict=True))
    return [Question(text, other=units[whole_text(other, None)]) for text, other in pairs]


def _lengths(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.all(lengths > 0):
        raise InputError("one of the texts has a vector of length 0, so there is no cosine")
    return lengths
