"""Rows of ablations: batches of sequences with the intact model and under every ablation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import torch
from torch import Tensor

from normlens.corpus.data.spans import EncodedRecord
from normlens.corpus.measures import BoundMeasure, Item, ModelMeasure, Needs
from normlens.corpus.measures.base import INT, LABEL, REAL, WHOSE, schema_of, whose
from normlens.corpus.runs.options import parse_names
from normlens.errors import InputError, is_out_of_memory
from normlens.options import AnalysisOptions
from normlens.pipeline.batches import padding_spoils
from normlens.plan.costs import GIB
from normlens.studies.ablation.interventions import Interventions, Statistics
from normlens.studies.ablation.losses import Loss, Outcome, Question, choose_loss
from normlens.studies.ablation.options import (
    AUTO,
    DRAWS,
    DRIFT,
    EACH,
    INTACT,
    Ablation,
    parse_layer_choice,
)
from normlens.studies.ablation.plan import Plan
from normlens.studies.model_calls import call, on_batches
from normlens.trace.run import model_inputs

if TYPE_CHECKING:
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
        """Refuse ablations that need other statistics, before anything runs.

        `keep` false runs all layers for every ablation.
        """
        self.lens, self.loss, self.ablations = lens, loss, list(ablations)
        self.interventions = Interventions(lens, statistics or Statistics({}, {}, {}), seed)
        for ablation in self.ablations:
            self.interventions.check(ablation)
        #: Whether layers are passed by; None until the first batch has shown that they can be.
        self.passes_by: bool | None = None if keep else False
        #: Layers that have run, and that were passed by, over all batches and passes.
        self.layers_run = self.layers_passed = 0
        self._first = True

    def run(self, asked: Sequence[Sequence[Question]]) -> list[list[Outcome]]:
        """Return the losses of sequences for the intact model, then for each ablation.

        A sequence is one text or two. All texts run as one padded batch, or one by one where
        padding would change the results, or as halves of it if memory ends.
        """
        questions = [question for texts in asked for question in texts]
        encoded = [question.encoded for question in questions]
        every = list(range(len(questions)))
        alone = padding_spoils(self.lens.layers, self.lens.dtype, [len(text) for text in encoded])
        batches = [[place] for place in every] if alone else [every]

        def answers(places: list[int]) -> Iterable[tuple[Tensor, ...]]:
            return zip(*self._answers([questions[place] for place in places]), strict=True)

        columns = iter(on_batches(self.lens, encoded, batches, answers))
        outcomes = []
        for texts in asked:
            intact, *ablated = zip(*(next(columns) for _ in texts), strict=True)
            count = len(texts[0].targets)
            outcomes.append([self.loss.outcome(one, intact, count) for one in (intact, *ablated)])
        return [list(row) for row in zip(*outcomes, strict=True)]

    def _answers(self, questions: Sequence[Question]) -> list[list[Tensor]]:
        """Answer every question with the intact model, then under each ablation."""
        lens = self.lens
        keys = [question.key for question in questions]
        inputs = model_inputs(lens.adapter, [one.encoded for one in questions], lens.device)
        if self._first:
            self.loss.check(questions[0])
            self._first = False
        kept: dict[int, Any] = {}

        def body(ablation: Ablation | None, skip: int = -1, keep: Sequence[int] = ()) -> Any:
            with self.interventions.applied(ablation, keys, kept=kept, skip=skip, keep=keep):
                return call(lens, lens.adapter.model, inputs)

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
#: `ablation` is its number, 0 for the intact model; `layer` is from 0, null for several; `loss` is
#: a mean over `count`, null where it is not finite; `gold` is a pair's gold score.
SCHEMA = schema_of(
    *WHOSE,
    **{"ablation": INT, "component": LABEL, "kind": LABEL, "layer": INT, "layers": LABEL},
    **{"draw": INT, "loss": REAL, "count": INT, "cosine": REAL, "gold": REAL},
)


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
        ablations = runner.ablations
        #: columns that identify each row's ablation, the intact model first
        self.columns: dict[str, Any] = {
            "ablation": list(range(len(ablations) + 1)),
            "component": [INTACT, *(one.component for one in ablations)],
            "kind": [INTACT, *(one.kind for one in ablations)],
            "layer": [None, *(one.layer for one in ablations)],
            "layers": ["", *(",".join(map(str, one.layers)) for one in ablations)],
            "draw": [None, *(one.draw for one in ablations)],
        }

    def batch_rows(self, items: Sequence[Item], clock: Clock) -> list[dict[str, pa.Table] | str]:
        asked: list[list[Question]] = []
        rows: list[dict[str, pa.Table] | str] = []
        for item in items:
            try:
                self._gold(item)
                asked.append(self._questions(item))
                rows.append({})
            except InputError as error:
                rows.append(str(error))
        if asked:
            with clock.on("ablations"):
                outcomes = zip(*self.runner.run(asked), strict=True)
            for place, item in enumerate(items):
                if not rows[place]:
                    rows[place] = {TABLE: self._table(item, next(outcomes))}
        return rows

    def _questions(self, item: Item) -> list[Question]:
        """Ask about a sequence; of a pair, the drift compares both texts."""
        loss, name, encoded = self.runner.loss, self.measure.label, item.encoded
        assert isinstance(encoded, EncodedRecord)
        label = None if name is None else encoded.extra.get(name)
        questions = [loss.question(encoded, item.sequence, label)]
        if encoded.second is not None and loss.name == DRIFT:
            questions.append(loss.question(encoded.second, f"{item.sequence}\nsecond"))
        return questions

    def _gold(self, item: Item) -> float:
        """The gold score of a pair; NaN where none is asked for."""
        name, encoded = self.measure.score, item.encoded
        if name is None:
            return math.nan
        assert isinstance(encoded, EncodedRecord)
        given = encoded.extra.get(name, "")
        try:
            gold = float(given)
        except ValueError:
            gold = math.nan
        if not math.isfinite(gold):
            raise InputError(f"its {name!r} is {given!r}, not a number")
        return gold

    def _table(self, item: Item, outcomes: Sequence[Outcome]) -> pa.Table:
        gold = self._gold(item)
        columns = {
            **{name: [value] * len(outcomes) for name, value in whose(item).items()},
            **self.columns,
            "loss": [one.loss if math.isfinite(one.loss) else None for one in outcomes],
            "count": [one.count for one in outcomes],
            "cosine": [one.cosine for one in outcomes],
            "gold": [gold if gold == gold else None] * len(outcomes),
        }
        return pa.Table.from_pydict(columns, schema=SCHEMA)
