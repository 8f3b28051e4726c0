"""Rows of ablations: the loss of every sequence with the intact model and under every ablation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from normlens.ablation.kinds import DRAWS, INTACT, Ablation
from normlens.ablation.loss_names import AUTO
from normlens.ablation.losses import choose_loss
from normlens.ablation.options import EACH, parse_layer_choice
from normlens.ablation.plan import Plan
from normlens.ablation.questions import Outcome, Question
from normlens.ablation.running import Runner
from normlens.ablation.statistics import Statistics
from normlens.corpus.measures import BoundMeasure, Item, ModelMeasure, Needs
from normlens.corpus.measures.base import LABEL, WHOSE, build
from normlens.errors import InputError
from normlens.options import AnalysisOptions

if TYPE_CHECKING:
    from normlens.corpus.data.spans import EncodedRecord
    from normlens.corpus.engines.prepared import Clock
    from normlens.lens import Lens

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
