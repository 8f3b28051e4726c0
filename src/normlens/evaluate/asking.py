"""From the rows of a corpus to questions about its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from normlens.corpus.data.spans import EncodedRecord
from normlens.corpus.measures.base import Item
from normlens.errors import InputError
from normlens.evaluate.columns import Columns
from normlens.evaluate.outputs import by_batches, logits
from normlens.evaluate.protocols.base import Example
from normlens.evaluate.protocols.evidence import deciding_words
from normlens.evaluate.questions import (
    CLASSES,
    COSINE,
    Question,
    class_head,
    class_questions,
    cosine_questions,
    word_head,
    word_question,
)
from normlens.evaluate.variants import whole_text
from normlens.explain.words import column_of, label_of
from normlens.heads import CAUSAL, Head
from normlens.text import Encoded

if TYPE_CHECKING:
    from normlens.lens import Lens


@dataclass(frozen=True)
class Asked:
    """An example, and what its row says of the right answer."""

    example: Example
    label: int | None = None

    def correct(self, score: float, predicted: int) -> bool | None:
        """Whether the model is right, by its label or by the two words; None where neither is."""
        if self.label is not None:
            return predicted == self.label
        return score > 0 if self.example.has_words else None


@dataclass(frozen=True)
class Asking:
    """Asks a model about every text of a corpus, always the same kind of question."""

    lens: Lens
    kind: str
    columns: Columns
    batch_size: int | str

    @cached_property
    def head(self) -> Head | None:
        """The head whose scores are asked for; None where cosines are."""
        if self.kind == COSINE:
            return None
        if self.kind == CLASSES:
            return class_head(self.lens)
        head = word_head(self.lens)
        if head.task != CAUSAL:
            raise InputError(f"{self.lens.name} is a {head.task}; next tokens are a {CAUSAL}'s")
        return head

    def name_of(self, column: int | None) -> str | None:
        """What people call a class or a token."""
        if column is None or self.head is None:
            return None
        return label_of(column, self.head, self.lens.tokenizer)

    def label_of_row(self, encoded: EncodedRecord) -> int | None:
        """The class that a row's label means; raises where the model has no such class."""
        if self.columns.label is None or self.head is None:
            return None
        return self.label(encoded.extra[self.columns.label], encoded)

    def label(self, written: str, encoded: Encoded) -> int:
        """The class that a label means: its name or its number."""
        assert self.head is not None
        return column_of(written, self.head, None, encoded, None, False, "label")

    def of(self, items: Sequence[Item]) -> list[Asked | str]:
        """Ask about each text, or say why it cannot be asked about."""
        asked: list[Asked | str] = []
        ready = {}
        for place, item in enumerate(items):
            try:
                ready[place] = self._check(item)
            except InputError as error:
                asked.append(str(error))
            else:
                asked.append("")
        places = [place for place in ready if not isinstance(ready[place], str)]
        questions = self._questions([items[place] for place in places])
        for place, question in zip(places, questions, strict=True):
            if isinstance(question, str):
                asked[place] = question
                continue
            asked[place] = self._asked(items[place], question, ready[place])
        return asked
