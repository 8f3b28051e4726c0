"""Faithfulness as a measure of a corpus: methods, put to the test by protocols, text by text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens.corpus.measures.base import BoundMeasure, Item, ModelMeasure, Needs
from normlens.corpus.runs.options import parse_names
from normlens.errors import InputError
from normlens.studies.faithfulness.choosing import (
    Asking,
    check_columns,
    choose_protocols,
    default_kind,
    default_methods,
)
from normlens.studies.faithfulness.lens_methods import method
from normlens.studies.faithfulness.methods import Method, MethodOptions
from normlens.studies.faithfulness.options import Columns, checked_name
from normlens.studies.faithfulness.protocols import (
    Example,
    Protocol,
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


class Trial:
    """What every protocol makes of every method's scores of one text, as rows of the tables.

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
        """The rows of every table, from what the model says of the variants."""
        rows: dict[str, list[dict[str, Any]]] = {
            EXAMPLES: [self._example(asking)],
            ATTRIBUTIONS: self._attributions(),
            REMOVALS: [],
            FAITHFULNESS: [],
            PASSES: [
                {"method": name, "forward": one.passes.forward, "backward": one.passes.backward}
                for name, one in self.methods.items()
            ],
        }
        known = Scored(*(np.concatenate(both) for both in zip(self.intact, scored, strict=True)))
        for protocol, name, removals in self._plan:
            whose = {"protocol": protocol.name, "method": name}
            places = np.array([self._places[removal.variant] for removal in removals], np.intp)
            outcomes = Scored(
                known.score[places], known.probability[places], known.predicted[places]
            )
            scores = self.methods[name].scores
            values = protocol.values(self.example, scores, self.intact, removals, outcomes)
            rows[FAITHFULNESS] += [{**whose, "first": k, "value": v} for k, v in values.items()]
            rows[REMOVALS] += [
                {
                    **whose,
                    "first": removal.first,
                    "share": removal.share,
                    "removed": removal.removed,
                    **self._scores(outcomes, place),
                }
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
        named = {"methods": self.methods, "protocols": self.protocols}
        given = {name: list(value) for name, value in named.items() if value is not None}
        return {**given, "steps": self.steps, **self.columns.settings}

    def bind(self, lens: Lens, batch_size: int | str) -> BoundMeasure:
        kind = self.kind or default_kind(lens)
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
            return [
                trial.tables(self.asking, scored)
                for trial, scored in zip(trials, outcomes, strict=True)
            ]

    def _attributed(self, one: Method, examples: Sequence[Example]) -> list[Attributed]:
        questions = [example.question for example in examples]
        # The seed is the run's, which all examples share.
        options = replace(self.options, seed=examples[0].seed)
        with counted(self.lens) as counter:
            scores = one(self.lens, questions, options)
        # Texts that went together share the passes of the model.
        shared = counter.passes.per(len(questions))
        return [
            Attributed(given, shared + one.frozen_passes(len(question)))
            for question, given in zip(questions, scores, strict=True)
        ]
