"""Faithfulness as a measure of a corpus: methods, put to the test by protocols, text by text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens.corpus.data.spans import EncodedRecord
from normlens.corpus.measures.base import LABEL, WHOSE, BoundMeasure, Item, ModelMeasure, Needs
from normlens.errors import InputError, MissingDependencyError, NormLensError
from normlens.explain.questions import column_of, label_of
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
    PROTOCOLS,
    Evidence,
    Example,
    Protocol,
    deciding_words,
    get,
    kind_of,
)
from normlens.studies.faithfulness.questions import (
    CLASSES,
    COSINE,
    NEXT_TOKEN,
    Passes,
    Question,
    Scored,
    class_head,
    class_questions,
    cosine_questions,
    counted,
    next_token_questions,
    score_variants,
    word_question,
)

if TYPE_CHECKING:
    from normlens.corpus.engines.block_rows import Clock
    from normlens.lens import Lens

# The tables of an evaluation, which need no model to be read.
#
# `examples` has a row for each text: the question about it and what the model says of it.
# `correct` is by the label, or by which of two given words is preferred. `attributions` has a row
# for each method and token; `word` numbers the words whose tokens' scores are summed, and
# `evidence` marks the word that must decide. `removals` has a row for each variant of a text that
# a protocol ran: `first` says which tokens went first, the most or the least important, `share`
# which share of the ordinary tokens that was (for sufficiency, which share of the most important
# ones stayed), and `removed` how many are gone. `faithfulness` has a protocol's value for each
# method and text, null where the text says nothing. `method_passes` counts the rows that a method
# passed through the model.


EXAMPLES, ATTRIBUTIONS, REMOVALS = "examples", "attributions", "removals"
FAITHFULNESS, PASSES = "faithfulness", "method_passes"

_INT, _REAL, _TEXT, _BOOL = pa.int32(), pa.float64(), pa.string(), pa.bool_()
# The probability is the target's, and null for a cosine.
_SCORES = {"score": _REAL, "probability": _REAL, "correct": _BOOL}
_COLUMNS: dict[str, dict[str, pa.DataType]] = {
    EXAMPLES: {
        **{"tokens": _INT, "ordinary": _INT, "target_id": _INT, "target": _TEXT},
        **{"contrast_id": _INT, "contrast": _TEXT, "label": _TEXT, "evidence": _TEXT, **_SCORES},
    },
    ATTRIBUTIONS: {
        **{"method": LABEL, "position": _INT, "token": LABEL, "ordinary": _BOOL},
        **{"word": _INT, "evidence": _BOOL, "score": _REAL},  # null: of no word, none given
    },
    REMOVALS: {
        **{"protocol": LABEL, "method": LABEL, "first": LABEL, "share": _REAL, "removed": _INT},
        **_SCORES,
    },
    FAITHFULNESS: {"protocol": LABEL, "method": LABEL, "first": LABEL, "value": _REAL},
    PASSES: {"method": LABEL, "forward": _REAL, "backward": _REAL},
}
TABLES: Mapping[str, pa.Schema] = {
    name: pa.schema([*WHOSE, *pa.schema(columns)]) for name, columns in _COLUMNS.items()
}
ORDER: Mapping[str, tuple[str, ...]] = {
    EXAMPLES: ("index",),
    ATTRIBUTIONS: ("index", "method", "position"),
    REMOVALS: ("index", "protocol", "method", "first", "share"),
    FAITHFULNESS: ("index", "protocol", "method", "first"),
    PASSES: ("index", "method"),
}


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
        nothing = EncodedRecord([], [], [])
        return column_of(label, self.head, None, nothing, None, False, "label")

    def of(self, items: Sequence[Item]) -> list[Example | str]:
        """Ask about each text, or say why it cannot be asked about."""
        encoded: list[Any] = [item.encoded for item in items]
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
            raise InputError(f"{what} are for {_MODELS[reader][1]}, not {_MODELS[kind][1]}")
    if Evidence.name in protocols and columns.evidence is None:
        raise InputError("evidence needs --evidence-column, --good-column and --bad-column")


def _task(lens: Lens) -> str:
    try:
        return read_head(lens.adapter).task
    except NoHead:
        return "model without a head"


# One text's rows in the tables of an evaluation.


@dataclass(frozen=True)
class Attributed:
    """A method's scores of a text's tokens, and what they cost."""

    scores: NDArray[np.float64]
    passes: Passes


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
        methods: Mapping[str, Attributed],
        protocols: Sequence[Protocol],
    ):
        self.item, self.example, self.intact, self.methods = item, example, intact, methods
        self._plan = [
            (protocol, name, protocol.removals(example, one.scores))
            for protocol in protocols
            for name, one in methods.items()
        ]
        removals = (removal for _, _, planned in self._plan for removal in planned)
        whole = example.question.whole
        #: what has to be run
        self.variants = [v for v in dict.fromkeys(r.variant for r in removals) if v != whole]
        self._places = {v: place for place, v in enumerate([whole, *self.variants])}

    def tables(self, asking: Asking, scored: Scored) -> dict[str, pa.Table]:
        """Build the rows of every table from the scores of the variants."""
        rows: dict[str, list[dict[str, Any]]] = {
            EXAMPLES: [self._example(asking)],
            ATTRIBUTIONS: self._attributions(),
            REMOVALS: [],
            FAITHFULNESS: [],
            PASSES: [{"method": name, **vars(one.passes)} for name, one in self.methods.items()],
        }
        known = Scored(*(np.concatenate(both) for both in zip(self.intact, scored, strict=True)))
        for protocol, name, removals in self._plan:
            whose = {"protocol": protocol.name, "method": name}
            places = np.array([self._places[removal.variant] for removal in removals], np.intp)
            outcomes = Scored._make(column[places] for column in known)
            scores = self.methods[name].scores
            values = protocol.values(self.example, scores, self.intact, removals, outcomes)
            rows[FAITHFULNESS] += [{**whose, "first": k, "value": v} for k, v in values.items()]
            rows[REMOVALS] += [
                {**whose, "first": removal.first, "share": removal.share}
                | {"removed": removal.removed, **self._scores(outcomes, place)}
                for place, removal in enumerate(removals)
            ]
        of = {"index": self.item.index, "sequence": self.item.sequence}
        return {
            name: pa.Table.from_pylist([{**of, **row} for row in some], schema=TABLES[name])
            for name, some in rows.items()
        }

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
            **self._scores(self.intact, 0),
        }

    def _scores(self, scored: Scored, place: int) -> dict[str, Any]:
        score, probability, predicted = (column[place].item() for column in scored)
        return {
            "score": score,
            "probability": None if np.isnan(probability) else probability,
            "correct": self.example.correct(score, predicted),
        }

    def _attributions(self) -> list[dict[str, Any]]:
        encoded, evidence = self.example.question.encoded, self.example.evidence
        ordinary = {*self.example.question.ordinary}
        words, deciding = list(encoded.words or [None] * len(encoded)), None
        if evidence is not None:  # of several words it is one
            numbers, deciding = deciding_words(encoded, evidence)
            words = [None if word < 0 else word for word in numbers.tolist()]
        return [
            {
                "method": name,
                "position": place,
                "token": encoded.tokens[place],
                "ordinary": place in ordinary,
                "word": words[place],
                "evidence": None if deciding is None else words[place] in deciding,
                "score": score,
            }
            for name, one in self.methods.items()
            for place, score in enumerate(one.scores.tolist())
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
            return Citations.of(lens, self.methods or CITATION_METHODS, batch_size, TABLES)
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
    protocols: Sequence[Protocol]
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
        examples = [example for _, example in asked]
        size = self.options.batch_size
        with clock.on("intact"):
            whole = [(example.question, [example.question.whole]) for example in examples]
            intact = score_variants(self.lens, whole, batch_size=size)
        methods: list[dict[str, Attributed]] = [{} for _ in examples]
        for one in self.methods:
            with clock.on(f"method {one.name}"):
                for place, attributed in enumerate(self._attributed(one, examples)):
                    methods[place][one.name] = attributed
        with clock.on("protocols"):
            trials = [
                Trial(item, example, scored, by_method, self.protocols)
                for (item, example), scored, by_method in zip(asked, intact, methods, strict=True)
            ]
            # Variants of several texts share batches.
            variants = [(trial.example.question, trial.variants) for trial in trials]
            outcomes = score_variants(self.lens, variants, batch_size=size)
            pairs = zip(trials, outcomes, strict=True)
            return [trial.tables(self.asking, scored) for trial, scored in pairs]

    def _attributed(self, one: Method, examples: Sequence[Example]) -> list[Attributed]:
        questions = [example.question for example in examples]
        # The seed is the run's, which all examples share.
        options = replace(self.options, seed=examples[0].seed)
        with counted(self.lens) as counter:
            scores = one(self.lens, questions, options)
        # Texts that went together share the passes of the model.
        shared = counter.passes.per(len(questions))
        frozen = [one.frozen_passes(len(question)) for question in questions]
        return [Attributed(a, shared + passes) for a, passes in zip(scores, frozen, strict=True)]
