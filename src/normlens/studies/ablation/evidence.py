"""What the page of an ablation reads: losses under every ablation, and the maps' changes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normlens.corpus.runs.results import Run
from normlens.measures.bootstrap import Array, Means, loss_changes
from normlens.measures.ranks import rank_agreement
from normlens.scopes import consecutive, feed_forward_pairs
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

# What an ablation changes for the worse: the loss, and for sentence encoders the agreement.


_LOSSES = {
    NEXT_TOKEN: ("next-token loss", "Δ loss", "nats per token"),
    MASKED: ("loss of masked tokens", "Δ loss", "nats per token"),
    CLASSES: ("classification loss", "Δ loss", "nats"),
    DRIFT: ("drift of the sentence vector", "drift", "1 − cos"),
}
_AGREEMENT = ("agreement with gold scores", "−Δ ρ(gold)", "Spearman's ρ that is lost")
#: A statistic of ranks is dear; so many resamples do for its interval.
AGREEMENT_RESAMPLES = 2_000


@dataclass(frozen=True)
class Cost:
    """The cost of every ablation in one unit; positive values are harm.

    `changes` has a row per ablation, with `change` and the ends of its interval, `low` and `high`;
    `draws` has the changes in every resample, (resamples, ablation).
    """

    name: str
    symbol: str
    unit: str
    intact: float  # the intact model's loss or agreement
    changes: pd.DataFrame
    draws: Array
    suffix: str = ""  # of names of tables and figures

    @property
    def words(self) -> str:
        """Name and unit, for captions."""
        return f"{self.name} ({self.unit})"


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
            "SELECT DISTINCT ablation, component, kind, layer + 1 AS layer, layers, draw "
            "FROM ablations ORDER BY ablation"
        ).set_index("ablation")
        return rows.astype({"layer": float, "draw": float})

    @cached_property
    def losses(self) -> pd.DataFrame:
        """The loss of every sequence (row) under every ablation (column); 0 is the intact model."""
        return self._by_ablation("loss")

    def _by_ablation(self, column: str) -> pd.DataFrame:
        rows = self.ablations.sql(f'SELECT "index", ablation, {column} FROM ablations')
        return rows.pivot(index="index", columns="ablation", values=column).astype(float)

    @cached_property
    def costs(self) -> list[Cost]:
        """The change of the loss; then, for pairs with gold scores, the loss of agreement."""
        rows = self.ablations.sql('SELECT "index", count, gold FROM ablations WHERE ablation = 0')
        intact = rows.set_index("index").astype(float).reindex(self.losses.index)
        loss = self._loss(intact["count"])
        has_gold = self.told.apart and intact["gold"].notna().all()
        return [loss, self._agreement(intact["gold"])] if has_gold else [loss]

    def _loss(self, counts: pd.Series) -> Cost:
        before, after = self.losses[0], self.losses.drop(columns=0)
        options = self.options
        found = loss_changes(after, before, counts, options.resamples, options.seed)
        intact = float((before * counts).sum() / counts.sum())
        changes = self._with_ends(after.columns, found.change)
        return Cost(*_LOSSES[self.told.loss], intact, changes, found.drawn)

    def _agreement(self, gold: pd.Series) -> Cost:
        """The loss of Spearman's ρ with gold scores, of every ablation but random draws."""
        controls = self.plan["kind"].isin(CONTROLS.values())
        numbers = self.plan.index[~controls & (self.plan["component"] != INTACT)]
        cosines = self._by_ablation("cosine")
        resamples = min(self.options.resamples, AGREEMENT_RESAMPLES)
        found = rank_agreement(cosines[numbers], cosines[0], gold, resamples, self.options.seed)
        mean, low, high = found.difference
        changes = self._with_ends(numbers, Means(-mean, -high, -low))
        intact = float(pd.DataFrame({0: cosines[0], 1: gold}).corr(method="spearman").loc[0, 1])
        return Cost(*_AGREEMENT, intact, changes, -found.drawn, suffix="-agreement")

    def _with_ends(self, numbers: pd.Index, found: Means) -> pd.DataFrame:
        ends = pd.DataFrame(dict(zip(("change", "low", "high"), found, strict=True)), index=numbers)
        return self.plan.loc[numbers].join(ends)

    # Maps ---------------------------------------------------------------------------------------

    @property
    def scopes(self) -> list[str]:
        return list(self.maps.manifest.model["scopes"])

    @property
    def layers(self) -> int:
        return int(self.maps.manifest.model["layers"])

    @cached_property
    def map_changes(self) -> pd.DataFrame:
        """1 − ρ between the maps before and behind a component."""
        steps = consecutive(self.scopes)
        return self._cells({s.component: 1 - self.similarity(s.before, s.after) for s in steps})

    @cached_property
    def strengths(self) -> pd.DataFrame:
        """The root mean square of FF-amp, the block's change of every pair's share."""
        pairs = feed_forward_pairs(self.scopes)
        if not pairs:
            return self._cells({})
        where = f"WHERE (before, after) IN ({', '.join(map(str, pairs))})"
        square = "sqrt(sum(sum_squares) / sum(count))"
        return self._cells({"FF": self._of_maps("amplification_distance", square, where)})

    @cached_property
    def norm_ratios(self) -> pd.DataFrame:
        """‖FF output‖ ÷ ‖what bypasses the block‖."""
        return self._cells({"FF": self._of_maps("norms", "avg(ff_output_norm / bypassed_norm)")})

    def similarity(self, a: str, b: str) -> pd.DataFrame:
        """Spearman's ρ between two scopes: a row per sequence, a column per layer."""
        first, second = sorted((a, b), key=self.scopes.index)
        where = f"WHERE scope_a = '{first}' AND scope_b = '{second}'"
        return self._of_maps("similarity", "avg(rho)", where)

    def _of_maps(self, table: str, value: str, where: str = "") -> pd.DataFrame:
        """A value per sequence and layer; the texts of a pair were analysed one by one."""
        index = '"index" // 2' if self.told.apart else '"index"'
        rows = self.maps.sql(
            f'SELECT {index} AS "index", layer + 1 AS layer, {value} AS value FROM {table} {where} '
            "GROUP BY ALL"
        )
        wide = rows.pivot(index="index", columns="layer", values="value").astype(float)
        return wide.reindex(self.losses.index)

    def _cells(self, frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
        """Columns of (component, layer) out of a table of layers for each component."""
        kept = {name: frame for name, frame in frames.items() if frame.shape[1]}
        names = ["component", "layer"]
        if not kept:
            empty = pd.MultiIndex.from_arrays([[], []], names=names)
            return pd.DataFrame(index=self.losses.index, columns=empty, dtype=float)
        return pd.concat(kept, axis=1, names=names)


# Ways to take a component away, which mean another kind of ablation for norms than for vectors.


#: The kind of a norm's ablation beside each kind of a vector's; a norm has none of resampling.
_OF_NORMS = {MEAN: FROZEN_SIGMA, RESAMPLE: None, ZERO: LEFT_OUT}
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


def taken(changes: pd.DataFrame, way: str) -> pd.DataFrame:
    """Select ablations of single layers that remove a component in this way."""
    rows = changes[changes["layer"].notna() & _goes(changes, way)]
    if way != LEAST:
        return rows
    # One whose loss is not finite does most harm.
    ordered = rows.sort_values("change", na_position="last", kind="stable")
    return ordered.drop_duplicates(["component", "layer"]).sort_index()


def ways(changes: pd.DataFrame) -> list[str]:
    """List the ways of removing a component that occur, the default first."""
    there = [way for way in _OF_NORMS if _goes(changes, way).any()]
    return [LEAST, *there] if len(there) > 1 else there


def _goes(changes: pd.DataFrame, way: str) -> NDArray[np.bool_]:
    """Mark the ablations that remove a component in this way."""
    of_vectors = list(_OF_NORMS) if way == LEAST else [way]
    of_norms = [_OF_NORMS[one] for one in of_vectors]
    norms = changes["component"].map(is_norm).astype(bool)
    return np.where(norms, changes["kind"].isin(of_norms), changes["kind"].isin(of_vectors))
