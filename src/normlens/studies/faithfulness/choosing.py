"""What is evaluated, by the model and the data's columns; from rows of a corpus to questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from normlens.corpus.data.spans import EncodedRecord
from normlens.corpus.measures.base import Item
from normlens.errors import InputError, MissingDependencyError, NormLensError
from normlens.explain.questions import column_of, label_of
from normlens.layers import CAUSAL, SEQUENCES, Head
from normlens.models.base import NoHead, read_head
from normlens.scopes import shortest
from normlens.studies.faithfulness.lens_methods import method
from normlens.studies.faithfulness.options import NAMES, ROLLOUT, Columns
from normlens.studies.faithfulness.protocols import PROTOCOLS, Evidence, Example, deciding_words
from normlens.studies.faithfulness.questions import (
    CLASSES,
    COSINE,
    NEXT_TOKEN,
    Question,
    class_head,
    class_questions,
    cosine_questions,
    next_token_questions,
    word_question,
)

if TYPE_CHECKING:
    from normlens.lens import Lens

# From the rows of a corpus to questions about its texts.


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

    def of(self, items: Sequence[Item]) -> list[Example | str]:
        """Ask about each text, or say why it cannot be asked about."""
        encoded = [_encoded(item) for item in items]
        problems = [self._problem(text) for text in encoded]
        usable = [t for t, problem in zip(encoded, problems, strict=True) if problem is None]
        questions = iter(self._questions(usable))
        column = self.columns.evidence
        return [
            problem
            or Example(
                next(questions),
                item.seed,
                None if column is None else text.extra[column],
                self._label(text),
                prefers=self.columns.good is not None,
            )
            for item, text, problem in zip(items, encoded, problems, strict=True)
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


def _encoded(item: Item) -> EncodedRecord:
    assert isinstance(item.encoded, EncodedRecord)
    return item.encoded


def _field(encoded: EncodedRecord, column: str) -> str:
    if column not in encoded.extra:
        raise InputError(f"its row comes without the column {column!r}; name it in extra_columns")
    return encoded.extra[column]


# What is evaluated unless told otherwise, by the model and the data's columns; refusals.


#: What each kind of question is asked of: the task of such models, and their name.
_MODELS = {
    CLASSES: (SEQUENCES, "classifiers"),
    NEXT_TOKEN: (CAUSAL, "causal language models"),
    COSINE: (None, "sentence encoders on pairs of texts"),
}


def default_methods(lens: Lens) -> tuple[tuple[str, ...], list[str]]:
    """Every built-in method that this model allows, with the rollout of its whole layer.

    Beside them the reasons, one for each method that needs a package that is missing.
    """
    whole = shortest(lens.scopes).get(lens.scopes[-1], lens.scopes[-1])
    names = list(NAMES)
    names.insert(names.index("rollout-weights"), f"{ROLLOUT}{whole.lower()}")
    allowed, missing = [], []
    for name in names:
        try:
            method(name).needs(lens)
        except MissingDependencyError as error:
            missing.append(str(error))
        except NormLensError:
            continue
        else:
            allowed.append(name)
    return tuple(allowed), missing


def default_kind(lens: Lens, pairs: bool = False) -> str:
    """The kind of question that a model answers: classes, next tokens, or cosines of pairs."""
    task = _task(lens)
    for kind, (expected, _) in _MODELS.items():
        if task == expected:
            return kind
    if pairs:
        return COSINE
    raise InputError(
        f"{lens.name} is a {task}; evaluate a classifier, a causal language model, or a sentence "
        "encoder on pairs of texts (--pair-column)"
    )


def choose_protocols(
    lens: Lens, kind: str, named: Sequence[str] | None, columns: Columns
) -> tuple[str, ...]:
    """The named protocols, or all of a kind that the model's tokens and the data's columns allow.

    Refuses protocols of another kind of model, and columns that they do not read.
    """
    protocols = tuple(named or _default_protocols(lens, kind, columns))
    (expected, models), task = _MODELS[kind], _task(lens)
    if expected not in (None, task):
        raise InputError(
            f"{protocols[0]} is for {models}, and {lens.name} is a {task}; choose among "
            f"{', '.join(PROTOCOLS)} what fits it, or leave --protocols out"
        )
    if kind == CLASSES:
        class_head(lens)
    check_columns(kind, protocols, columns)
    return protocols


def _default_protocols(lens: Lens, kind: str, columns: Columns) -> list[str]:
    allowed, reasons = [], []
    for name, protocol in PROTOCOLS.items():
        if protocol.kind != kind or (name == Evidence.name and columns.evidence is None):
            continue
        try:
            protocol.on(lens)
        except InputError as error:
            reasons.append(str(error))
        else:
            allowed.append(name)
    if not allowed:
        raise InputError(reasons[0])
    return allowed


def check_columns(kind: str, protocols: Sequence[str], columns: Columns) -> None:
    """Refuse columns that the kind of question does not read, and evidence without its column."""
    for column, what, reader in (
        (columns.label, "labels", CLASSES),
        (columns.good, "good and bad next words", NEXT_TOKEN),
    ):
        if column is not None and kind != reader:
            raise InputError(
                f"{what} are for {_MODELS[reader][1]}, and {protocols[0]} is for {_MODELS[kind][1]}"
            )
    if Evidence.name in protocols and columns.evidence is None:
        raise InputError(
            "evidence needs the word of each text that must decide; give --evidence-column, with "
            "--good-column and --bad-column"
        )


def _task(lens: Lens) -> str:
    try:
        return read_head(lens.adapter).task
    except NoHead:
        return "model without a head"
