"""Faithfulness as a measure of a corpus: methods, put to the test by protocols, text by text.

A shard's record counts the seconds of each stage: ``questions`` (what the model predicts),
``intact`` (one plain forward pass of every text, the unit of costs), ``method NAME`` for each
method, and ``protocols`` (all changed texts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from normlens.corpus.measures.base import BoundMeasure, Item, ModelMeasure, Needs
from normlens.corpus.runs.options import parse_names
from normlens.errors import InputError
from normlens.faithfulness.asking import Asked, Asking
from normlens.faithfulness.choosing import (
    check_columns,
    check_kind,
    default_kind,
    default_methods,
    default_protocols,
)
from normlens.faithfulness.columns import Columns
from normlens.faithfulness.costs import counted
from normlens.faithfulness.methods.base import Method, MethodOptions
from normlens.faithfulness.methods.names import checked_name
from normlens.faithfulness.methods.registry import method
from normlens.faithfulness.protocols.base import Example, Protocol
from normlens.faithfulness.protocols.registry import get, kind_of
from normlens.faithfulness.questions import COSINE
from normlens.faithfulness.rows import Attributed, Evaluated
from normlens.faithfulness.scoring import score_variants
from normlens.faithfulness.tables import ORDER, TABLES
from normlens.faithfulness.trials import Trial, run_trials

if TYPE_CHECKING:
    from normlens.corpus.engines.prepared import Clock
    from normlens.lens import Lens


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
