"""Faithfulness as a measure of a corpus: methods, put to the test by protocols, text by text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens.corpus.measures.base import BoundMeasure, Item, ModelMeasure, Needs
from normlens.errors import InputError, MissingDependencyError, NormLensError
from normlens.explain.questions import column_of, label_of
from normlens.inputs.text import Encoded
from normlens.layers import CAUSAL, SEQUENCES, Head
from normlens.models.base import NoHead, read_head
from normlens.scopes import shortest
from normlens.studies.faithfulness.citations import Citations
from normlens.studies.faithfulness.methods import Method, MethodOptions, method
from normlens.studies.faithfulness.options import (
    CITATION_METHODS,
    CITATIONS,
    NAMES,
    ROLLOUT,
    Columns,
    EvaluateOptions,
)
from normlens.studies.faithfulness.protocols import (
    EVIDENCE,
    ORDER,
    PROTOCOLS,
    TABLES,
    Drops,
    Example,
    deciding_words,
    get,
    kind_of,
    tables_of,
)
from normlens.studies.faithfulness.questions import (
    CLASSES,
    COSINE,
    NEXT_TOKEN,
    Question,
    Scored,
    choice_questions,
    cosine_questions,
    counted,
    score_variants,
    word_question,
)

if TYPE_CHECKING:
    from normlens.corpus.engines.block_rows import Clock
    from normlens.lens import Lens

# From the rows of a corpus to questions about its texts.


@dataclass(frozen=True)
class Asking:
    """Makes one kind of question about the texts of a corpus."""

    lens: Lens
    kind: str
    columns: Columns
    batch_size: int | str

    @cached_property
    def head(self) -> Head | None:
        """The head whose scores are asked for; None for cosines."""
        return None if self.kind == COSINE else read_head(self.lens.adapter)

    def name_of(self, column: int | None) -> str | None:
        """Return the name of a class or a token."""
        if column is None or self.head is None:
            return None
        return label_of(column, self.head, self.lens.tokenizer)

    def class_of(self, label: str) -> int:
        """Return the class of a label, given by name or number; raise for unknown ones."""
        assert self.head is not None
        return column_of(label, self.head, None, Encoded([], [], []), None, False, "label")

    def of(self, items: Sequence[Item]) -> list[Example | str]:
        """Ask about each text, or say why it cannot be asked about."""
        facts = [self._facts(item) for item in items]
        texts = [
            item.encoded for item, one in zip(items, facts, strict=True) if not isinstance(one, str)
        ]
        questions = iter(self._questions(texts) if texts else ())
        return [one if isinstance(one, str) else Example(next(questions), **one) for one in facts]

    def _facts(self, item: Item) -> dict[str, Any] | str:
        """What a text's row says of it, or why it cannot be asked about."""
        try:
            row = self._row(item.encoded)
            label = self.class_of(row["label"]) if "label" in row else None
            if "good" in row:
                self._word_question(item.encoded)
            if "evidence" in row:
                deciding_words(item.encoded, row["evidence"])
        except InputError as error:
            return str(error)
        if all(item.encoded.special):
            return "it has no token that could be removed"
        facts = {"seed": item.seed, "evidence": row.get("evidence"), "label": label}
        return {**facts, "prefers": "good" in row}

    def _row(self, text: Any) -> dict[str, str]:
        """The fields of a text's row, by the columns' names."""
        row: dict[str, str] = {}
        for name, column in self.columns.given.items():
            if column not in text.extra:
                raise InputError(
                    f"its row comes without the column {column!r}; name it in extra_columns"
                )
            row[name] = text.extra[column]
        return row

    def _word_question(self, text: Encoded) -> Question:
        row = self._row(text)
        return word_question(self.lens, text, row["good"], row["bad"])

    def _questions(self, texts: Sequence[Any]) -> list[Question]:
        if self.kind == COSINE:
            pairs = [(text, text.second) for text in texts]
            return cosine_questions(self.lens, pairs, self.batch_size)
        if self.columns.good is not None:
            return [self._word_question(text) for text in texts]
        return choice_questions(self.lens, texts, self.batch_size)


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
    raise InputError(f"{lens.name} is a {task}; for a sentence encoder, give pairs (--pair-column)")


def choose_protocols(
    lens: Lens, kind: str, named: Sequence[str] | None, columns: Columns
) -> tuple[str, ...]:
    """The named protocols, or all of a kind that the model's tokens and the data's columns allow.

    Refuses protocols of another kind of model, and columns that they do not read.
    """
    protocols = tuple(named or _default_protocols(lens, kind, columns))
    (expected, models), task = _MODELS[kind], _task(lens)
    if expected not in (None, task):
        raise InputError(f"{protocols[0]} is for {models}, not for a {task}; leave it out")
    output = None if kind != CLASSES else read_head(lens.adapter).output
    if output is not None and output.weight.shape[1] < 2:
        raise InputError(f"{lens.name} gives one number for a text, no choice of classes")
    check_columns(kind, protocols, columns)
    return protocols


def _default_protocols(lens: Lens, kind: str, columns: Columns) -> list[str]:
    allowed, reasons = [], []
    for name, protocol in PROTOCOLS.items():
        if protocol.kind != kind or (name == EVIDENCE.name and columns.evidence is None):
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
            raise InputError(f"{what} are for {_MODELS[reader][1]}, not {_MODELS[kind][1]}")
    if EVIDENCE.name in protocols and columns.evidence is None:
        raise InputError("evidence needs --evidence-column, --good-column and --bad-column")


def _task(lens: Lens) -> str:
    try:
        return read_head(lens.adapter).task
    except NoHead:
        return "model without a head"


# One text's rows in the tables of an evaluation.


class Trial:
    """The table rows of one text: every protocol on every method's scores.

    Methods, orders and shares often come to the same tokens: a variant is run once, and the text
    itself, which is known already, not again.
    """

    def __init__(
        self,
        item: Item,
        example: Example,
        intact: Scored,
        scores: Mapping[str, NDArray[np.float64]],
        protocols: Sequence[Drops],
    ):
        self.item, self.example, self.intact, self.scores = item, example, intact, scores
        self._plan = [
            (protocol, name, protocol.removals(example, of_method))
            for protocol in protocols
            for name, of_method in scores.items()
        ]
        removals = (removal for _, _, planned in self._plan for removal in planned)
        unique = dict.fromkeys([example.question.whole, *(r.variant for r in removals)])
        self._places = {variant: place for place, variant in enumerate(unique)}
        _, *self.variants = unique  # what has to be run

    def tables(
        self, asking: Asking, scored: Scored, passes: Mapping[str, NDArray[np.float64]]
    ) -> dict[str, pa.Table]:
        """Build the rows of every table from the scores of the variants."""
        known = np.concatenate([self.intact, scored])
        values: list[dict[str, Any]] = []
        removed: list[dict[str, Any]] = []
        for protocol, name, removals in self._plan:
            whose = {"protocol": protocol.name, "method": name}
            places = [self._places[removal.variant] for removal in removals]
            outcomes = known[places]
            drops = self.intact[0, protocol.reads] - outcomes[:, protocol.reads]
            by_first = protocol.values(self.example, self.scores[name], removals, drops)
            values += [{**whose, "first": k, "value": v} for k, v in by_first.items()]
            removed += [
                {**whose, "first": removal.first, "share": removal.share}
                | {"removed": removal.removed, **self._said(outcome)}
                for removal, outcome in zip(removals, outcomes, strict=True)
            ]
        return tables_of(
            self.item,
            examples=[self._example(asking)],
            attributions=self._attributions(),
            removals=removed,
            faithfulness=values,
            method_passes=[
                {"method": name, "forward": forward, "backward": backward}
                for name, (forward, backward) in passes.items()
            ],
        )

    def _example(self, asking: Asking) -> dict[str, Any]:
        question = self.example.question
        return {
            "tokens": len(question),
            "ordinary": len(question.ordinary),
            "target_id": question.target,
            "target": asking.name_of(question.target),
            "contrast_id": question.contrast,
            "contrast": asking.name_of(question.contrast),
            "label": asking.name_of(self.example.label),
            "evidence": self.example.evidence,
            **self._said(self.intact[0]),
        }

    def _said(self, outcome: Scored) -> dict[str, Any]:
        score, probability, predicted = outcome.tolist()
        return {
            "score": score,
            "probability": probability if probability == probability else None,
            "correct": self.example.correct(score, int(predicted)),
        }

    def _attributions(self) -> list[dict[str, Any]]:
        encoded, evidence = self.example.question.encoded, self.example.evidence
        words: Sequence[Any] = encoded.words or [None] * len(encoded)
        deciding = None
        if evidence is not None:  # of several words it is one
            numbers, deciding = deciding_words(encoded, evidence)
            words = [None if word < 0 else word for word in numbers.tolist()]
        tokens = [
            {
                "position": place,
                "token": token,
                "ordinary": not special,
                "word": word,
                "evidence": None if deciding is None else word in deciding,
            }
            for place, (token, special, word) in enumerate(
                zip(encoded.tokens, encoded.special, words, strict=True)
            )
        ]
        return [
            {"method": name, **token, "score": score}
            for name, scores in self.scores.items()
            for token, score in zip(tokens, scores.tolist(), strict=True)
        ]


# Faithfulness as a measure of a corpus: methods, put to the test by protocols, text by text.
#
# A block's record counts the seconds of each stage: ``questions`` (what the model predicts),
# ``intact`` (one plain forward pass of every text, the unit of costs), ``method NAME`` for each
# method, and ``protocols`` (all changed texts).


@dataclass(frozen=True, eq=False)
class FaithfulnessMeasure(EvaluateOptions, ModelMeasure):
    """Measure the faithfulness of `methods` by `protocols`.

    By default the methods are all built-in ones that the model allows and that need no further
    package, and the protocols those of the model's kind; cosines have to be asked for.
    """

    name = "faithfulness"
    tables = TABLES
    order = ORDER

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in (None, CITATIONS):
            check_columns(self.kind, self.protocols or (), self.columns)

    @property
    def kind(self) -> str | None:
        """The kind of question that the protocols are about; None where none is named."""
        return None if self.protocols is None else kind_of(self.protocols)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        return Needs(scopes=(), arrays=False, apart=self.kind == COSINE)

    @property
    def options(self) -> dict[str, Any]:
        named = {"methods": self.methods, "protocols": self.protocols}
        given = {name: list(value) for name, value in named.items() if value is not None}
        return {**given, "steps": self.steps, **self.columns.settings}

    def bind(self, lens: Lens, batch_size: int | str) -> BoundMeasure:
        kind = self.kind or default_kind(lens)
        if kind == CITATIONS:
            return Citations(lens, self.methods or CITATION_METHODS, batch_size)
        protocols = choose_protocols(lens, kind, self.protocols, self.columns)
        methods = [method(name) for name in self.methods or default_methods(lens)[0]]
        for one in methods:
            one.needs(lens)
        return _Faithfulness(
            lens,
            Asking(lens, kind, self.columns, batch_size),
            methods,
            [get(name).on(lens) for name in protocols],
            MethodOptions(batch_size, steps=self.steps),
        )


@dataclass(frozen=True)
class _Faithfulness(BoundMeasure):
    lens: Lens
    asking: Asking
    methods: Sequence[Method]
    protocols: Sequence[Drops]
    options: MethodOptions

    def batch_rows(self, items: Sequence[Item], clock: Clock) -> list[dict[str, pa.Table] | str]:
        with clock.on("questions"):
            asked = self.asking.of(items)
        usable = [(i, one) for i, one in zip(items, asked, strict=True) if isinstance(one, Example)]
        tables = iter(self._tables(usable, clock) if usable else ())
        return [one if isinstance(one, str) else next(tables) for one in asked]

    def _tables(
        self, asked: Sequence[tuple[Item, Example]], clock: Clock
    ) -> list[dict[str, pa.Table]]:
        questions = [example.question for _, example in asked]
        size = self.options.batch_size
        # The seed is the run's, which all examples share.
        options = replace(self.options, seed=asked[0][1].seed)
        with clock.on("intact"):
            whole = [(question, [question.whole]) for question in questions]
            intact = score_variants(self.lens, whole, batch_size=size)
        scores: list[dict[str, NDArray[np.float64]]] = [{} for _ in asked]
        passes: list[dict[str, NDArray[np.float64]]] = [{} for _ in asked]
        for one in self.methods:
            with clock.on(f"method {one.name}"), counted(self.lens) as counts:
                given = one(self.lens, questions, options)
            for place, question in enumerate(questions):
                scores[place][one.name] = given[place]
                # Texts that went together share the passes of the model.
                frozen = one.frozen_forward * len(question), one.frozen_backward
                passes[place][one.name] = counts / len(questions) + frozen
        with clock.on("protocols"):
            trials = [
                Trial(*of_text, whole, by_method, self.protocols)
                for of_text, whole, by_method in zip(asked, intact, scores, strict=True)
            ]
            # Variants of several texts share batches.
            variants = [(trial.example.question, trial.variants) for trial in trials]
            outcomes = score_variants(self.lens, variants, batch_size=size)
            return [
                trial.tables(self.asking, scored, spent)
                for trial, scored, spent in zip(trials, outcomes, passes, strict=True)
            ]
