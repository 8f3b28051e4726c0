"""What the page of an ablation reads: losses under every ablation, and the maps' changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from normlens.corpus.runs.results import Run
from normlens.measures.bootstrap import Array, LossChanges, loss_changes
from normlens.measures.ranks import RankAgreement, rank_agreement
from normlens.scopes import Step, consecutive, feed_forward_pairs
from normlens.studies.ablation.data import Told
from normlens.studies.ablation.options import (
    CLASSES,
    CONTROLS,
    DRIFT,
    FROZEN_SIGMA,
    INTACT,
    LEFT_OUT,
    MASKED,
    MEAN,
    NEXT_TOKEN,
    RESAMPLE,
    ZERO,
    AblateOptions,
    is_norm,
)
from normlens.studies.reports.words import signed

# What an ablation changes for the worse: the loss, and for sentence encoders the agreement.


_LOSSES = {
    NEXT_TOKEN: ("next-token loss", "nats per token"),
    MASKED: ("loss of masked tokens", "nats per token"),
    CLASSES: ("classification loss", "nats"),
    DRIFT: ("drift of the sentence vector", "1 − cos"),
}


@dataclass(frozen=True)
class Cost:
    """What a component is worth in one unit: positive where its ablation does harm.

    `changes` has a row per ablation, with `change`, `low` and `high`. A drift can only grow, so
    that its interval tells nothing from 0 (`has_zero` is False).
    """

    name: str
    symbol: str
    unit: str
    changes: pd.DataFrame
    drawn: Callable[[list[int]], Array]
    has_zero: bool
    moves: str = "rises by"  # what harm does to it
    digits: int = 3


def loss_cost(evidence: AblationEvidence) -> Cost:
    """The change of the loss."""
    name, unit = _LOSSES[evidence.told.loss]
    drift = evidence.told.loss == DRIFT
    symbol = "drift" if drift else "Δ loss"
    return Cost(name, symbol, unit, evidence.changes, evidence.drawn, not drift)


def agreement_cost(evidence: AblationEvidence) -> Cost | None:
    """The loss of Spearman's ρ with gold scores; None without such scores."""
    if not evidence.has_gold:
        return None
    rows = evidence.agreement
    turned = rows.assign(change=-rows["change"], low=-rows["high"], high=-rows["low"])
    return Cost(
        "agreement with gold scores",
        "−Δ ρ(gold)",
        "Spearman's ρ that is lost",
        turned,
        lambda numbers: -evidence.drawn_agreement(numbers),
        True,
        "falls by",
    )


def costs(evidence: AblationEvidence) -> list[Cost]:
    """Everything that the page asks about, the loss first."""
    agreement = agreement_cost(evidence)
    return [loss_cost(evidence), *([] if agreement is None else [agreement])]


def verdict_cost(evidence: AblationEvidence) -> Cost:
    """What decides whether a component can go: agreement where it is known, or else the loss."""
    return agreement_cost(evidence) or loss_cost(evidence)


# What the page of an ablation reads: losses under every ablation, and the maps' changes.


#: A statistic of ranks is dear; so many resamples do for its interval.
AGREEMENT_RESAMPLES = 2_000


@dataclass(frozen=True)
class AblationEvidence:
    """The two runs of an ablation. Layers are counted from 1, as in every report.

    Tables of cells have a row per sequence of the run of ablations (`index`), NaN where the run of
    maps has no such sequence, and a column per (component, layer).
    """

    options: AblateOptions
    told: Told
    ablations: Run
    maps: Run

    # Losses -------------------------------------------------------------------------------------

    @cached_property
    def plan(self) -> pd.DataFrame:
        """Every ablation by its number: component, kind, layer (NaN: several), layers, draw."""
        rows = self.ablations.sql(
            "SELECT ablation, any_value(component) AS component, any_value(kind) AS kind, "
            "any_value(layer) + 1 AS layer, any_value(layers) AS layers, any_value(draw) AS draw "
            "FROM ablations GROUP BY ablation ORDER BY ablation"
        ).set_index("ablation")
        return rows.astype({"layer": float, "draw": float})

    @cached_property
    def losses(self) -> pd.DataFrame:
        """The loss of every sequence (row) under every ablation (column); 0 is the intact model."""
        return self._by_ablation("loss")

    @cached_property
    def cosines(self) -> pd.DataFrame:
        """The cosine of every pair (row) under every ablation (column)."""
        return self._by_ablation("cosine")

    @cached_property
    def counts(self) -> pd.Series:
        """What each sequence's loss is a mean over: its scored tokens."""
        rows = self.ablations.sql('SELECT "index", count FROM ablations WHERE ablation = 0')
        return rows.set_index("index")["count"].reindex(self.losses.index)

    @cached_property
    def gold(self) -> pd.Series:
        """The gold score of every pair; NaN where there is none."""
        rows = self.ablations.sql('SELECT "index", gold FROM ablations WHERE ablation = 0')
        return rows.set_index("index")["gold"].astype(float).reindex(self.losses.index)

    @cached_property
    def intact(self) -> float:
        """The intact model's mean loss."""
        loss, count = self.losses[0].to_numpy(), self.counts.to_numpy()
        return float((loss * count).sum() / count.sum())

    @cached_property
    def _changes(self) -> LossChanges:
        return loss_changes(
            self.losses.drop(columns=0),
            self.losses[0],
            self.counts,
            self.options.resamples,
            self.options.seed,
        )

    @cached_property
    def changes(self) -> pd.DataFrame:
        """Every ablation with its change of the loss and the ends of its interval."""
        mean, low, high = self._changes.change
        numbers = list(self.losses.columns[1:])
        ends = pd.DataFrame({"change": mean, "low": low, "high": high}, index=numbers)
        return self.plan.loc[numbers].join(ends)

    def drawn(self, numbers: list[int]) -> Array:
        """The changes of these ablations in every resample, (resamples, k)."""
        places = self.losses.columns.get_indexer(pd.Index(numbers)) - 1
        return self._changes.drawn[:, places]

    def _by_ablation(self, column: str) -> pd.DataFrame:
        rows = self.ablations.sql(f'SELECT "index", ablation, {column} FROM ablations')
        return rows.pivot(index="index", columns="ablation", values=column).astype(float)

    # Agreement with gold scores -----------------------------------------------------------------

    @property
    def has_gold(self) -> bool:
        """Whether the data are pairs with gold scores, all of which are known."""
        return bool(self.told.apart and self.gold.notna().all())

    @cached_property
    def _agreed(self) -> tuple[list[int], RankAgreement]:
        kept = self.plan.index[
            ~self.plan["kind"].isin(CONTROLS.values()) & (self.plan["component"] != INTACT)
        ]
        resamples = min(self.options.resamples, AGREEMENT_RESAMPLES)
        values = self.cosines[kept]
        return list(kept), rank_agreement(
            values, self.cosines[0], self.gold, resamples, self.options.seed
        )

    @cached_property
    def agreement(self) -> pd.DataFrame:
        """Every ablation but random draws: Spearman's ρ with gold scores, and its change."""
        numbers, agreed = self._agreed
        columns = {
            "rho": agreed.rho.mean,
            "rho_low": agreed.rho.low,
            "rho_high": agreed.rho.high,
            "change": agreed.difference.mean,
            "low": agreed.difference.low,
            "high": agreed.difference.high,
        }
        return self.plan.loc[numbers].join(pd.DataFrame(columns, index=numbers))

    def drawn_agreement(self, numbers: list[int]) -> Array:
        """The changes of the agreement in every resample, (resamples, k)."""
        every, agreed = self._agreed
        return agreed.drawn[:, pd.Index(every).get_indexer(pd.Index(numbers))]

    @cached_property
    def intact_agreement(self) -> float:
        """The intact model's ρ with gold scores."""
        result = rank_agreement(
            self.cosines[[0]], self.cosines[0], self.gold, resamples=1, seed=self.options.seed
        )
        return float(result.rho.mean[0])

    # Maps ---------------------------------------------------------------------------------------

    @property
    def scopes(self) -> list[str]:
        return list(self.maps.manifest.model["scopes"])

    @property
    def steps(self) -> list[Step]:
        """The components that have a map before and behind them."""
        return consecutive(self.scopes)

    @property
    def layers(self) -> int:
        return int(self.maps.manifest.model["layers"])

    @cached_property
    def map_changes(self) -> pd.DataFrame:
        """1 − ρ between the maps before and behind a component."""
        frames = {
            step.component: 1 - self.similarity(step.before, step.after) for step in self.steps
        }
        return _cells(frames, self.losses.index)

    @cached_property
    def strengths(self) -> pd.DataFrame:
        """The root mean square of FF-amp, the block's change of every pair's share."""
        pairs = feed_forward_pairs(self.scopes)
        if not pairs:
            return _cells({}, self.losses.index)
        listed = ", ".join(f"('{before}', '{after}')" for before, after in pairs)
        rows = self._of_maps(
            "amplification_distance",
            "sqrt(sum(sum_squares) / sum(count))",
            f"WHERE (before, after) IN ({listed})",
        )
        return _cells({"FF": rows}, self.losses.index)

    @cached_property
    def norm_ratios(self) -> pd.DataFrame:
        """‖FF output‖ ÷ ‖what bypasses the block‖."""
        rows = self._of_maps("norms", "avg(ff_output_norm / bypassed_norm)")
        return _cells({"FF": rows}, self.losses.index)

    def similarity(self, a: str, b: str) -> pd.DataFrame:
        """Spearman's ρ between two scopes: a row per sequence, a column per layer."""
        order = self.scopes
        first, second = sorted((a, b), key=order.index)
        where = f"WHERE scope_a = '{first}' AND scope_b = '{second}'"
        return self._of_maps("similarity", "avg(rho)", where).reindex(self.losses.index)

    def _of_maps(self, table: str, value: str, where: str = "") -> pd.DataFrame:
        """A value per sequence and layer; the texts of a pair were analysed one by one."""
        index = '"index" // 2' if self.told.apart else '"index"'
        rows = self.maps.sql(
            f'SELECT {index} AS "index", layer + 1 AS layer, {value} AS value FROM {table} {where} '
            "GROUP BY ALL"
        )
        return rows.pivot(index="index", columns="layer", values="value").astype(float)


def _cells(frames: dict[str, pd.DataFrame], index: pd.Index) -> pd.DataFrame:
    """Columns of (component, layer) out of a table of layers for each component."""
    kept = {name: frame.reindex(index) for name, frame in frames.items() if frame.shape[1]}
    if not kept:
        empty = pd.MultiIndex.from_arrays([[], []], names=["component", "layer"])
        return pd.DataFrame(np.empty((len(index), 0)), index=index, columns=empty)
    return pd.concat(kept, axis=1, names=["component", "layer"])


# Ablations with their changes, one by one.


class Row(NamedTuple):
    """One ablation: what it replaces where, and what that changes."""

    number: int
    component: str
    kind: str
    layer: int | None  # from 1; None: several
    layers: str
    change: float
    low: float
    high: float

    @property
    def label(self) -> str:
        """Its layer; "all" where there are several."""
        return "all" if self.layer is None else str(self.layer)

    @property
    def key(self) -> tuple[str, int | None]:
        """Its cell: component and layer."""
        return self.component, self.layer

    def text(self, digits: int) -> str:
        """Its change with the ends of its interval."""
        low, high = signed(self.low, digits), signed(self.high, digits)
        return f"{signed(self.change, digits)} [{low}, {high}]"


def rows_of(changes: pd.DataFrame) -> list[Row]:
    """The rows of a table of changes."""
    columns = [changes[name].tolist() for name in Row._fields[1:]]
    return [
        Row(number, component, kind, None if layer != layer else int(layer), *rest)
        for number, (component, kind, layer, *rest) in zip(
            changes.index.tolist(), zip(*columns, strict=True), strict=True
        )
    ]


# Ways to take a component away, which mean another kind of ablation for norms than for vectors.


#: The kind of a norm's ablation beside each kind of a vector's; a norm has none of resampling.
_OF_NORMS = {MEAN: FROZEN_SIGMA, RESAMPLE: None, ZERO: LEFT_OUT}
KINDS = tuple(_OF_NORMS)
#: The one of these that does least harm to a cell. Nothing of what a component knows of its input
#: is in any of them, so a component is worth no more than that: zero overstates where nothing has
#: ever seen a 0, and a mean where a few tokens have very long vectors.
LEAST = "least"
IN_WORDS = {
    MEAN: "replaced by its corpus mean (norms: σ frozen at its corpus mean)",
    RESAMPLE: "replaced by its vector at a random position of other data (norms: none)",
    ZERO: "replaced by zero (norms: left out)",
    LEAST: "replaced in the least harmful of several ways (zero, corpus mean, resampled; norms: "
    "left out, frozen σ)",
}
SHORT = {MEAN: "mean", RESAMPLE: "resample", ZERO: "zero", LEAST: "least harmful"}


def kind_by(way: str, component: str) -> str | None:
    """The kind of ablation that a way means for a component."""
    return _OF_NORMS[way] if is_norm(component) else way


def taken(changes: pd.DataFrame, way: str, *, each: bool = True) -> pd.DataFrame:
    """The ablations that take a component away so: of each layer, or of all of them together."""
    scope = changes["layer"].notna() if each else changes["layer"].isna()
    rows = changes[scope & (changes["component"] != INTACT)]
    wanted = KINDS if way == LEAST else (way,)
    ours = [
        kind in [kind_by(one, component) for one in wanted]
        for component, kind in zip(rows["component"], rows["kind"], strict=True)
    ]
    rows = rows[np.array(ours, dtype=bool)]
    if way != LEAST:
        return rows
    # One whose loss is not finite does most harm.
    ordered = rows.sort_values("change", na_position="last", kind="stable")
    return ordered.drop_duplicates(["component", "layers"]).sort_index()


def ways(changes: pd.DataFrame) -> list[str]:
    """The ways that ablations go, the one that is shown first in front."""
    there = [
        way for way in KINDS if any(len(taken(changes, way, each=each)) for each in (True, False))
    ]
    return [LEAST, *there] if len(there) > 1 else there


# Axes of changes, a few of which may be many times as large as the rest.


#: From here on the largest value hides the middle one on a linear axis.
_SKEWED = 25


def scale_changes(axes: Any, values: ArrayLike, signed: bool = True) -> None:
    """Make the vertical axis logarithmic where the largest change hides the others.

    Without `signed`, only where all are above 0; otherwise it is linear around 0, up to the median.
    """
    given = np.asarray(values, dtype=np.float64)
    given = given[np.isfinite(given)]
    size = np.abs(given)
    middle = float(np.median(size)) if len(size) else 0.0
    if not middle > 0 or size.max() <= _SKEWED * middle:
        return
    if given.min() > 0:
        axes.set_yscale("log")
    elif signed:
        axes.set_yscale("symlog", linthresh=middle)
    else:
        return
    low, high = float(given.min()), float(given.max())
    bottom = low / 2 if low > 0 else min(-middle / 2, 2 * low)
    axes.set_ylim(bottom, max(2 * high, middle))
