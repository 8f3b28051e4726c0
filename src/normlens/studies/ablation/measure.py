"""Rows of ablations: batches of sequences with the intact model and under every ablation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from normlens.corpus.measures import BoundMeasure, Item, ModelMeasure, Needs
from normlens.corpus.measures.base import LABEL, WHOSE, build
from normlens.corpus.runs.options import parse_names
from normlens.errors import (
    InputError,
    is_out_of_memory,
)
from normlens.options import AnalysisOptions
from normlens.pipeline.batches import halves, padding_spoils
from normlens.plan.costs import GIB
from normlens.studies.ablation.interventions import Interventions, Statistics
from normlens.studies.ablation.losses import (
    Loss,
    Outcome,
    Question,
    body_pass,
    choose_loss,
    model_ready,
)
from normlens.studies.ablation.options import (
    AUTO,
    DRAWS,
    EACH,
    INTACT,
    Ablation,
    parse_layer_choice,
)
from normlens.studies.ablation.plan import Plan
from normlens.trace.run import model_inputs

if TYPE_CHECKING:
    from normlens.corpus.data.spans import EncodedRecord
    from normlens.corpus.engines.block_rows import Clock
    from normlens.lens import Lens

# One batch of sequences, the intact model and every ablation.
#
# The intact pass keeps what layers returned, within a memory limit. An ablation then starts
# behind the last kept layer before its first one: the embeddings and the head run again, the
# layers before it do not. That gives the same bits as a whole pass, which is checked on the first
# batch; where it does not hold, every pass is a whole one.


#: Bytes of layers' outputs that a batch keeps.
KEPT_LIMIT = GIB


class Runner:
    """Runs the ablations of one model; made once, used for all batches."""

    def __init__(
        self,
        lens: Lens,
        loss: Loss,
        ablations: Sequence[Ablation],
        *,
        statistics: Statistics | None = None,
        seed: int = 0,
        keep: bool = True,
    ):
        """Refuse ablations that the model does not have, before anything runs.

        `keep` false runs all layers for every ablation.
        """
        self.lens, self.loss, self.ablations = lens, loss, list(ablations)
        self.interventions = Interventions(lens, statistics, seed)
        for ablation in self.ablations:
            self.interventions.check(ablation)
        #: Whether layers are passed by; None until the first batch has shown that they can be.
        self.passes_by: bool | None = None if keep else False
        #: Layers that have run, and that were passed by, over all batches and passes.
        self.layers_run = self.layers_passed = 0
        self._first = True

    def run(self, questions: Sequence[Question]) -> list[list[Outcome]]:
        """Return the losses of sequences for the intact model, then for each ablation.

        They run as one padded batch, or as halves of it if memory ends.
        """
        answers: dict[int, Sequence[Tensor]] = {}
        waiting = [list(range(len(questions)))] if questions else []
        while waiting:
            places = waiting.pop(0)
            some = [questions[place] for place in places]
            try:
                found = model_ready(self.lens, partial(self._answers, some))
            except (RuntimeError, MemoryError) as error:
                longest = [max(one.texts, key=len) for one in questions]
                waiting[:0] = halves(self.lens, longest, places, error)
                continue
            answers |= zip(places, zip(*found, strict=True), strict=True)
        columns = [answers[place] for place in range(len(questions))]
        return [
            [
                self.loss.outcome(question, own[number], own[0])
                for question, own in zip(questions, columns, strict=True)
            ]
            for number in range(len(self.ablations) + 1)
        ]

    def _answers(self, questions: Sequence[Question]) -> list[list[Tensor]]:
        """Answer every question with the intact model, then under each ablation."""
        lens = self.lens
        texts = [text for question in questions for text in question.texts]
        if len(texts) > 1 and padding_spoils(
            lens.layers, lens.dtype, [len(text) for text in texts]
        ):
            return self._answers_alone(questions)
        keys = [key for question in questions for key in question.keys]
        inputs = model_inputs(lens.adapter, texts, lens.device)
        if self._first:
            self.loss.check(questions[0])
            self._first = False
        kept: dict[int, Any] = {}

        def body(ablation: Ablation | None, skip: int = -1, keep: Sequence[int] = ()) -> Any:
            with self.interventions.applied(ablation, keys, kept=kept, skip=skip, keep=keep):
                return body_pass(lens, inputs)

        width = lens.layers[0].attention.output.weight.shape[1]
        size = inputs["input_ids"].numel() * width * lens.dtype.itemsize
        layers = layers_to_keep(self.ablations, lens.n_layers, size, KEPT_LIMIT)
        output = body(None, keep=() if self.passes_by is False else layers)
        if kept and self.passes_by is None:
            self.passes_by = _same_bits(body, output[0], kept)
        if not self.passes_by:
            kept.clear()
        answers = [self.loss.read(questions, inputs, output)]
        self.layers_run += lens.n_layers
        for ablation in self.ablations:
            skip = max((layer for layer in kept if layer < ablation.first), default=-1)
            answers.append(self.loss.read(questions, inputs, body(ablation, skip)))
            self.layers_passed += skip + 1
            self.layers_run += lens.n_layers - skip - 1
        return answers

    def _answers_alone(self, questions: Sequence[Question]) -> list[list[Tensor]]:
        """Answer text by text, where padding would change the results."""
        columns = []
        for question in questions:
            parts = [self._answers([part]) for part in question.parts]
            answers = [[row[0] for row in rows] for rows in zip(*parts, strict=True)]
            columns.append([torch.cat(both) if len(both) > 1 else both[0] for both in answers])
        return [list(row) for row in zip(*columns, strict=True)]


def layers_to_keep(
    ablations: Sequence[Ablation], n_layers: int, bytes_each: int, limit: int
) -> list[int]:
    """Choose the layers whose outputs are kept: as many as fit, evenly spread.

    An ablation starts behind the last kept layer before its first one.
    """
    wanted = sorted({ablation.first - 1 for ablation in ablations if ablation.first > 0})
    wanted = [layer for layer in wanted if layer < n_layers]
    fitting = limit // max(1, bytes_each)
    if fitting >= len(wanted):
        return wanted
    # Of every stretch of layers the first is kept: behind it all others of the stretch can start.
    return [wanted[k * len(wanted) // fitting] for k in range(fitting)]


def _same_bits(body: Callable[..., Any], intact: Tensor, kept: dict[int, Any]) -> bool:
    """Whether skipping few or many layers leaves the output bit-identical."""
    for skip in {min(kept), max(kept)}:
        try:
            again = body(None, skip)[0]
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
            if is_out_of_memory(error):
                raise
            return False  # such a model needs more of its layers than their vectors
        if not torch.equal(again, intact):
            return False
    return True


# Rows of ablations: the loss of every sequence with the intact model and under every ablation.


TABLE = "ablations"
_INT, _REAL = pa.int32(), pa.float64()
#: `ablation` is its number, 0 for the intact model; `layer` is from 0, null for several; `loss` is
#: a mean over `count`, null where it is not finite; `gold` is a pair's gold score.
_COLUMNS = {
    **{"ablation": _INT, "component": LABEL, "kind": LABEL, "layer": _INT, "layers": LABEL},
    **{"draw": _INT, "loss": _REAL, "count": _INT, "cosine": _REAL, "gold": _REAL},
}
SCHEMA = pa.schema([*WHOSE, *pa.schema(_COLUMNS)])


@dataclass(frozen=True)
class AblationMeasure(ModelMeasure):
    """The loss of each sequence with the intact model and under every ablation of a plan.

    `components`, `kinds`, `layers` and `draws` are those of `AblateOptions`. `label` and `score`
    are further columns of the records. With `apart`, records are pairs whose texts are run each for
    itself. `statistics` is the file of the first pass; the manifest records its `digest`, so that a
    run goes on with the same numbers wherever the file lies.
    """

    components: str | Sequence[str] | None = None
    kinds: str | Sequence[str] | None = None
    layers: str = EACH
    draws: int = DRAWS
    loss: str = AUTO
    label: str | None = None
    score: str | None = None
    apart: bool = False
    seed: int = 0
    digest: str | None = None
    statistics: str | None = None

    name = "ablation"
    tables: ClassVar[Mapping[str, pa.Schema]] = {TABLE: SCHEMA}
    order: ClassVar[Mapping[str, tuple[str, ...]]] = {TABLE: ("index", "ablation")}

    def __post_init__(self) -> None:
        for name in ("components", "kinds"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, parse_names(given))
        parse_layer_choice(self.layers)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        return Needs(scopes=(), arrays=False, apart=self.apart)

    @property
    def options(self) -> dict[str, Any]:
        """Options that the numbers depend on; statistics count by digest, not by path."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        del given["statistics"]
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in given.items()
        }

    def bind(self, lens: Lens, batch_size: int | str) -> BoundMeasure:
        loss = choose_loss(lens, self.loss, seed=self.seed)
        ablations = self.planned(lens)
        statistics = None
        if self.statistics is not None and any(one.needs_statistics for one in ablations):
            statistics = Statistics.load(self.statistics, self.digest)
        return _Bound(self, Runner(lens, loss, ablations, statistics=statistics, seed=self.seed))

    def planned(self, lens: Lens) -> list[Ablation]:
        """List a model's ablations; raise for what it does not have."""
        choice = parse_layer_choice(self.layers)
        layers = AnalysisOptions(layers=choice.layers).layers_of(lens.n_layers, lens.name)
        return Plan(lens.layers, lens.name).ablations(
            components=self.components,
            kinds=self.kinds,
            layers=layers,
            each=choice.each,
            together=choice.together,
            draws=self.draws,
        )


class _Bound(BoundMeasure):
    """The measure with a model."""

    def __init__(self, measure: AblationMeasure, runner: Runner):
        self.measure, self.runner = measure, runner
        self._numbered = _numbered(runner.ablations)

    def batch_rows(self, items: Sequence[Item], clock: Clock) -> list[dict[str, pa.Table] | str]:
        questions: dict[int, Question] = {}
        rows: list[dict[str, pa.Table] | str] = []
        for place, item in enumerate(items):
            try:
                questions[place] = self._question(item)
                rows.append({})
            except InputError as error:
                rows.append(str(error))
        if questions:
            with clock.on("ablations"):
                outcomes = self.runner.run(list(questions.values()))
            for place, of_sequence in zip(questions, zip(*outcomes, strict=True), strict=True):
                rows[place] = {TABLE: self._table(items[place], of_sequence)}
        return rows

    def _question(self, item: Item) -> Question:
        encoded: EncodedRecord = item.encoded  # type: ignore[assignment]
        label = None if self.measure.label is None else encoded.extra.get(self.measure.label)
        self._gold(encoded)
        return self.runner.loss.question(encoded, item.sequence, label=label, second=encoded.second)

    def _gold(self, encoded: EncodedRecord) -> float:
        """The gold score of a pair; NaN where none is asked for."""
        name = self.measure.score
        if name is None:
            return float("nan")
        given = encoded.extra.get(name, "")
        try:
            gold = float(given)
        except ValueError:
            gold = float("nan")
        if not math.isfinite(gold):
            raise InputError(f"its {name!r} is {given!r}, not a number")
        return gold

    def _table(self, item: Item, outcomes: Sequence[Outcome]) -> pa.Table:
        losses = np.array([outcome.loss for outcome in outcomes])
        cosines = [np.nan if o.cosine is None else o.cosine for o in outcomes]
        columns, labels = self._numbered
        return build(
            SCHEMA,
            {
                "index": item.index,
                "sequence": item.sequence,
                **columns,
                "loss": np.where(np.isfinite(losses), losses, np.nan),
                "count": np.array([outcome.count for outcome in outcomes]),
                "cosine": np.array(cosines),
                "gold": self._gold(item.encoded),  # type: ignore[arg-type]
            },
            labels,
        )


def _numbered(ablations: Sequence[Ablation]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Columns that identify each row's ablation, the intact model first, and their labels."""
    texts = {
        "component": [INTACT, *(ablation.component for ablation in ablations)],
        "kind": [INTACT, *(ablation.kind for ablation in ablations)],
        "layers": ["", *(",".join(map(str, ablation.layers)) for ablation in ablations)],
    }
    labels = {name: list(dict.fromkeys(values)) for name, values in texts.items()}
    columns: dict[str, Any] = {
        "ablation": np.arange(len(ablations) + 1),
        # None becomes NaN.
        "layer": np.array([None, *(ablation.layer for ablation in ablations)], dtype=float),
        "draw": np.array([None, *(ablation.draw for ablation in ablations)], dtype=float),
    }
    for name, values in texts.items():
        columns[name] = np.array([labels[name].index(value) for value in values])
    return columns, labels
