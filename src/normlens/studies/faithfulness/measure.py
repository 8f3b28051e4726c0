"""Faithfulness as a measure of a corpus: methods, put to the test by protocols, text by text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens.corpus.measures.base import BoundMeasure, Item, ModelMeasure, Needs
from normlens.corpus.runs.options import parse_names
from normlens.errors import InputError
from normlens.inputs.text import Encoded
from normlens.studies.faithfulness.choosing import (
    Asked,
    Asking,
    check_columns,
    check_kind,
    default_kind,
    default_methods,
    default_protocols,
)
from normlens.studies.faithfulness.lens_methods import method
from normlens.studies.faithfulness.methods import Method, MethodOptions
from normlens.studies.faithfulness.options import Columns, checked_name
from normlens.studies.faithfulness.protocols import (
    Example,
    Protocol,
    Removal,
    deciding_words,
    get,
    kind_of,
)
from normlens.studies.faithfulness.questions import COSINE
from normlens.studies.faithfulness.scoring import Passes, Scored, counted, score_variants
from normlens.studies.faithfulness.tables import (
    ATTRIBUTIONS,
    EXAMPLES,
    FAITHFULNESS,
    ORDER,
    PASSES,
    REMOVALS,
    TABLES,
)

if TYPE_CHECKING:
    from normlens.corpus.engines.shard_rows import Clock
    from normlens.lens import Lens

# One text's rows in the tables of an evaluation.


@dataclass(frozen=True)
class Attributed:
    """A method's scores of a text's tokens, and what they cost."""

    scores: NDArray[np.float64]
    passes: Passes


@dataclass(frozen=True)
class Tested:
    """What a protocol says of a method's scores of one text."""

    protocol: str
    method: str
    removals: Sequence[Removal]
    outcomes: Scored
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class Evaluated:
    """Everything that is known of one text."""

    item: Item
    asked: Asked
    intact: Scored
    methods: Mapping[str, Attributed]
    tests: Sequence[Tested]

    def tables(self, asking: Asking) -> dict[str, pa.Table]:
        """The rows of every table."""
        return {
            EXAMPLES: self._table(EXAMPLES, [self._example(asking)]),
            ATTRIBUTIONS: self._attributions(),
            REMOVALS: self._removals(),
            FAITHFULNESS: self._table(
                FAITHFULNESS,
                [
                    {"protocol": test.protocol, "method": test.method, "first": k, "value": v}
                    for test in self.tests
                    for k, v in test.values.items()
                ],
            ),
            PASSES: self._table(
                PASSES,
                [
                    {"method": name, "forward": one.passes.forward, "backward": one.passes.backward}
                    for name, one in self.methods.items()
                ],
            ),
        }

    def _table(self, name: str, rows: list[dict[str, Any]]) -> pa.Table:
        whose = {"index": self.item.index, "sequence": self.item.sequence}
        return pa.Table.from_pylist([{**whose, **row} for row in rows], schema=TABLES[name])

    def _example(self, asking: Asking) -> dict[str, Any]:
        example, question = self.asked.example, self.asked.example.question
        return {
            "tokens": len(question),
            "ordinary": len(question.ordinary),
            "target_id": question.target,
            "target": asking.name_of(question.target),
            "contrast_id": question.contrast,
            "contrast": asking.name_of(question.contrast),
            "label": asking.name_of(self.asked.label),
            "evidence": example.evidence,
            **self._scores(self.intact, 0),
        }

    def _scores(self, scored: Scored, place: int) -> dict[str, Any]:
        score, probability = float(scored.score[place]), float(scored.probability[place])
        return {
            "score": score,
            "probability": None if np.isnan(probability) else probability,
            "correct": self.asked.correct(score, int(scored.predicted[place])),
        }

    def _attributions(self) -> pa.Table:
        encoded = self.asked.example.question.encoded
        ordinary = {*self.asked.example.question.ordinary}
        words, deciding = _words(encoded, self.asked.example.evidence)
        rows = [
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
        return self._table(ATTRIBUTIONS, rows)

    def _removals(self) -> pa.Table:
        rows = [
            {
                "protocol": test.protocol,
                "method": test.method,
                "first": removal.first,
                "share": removal.share,
                "removed": removal.removed,
                **self._scores(test.outcomes, place),
            }
            for test in self.tests
            for place, removal in enumerate(test.removals)
        ]
        return self._table(REMOVALS, rows)


def _words(encoded: Encoded, evidence: str | None) -> tuple[list[int | None], set[int] | None]:
    """The word of each token, and the deciding ones; evidence of several words is one."""
    if evidence is None:
        return list(encoded.words or [None] * len(encoded)), None
    words, deciding = deciding_words(encoded, evidence)
    return [None if word < 0 else word for word in words.tolist()], deciding


# Trials: one text's changed versions, for all methods and protocols, run together.


class Trial:
    """What every protocol makes of every method's scores of one text.

    Methods, orders and shares often come to the same tokens: a variant is run once, and the text
    itself, which is known already, not again.
    """

    def __init__(
        self,
        protocols: Sequence[Protocol],
        example: Example,
        intact: Scored,
        methods: Mapping[str, Attributed],
    ):
        self.example, self.intact, self.methods = example, intact, methods
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

    def tested(self, scored: Scored) -> list[Tested]:
        """The protocols' values, from what the model says of the variants."""
        known = _joined(self.intact, scored)
        return [self._tested(known, *planned) for planned in self._plan]

    def _tested(
        self, known: Scored, protocol: Protocol, method: str, removals: Sequence[Removal]
    ) -> Tested:
        places = np.array([self._places[removal.variant] for removal in removals], np.intp)
        outcomes = Scored(known.score[places], known.probability[places], known.predicted[places])
        scores = self.methods[method].scores
        values = protocol.values(self.example, scores, self.intact, removals, outcomes)
        return Tested(protocol.name, method, removals, outcomes, values)


def _joined(*parts: Scored) -> Scored:
    return Scored(
        np.concatenate([part.score for part in parts]),
        np.concatenate([part.probability for part in parts]),
        np.concatenate([part.predicted for part in parts]),
    )


def run_trials(lens: Lens, trials: Sequence[Trial], batch_size: int | str) -> list[list[Tested]]:
    """Run the variants of several texts, which share batches."""
    asked = [(trial.example.question, trial.variants) for trial in trials]
    scored = score_variants(lens, asked, batch_size=batch_size)
    return [trial.tested(outcomes) for trial, outcomes in zip(trials, scored, strict=True)]


# Faithfulness as a measure of a corpus: methods, put to the test by protocols, text by text.
#
# A shard's record counts the seconds of each stage: ``questions`` (what the model predicts),
# ``intact`` (one plain forward pass of every text, the unit of costs), ``method NAME`` for each
# method, and ``protocols`` (all changed texts).


class FaithfulnessMeasure(ModelMeasure):
    """How true the scores of `methods` are, by `protocols`.

    By default the methods are all built-in ones that the model allows and that need no further
    package, and the protocols those of the model's kind; cosines have to be asked for. `steps` are
    those of integrated gradients. The columns name fields of the data: a classifier's label, two
    next words of which a causal model should prefer the good one, and the word that must decide.
    """

    name = "faithfulness"
    tables = TABLES
    order = ORDER

    def __init__(
        self,
        methods: str | Sequence[str] | None = None,
        protocols: str | Sequence[str] | None = None,
        steps: int = MethodOptions.steps,
        label_column: str | None = None,
        good_column: str | None = None,
        bad_column: str | None = None,
        evidence_column: str | None = None,
    ):
        self.methods = None if methods is None else _listed(methods, "method")
        self.protocols = None if protocols is None else _listed(protocols, "protocol")
        self.steps = MethodOptions(steps=steps).steps
        self.columns = Columns(label_column, good_column, bad_column, evidence_column)
        for name in self.methods or ():
            checked_name(name)
        self.kind = None if self.protocols is None else kind_of(self.protocols)
        if self.kind is not None:
            check_columns(self.kind, self.protocols or (), self.columns)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        return Needs(scopes=(), arrays=False, apart=self.kind == COSINE)

    @property
    def options(self) -> dict[str, Any]:
        columns = self.columns
        given = {
            "methods": None if self.methods is None else list(self.methods),
            "protocols": None if self.protocols is None else list(self.protocols),
            "steps": self.steps,
            "label_column": columns.label,
            "good_column": columns.good,
            "bad_column": columns.bad,
            "evidence_column": columns.evidence,
        }
        return {name: value for name, value in given.items() if value is not None}

    def bind(self, lens: Lens, batch_size: int | str) -> BoundMeasure:
        kind = self.kind or default_kind(lens)
        names = self.protocols or default_protocols(lens, kind, self.columns)
        check_kind(lens, kind, names)
        check_columns(kind, names, self.columns)
        methods = [method(name) for name in self.methods or default_methods(lens).allowed]
        for one in methods:
            one.needs(lens)
        protocols = [get(name).on(lens) for name in names]
        asking = Asking(lens, kind, self.columns, batch_size)
        return _Faithfulness(lens, asking, methods, protocols, self.steps, batch_size)


def _listed(names: str | Sequence[str], what: str) -> tuple[str, ...]:
    listed = parse_names(names)
    if not listed:
        raise InputError(f"no {what} is chosen; leave --{what}s out to take all that fit the model")
    if len(set(listed)) != len(listed):
        raise InputError(f"a {what} is named twice: {', '.join(listed)}")
    return listed


@dataclass(frozen=True)
class _Faithfulness(BoundMeasure):
    lens: Lens
    asking: Asking
    methods: Sequence[Method]
    protocols: Sequence[Protocol]
    steps: int
    batch_size: int | str

    def batch_rows(self, items: Sequence[Item], clock: Clock) -> list[dict[str, pa.Table] | str]:
        with clock.on("questions"):
            asked = self.asking.of(items)
        usable = [(i, one) for i, one in zip(items, asked, strict=True) if isinstance(one, Asked)]
        evaluated = iter(self._evaluated(usable, clock))
        return [
            one if isinstance(one, str) else next(evaluated).tables(self.asking) for one in asked
        ]

    def _evaluated(self, asked: Sequence[tuple[Item, Asked]], clock: Clock) -> list[Evaluated]:
        if not asked:
            return []
        examples = [one.example for _, one in asked]
        with clock.on("intact"):
            whole = [(example.question, [example.question.whole]) for example in examples]
            intact = score_variants(self.lens, whole, batch_size=self.batch_size)
        methods: list[dict[str, Attributed]] = [{} for _ in examples]
        for one in self.methods:
            with clock.on(f"method {one.name}"):
                for place, attributed in enumerate(self._attributed(one, examples)):
                    methods[place][one.name] = attributed
        with clock.on("protocols"):
            trials = [
                Trial(self.protocols, example, scored, by_method)
                for example, scored, by_method in zip(examples, intact, methods, strict=True)
            ]
            tests = run_trials(self.lens, trials, self.batch_size)
        return [
            Evaluated(item, one, trial.intact, trial.methods, tested)
            for (item, one), trial, tested in zip(asked, trials, tests, strict=True)
        ]

    def _attributed(self, one: Method, examples: Sequence[Example]) -> list[Attributed]:
        questions = [example.question for example in examples]
        seed = examples[0].seed  # the run's, which all examples share
        options = MethodOptions(batch_size=self.batch_size, seed=seed, steps=self.steps)
        with counted(self.lens) as counter:
            scores = one(self.lens, questions, options)
        # Texts that went together share the passes of the model.
        shared = counter.passes.per(len(questions))
        return [
            Attributed(given, shared + one.frozen_passes(len(question)))
            for question, given in zip(questions, scores, strict=True)
        ]
