"""Rows of ablations: batches of sequences with the intact model and under every ablation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from normlens.corpus.measures import BoundMeasure, Item, ModelMeasure, Needs
from normlens.corpus.measures.base import LABEL, WHOSE, build
from normlens.errors import (
    InputError,
    MemoryLimitError,
    NormLensError,
    is_out_of_memory,
    process_limit,
)
from normlens.models.unwrapping import padding_spoils
from normlens.options import AnalysisOptions
from normlens.pipeline.batches import Progress
from normlens.plan.costs import GIB
from normlens.studies.ablation.interventions import Interventions, layers_to_keep, start_behind
from normlens.studies.ablation.losses import (
    Loss,
    Outcome,
    Question,
    body_pass,
    choose_loss,
    last_vectors,
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
from normlens.studies.ablation.places import LayerHooks
from normlens.studies.ablation.plan import Plan
from normlens.studies.ablation.statistics import Statistics
from normlens.trace.run import model_inputs

if TYPE_CHECKING:
    from normlens.corpus.data.spans import EncodedRecord
    from normlens.corpus.engines.shard_rows import Clock
    from normlens.lens import Lens

# One batch of sequences, the intact model and every ablation.
#
# The intact pass keeps what layers returned, within a memory limit. An ablation then starts
# behind the last kept layer before its first one: the embeddings and the head run again, the
# layers before it do not. That gives the same bits as a whole pass, which is checked on the first
# batch; where it does not hold, every pass is a whole one.


#: Bytes of layers' outputs that a batch keeps by default.
KEPT_LIMIT = GIB


@dataclass(frozen=True)
class Outcomes:
    """The losses of a batch's sequences: intact, and under each ablation."""

    intact: list[Outcome]
    ablated: list[list[Outcome]]  # [ablation][sequence]


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
        memory_limit: int | None = None,
        keep: bool = True,
    ):
        """Refuse ablations that the model does not have, before anything runs.

        `keep` false runs all layers for every ablation. `memory_limit` (bytes) bounds what a batch
        keeps of its layers.
        """
        self.lens, self.loss, self.ablations = lens, loss, list(ablations)
        self.interventions = Interventions(lens, Plan(lens.layers, lens.name), statistics, seed)
        for ablation in self.ablations:
            self.interventions.check(ablation)
        self._limit = memory_limit or KEPT_LIMIT
        #: Whether layers are passed by; None until the first batch has shown that they can be.
        self.passes_by: bool | None = None if keep else False
        #: Layers that have run, and that were passed by, over all batches and passes.
        self.layers_run = self.layers_passed = 0
        self._first = True

    def run(self, questions: Sequence[Question], progress: Progress | None = None) -> Outcomes:
        """The losses of some sequences, run as one padded batch, or halves of it if memory ends.

        `progress` is called with the passes done and all of them.
        """
        if not questions:
            return Outcomes([], [[] for _ in self.ablations])
        answers = self._run(questions, progress)
        if answers is None:
            half = len(questions) // 2
            parts = self.run(questions[:half], progress), self.run(questions[half:], progress)
            return _joined(*parts)
        judged = [
            [
                self.loss.outcome(question, answer, intact)
                for question, answer, intact in zip(questions, row, answers[0], strict=True)
            ]
            for row in answers
        ]
        return Outcomes(judged[0], judged[1:])

    def _run(
        self, questions: Sequence[Question], progress: Progress | None
    ) -> list[list[Tensor]] | None:
        """The answers of a batch; None where it runs out of memory and fewer may not."""
        try:
            return model_ready(self.lens, lambda: self._answers(questions, progress))
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, NormLensError) or not is_out_of_memory(error):
                raise
            if len(questions) == 1:
                longest = max(len(text) for text in questions[0].texts)
                raise MemoryLimitError(
                    f"{longest} tokens do not fit into the memory of {self.lens.device}; use "
                    "shorter texts, less memory for kept layers, or another device"
                    f"{process_limit()}"
                ) from error
        return None

    def _answers(
        self, questions: Sequence[Question], progress: Progress | None
    ) -> list[list[Tensor]]:
        """The answers of the intact model, then under each ablation, to every question."""
        lengths = [len(text) for question in questions for text in question.texts]
        if len(lengths) > 1 and padding_spoils(self.lens.layers, self.lens.dtype, lengths):
            return self._answers_alone(questions, progress)
        batch = _Batch.of(self.lens, questions)
        if self._first:
            self.loss.check(questions[0])
            self._first = False
        kept: dict[int, Any] = {}
        passes = len(self.ablations) + 1
        answers = [self._pass(batch, None, kept, watching=self._keeper(batch, kept))]
        for done, ablation in enumerate(self.ablations, 1):
            if progress is not None:
                progress(done, passes)
            answers.append(self._pass(batch, ablation, kept))
        if progress is not None:
            progress(passes, passes)
        return answers

    def _answers_alone(
        self, questions: Sequence[Question], progress: Progress | None
    ) -> list[list[Tensor]]:
        """The same with every text by itself, where padding would spoil it."""
        columns = []
        for question in questions:
            parts = [self._answers([part], progress) for part in question.parts]
            answers = [[row[0] for row in rows] for rows in zip(*parts, strict=True)]
            columns.append([torch.cat(both) if len(both) > 1 else both[0] for both in answers])
        return [list(row) for row in zip(*columns, strict=True)]

    def _pass(
        self,
        batch: _Batch,
        ablation: Ablation | None,
        kept: dict[int, Any],
        watching: Callable[[LayerHooks], None] | None = None,
    ) -> list[Tensor]:
        skip = -1 if ablation is None else start_behind(ablation, kept)
        with self.interventions.applied(
            ablation, batch.keys, kept=kept, skip=skip, watching=watching
        ):
            output = body_pass(self.lens, batch.inputs)
        self.layers_passed += skip + 1
        self.layers_run += self.lens.n_layers - skip - 1
        if ablation is None and kept and self.passes_by is None:
            self.passes_by = self._same_bits(batch, last_vectors(output), kept)
        if not self.passes_by:
            kept.clear()
        return self.loss.read(batch.questions, batch.inputs, output)

    def _keeper(self, batch: _Batch, kept: dict[int, Any]) -> Callable[[LayerHooks], None] | None:
        """Keeps what layers return in the intact pass."""
        if self.passes_by is False:
            return None
        each = batch.inputs["input_ids"].numel() * width(self.lens) * self.lens.dtype.itemsize
        layers = layers_to_keep(self.ablations, self.lens.n_layers, each, self._limit)

        def watch(hooks: LayerHooks) -> None:
            for layer in layers:
                hooks.keep(layer, kept)

        return watch

    def _same_bits(self, batch: _Batch, intact: Tensor, kept: dict[int, Any]) -> bool:
        """Whether the model gives the same bits when layers are passed by, few or many."""
        for skip in {min(kept), max(kept)}:
            try:
                with self.interventions.applied(None, batch.keys, kept=kept, skip=skip):
                    again = last_vectors(body_pass(self.lens, batch.inputs))
            except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
                if is_out_of_memory(error):
                    raise
                return False  # such a model needs more of its layers than their vectors
            if not torch.equal(again, intact):
                return False
        return True


def _joined(first: Outcomes, second: Outcomes) -> Outcomes:
    """The outcomes of two batches as those of one."""
    rows = zip(first.ablated, second.ablated, strict=True)
    return Outcomes(first.intact + second.intact, [a + b for a, b in rows])


@dataclass(frozen=True)
class _Batch:
    """Questions with the inputs of the model that they need."""

    questions: Sequence[Question]
    keys: list[str]  # of every row
    inputs: dict[str, Tensor]

    @classmethod
    def of(cls, lens: Lens, questions: Sequence[Question]) -> _Batch:
        texts = [text for question in questions for text in question.texts]
        keys = [key for question in questions for key in question.keys]
        return cls(questions, keys, model_inputs(lens.adapter, texts, lens.device))


def width(lens: Lens) -> int:
    """The model's width d."""
    return lens.layers[0].attention.output.weight.shape[1]


# Rows of ablations: the loss of every sequence with the intact model and under every ablation.


TABLE = "ablations"
SCHEMA = pa.schema(
    [
        *WHOSE,
        pa.field("ablation", pa.int32()),  # its number, from 1; the intact model is 0
        pa.field("component", LABEL),
        pa.field("kind", LABEL),
        pa.field("layer", pa.int32()),  # from 0; null: several
        pa.field("layers", LABEL),
        pa.field("draw", pa.int32()),  # of random dimensions, from 0
        pa.field("loss", pa.float64()),  # a mean over `count`; null where it is not finite
        pa.field("count", pa.int32()),
        pa.field("cosine", pa.float64()),  # of a pair's vectors
        pa.field("gold", pa.float64()),  # the pair's gold score
    ]
)


@dataclass(frozen=True)
class AblationMeasure(ModelMeasure):
    """The loss of each sequence with the intact model and under every ablation of a plan.

    `components`, `kinds`, `layers` and `draws` are those of `AblateOptions`. `label` and `score`
    are further columns of the records. With `apart`, records are pairs whose texts are run each for
    itself. `statistics` is the file of the first pass; the manifest records its `digest`, so that a
    run goes on with the same numbers wherever the file lies.
    """

    components: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
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
                listed = given.split(",") if isinstance(given, str) else given
                object.__setattr__(self, name, tuple(str(one).strip() for one in listed))
        parse_layer_choice(self.layers)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        return Needs(scopes=(), arrays=False, apart=self.apart)

    @property
    def options(self) -> dict[str, Any]:
        """What the numbers depend on: of the statistics what they are, not where they lie."""
        return {
            "components": None if self.components is None else list(self.components),
            "kinds": None if self.kinds is None else list(self.kinds),
            "layers": self.layers,
            "draws": self.draws,
            "loss": self.loss,
            "label": self.label,
            "score": self.score,
            "apart": self.apart,
            "seed": self.seed,
            "digest": self.digest,
        }

    def bind(self, lens: Lens, batch_size: int | str) -> BoundMeasure:
        ablations = self.planned(lens)
        loss = choose_loss(lens, self.loss, seed=self.seed)
        runner = Runner(lens, loss, ablations, statistics=self._gathered(ablations), seed=self.seed)
        return _Bound(self, runner)

    def planned(self, lens: Lens) -> list[Ablation]:
        """The ablations of a model; what it does not have is refused in one line."""
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

    def _gathered(self, ablations: Sequence[Ablation]) -> Statistics | None:
        if not any(ablation.needs_statistics for ablation in ablations):
            return None
        if self.statistics is None:
            raise InputError(
                "mean, resample and frozen-sigma need a first pass over other data; take "
                "normlens.ablate, which makes one, or choose other kinds"
            )
        gathered = Statistics.load(self.statistics)
        if self.digest is not None and gathered.digest != self.digest:
            raise InputError(
                f"{self.statistics!r} is not the file that the run was begun with; put that one "
                "back, or begin anew in another folder"
            )
        return gathered


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
            every = [outcomes.intact, *outcomes.ablated]
            for number, place in enumerate(questions):
                item = items[place]
                rows[place] = {TABLE: self._table(item, [group[number] for group in every])}
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
    """The columns that say which ablation a row is of, the intact model first, and their labels."""
    texts = {
        "component": [INTACT, *(ablation.component for ablation in ablations)],
        "kind": [INTACT, *(ablation.kind for ablation in ablations)],
        "layers": ["", *(",".join(map(str, ablation.layers)) for ablation in ablations)],
    }
    labels = {name: list(dict.fromkeys(values)) for name, values in texts.items()}
    codes = {name: [labels[name].index(value) for value in texts[name]] for name in texts}
    numbers = {
        "layer": [None, *(ablation.layer for ablation in ablations)],
        "draw": [None, *(ablation.draw for ablation in ablations)],
    }
    columns = {
        "ablation": np.arange(len(ablations) + 1),
        **{name: np.array(values) for name, values in codes.items()},
        **{
            name: np.array([np.nan if value is None else value for value in values])
            for name, values in numbers.items()
        },
    }
    return columns, labels
