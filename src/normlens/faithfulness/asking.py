"""From the rows of a corpus to questions about its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from normlens.corpus.data.spans import EncodedRecord
from normlens.corpus.measures.base import Item
from normlens.errors import InputError
from normlens.explain.questions import column_of, label_of
from normlens.faithfulness.columns import Columns
from normlens.faithfulness.protocols.base import Example
from normlens.faithfulness.protocols.evidence import deciding_words
from normlens.faithfulness.questions import (
    CLASSES,
    COSINE,
    Question,
    class_questions,
    cosine_questions,
    next_token_questions,
    word_question,
)
from normlens.layers import Head
from normlens.models.base import read_head

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class Asked:
    """An example, and what its row says of the right answer."""

    example: Example
    label: int | None  # a class
    prefers: bool  # whether the target is the better of two words that the row names

    def correct(self, score: float, predicted: int) -> bool | None:
        """Whether the model is right by its row; None where the row does not say."""
        if self.label is not None:
            return predicted == self.label
        return score > 0 if self.prefers else None


@dataclass(frozen=True)
class Asking:
    """Asks a model about the texts of a corpus, always the same kind of question."""

    lens: Lens
    kind: str
    columns: Columns
    batch_size: int | str

    @cached_property
    def head(self) -> Head | None:
        """The head whose scores are asked for; None for cosines."""
        return None if self.kind == COSINE else read_head(self.lens.adapter)

    def name_of(self, column: int | None) -> str | None:
        """What people call a class or a token."""
        if column is None or self.head is None:
            return None
        return label_of(column, self.head, self.lens.tokenizer)

    def class_of(self, label: str) -> int:
        """The class that a label means, by its name or its number; raises where there is none."""
        assert self.head is not None
        nothing = EncodedRecord([], [], [])
        return column_of(label, self.head, None, nothing, None, False, "label")

    def of(self, items: Sequence[Item]) -> list[Asked | str]:
        """Ask about each text, or say why it cannot be asked about."""
        problems = [self._problem(_encoded(item)) for item in items]
        usable = [i for i, problem in zip(items, problems, strict=True) if problem is None]
        made = iter(self._questions([_encoded(item) for item in usable]))
        return [
            self._asked(item, next(made)) if problem is None else problem
            for item, problem in zip(items, problems, strict=True)
        ]

    def _problem(self, encoded: EncodedRecord) -> str | None:
        try:
            self._label(encoded)
            if self.columns.good is not None:
                self._word_question(encoded)
            if self.columns.evidence is not None:
                deciding_words(encoded, _field(encoded, self.columns.evidence))
        except InputError as error:
            return str(error)
        return "it has no token that could be removed" if all(encoded.special) else None

    def _questions(self, encoded: Sequence[EncodedRecord]) -> list[Question]:
        if self.kind == COSINE:
            pairs = [(text, text.second) for text in encoded if text.second is not None]
            return cosine_questions(self.lens, pairs, batch_size=self.batch_size)
        if self.kind == CLASSES:
            return class_questions(self.lens, encoded, batch_size=self.batch_size)
        if self.columns.good is not None:
            return [self._word_question(text) for text in encoded]
        return next_token_questions(self.lens, encoded, batch_size=self.batch_size)

    def _word_question(self, encoded: EncodedRecord) -> Question:
        assert self.columns.good is not None
        assert self.columns.bad is not None
        good, bad = _field(encoded, self.columns.good), _field(encoded, self.columns.bad)
        return word_question(self.lens, encoded, good, bad)

    def _label(self, encoded: EncodedRecord) -> int | None:
        if self.columns.label is None:
            return None
        return self.class_of(_field(encoded, self.columns.label))

    def _asked(self, item: Item, question: Question) -> Asked:
        encoded = _encoded(item)
        column = self.columns.evidence
        example = Example(question, item.seed, None if column is None else encoded.extra[column])
        return Asked(example, self._label(encoded), self.columns.good is not None)


def _encoded(item: Item) -> EncodedRecord:
    assert isinstance(item.encoded, EncodedRecord)
    return item.encoded


def _field(encoded: EncodedRecord, column: str) -> str:
    if column not in encoded.extra:
        raise InputError(f"its row comes without the column {column!r}; name it in extra_columns")
    return encoded.extra[column]
