"""The procedures that compare related pairs with others: on one draw of them, and on all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normlens.corpus.measures.tokens import GROUPS, ScopePair
from normlens.measures.bootstrap import MeanComparison, benjamini_hochberg, compare_means
from normlens.measures.reweighting import Reweighted, compare_reweighted
from normlens.papers.base import Evidence
from normlens.papers.kobayashi2024.related_pairs.findings import (
    ADJACENT,
    ALL,
    ALPHA,
    COLUMNS,
    OCCURRENCES,
    TYPES,
    Finding,
)
from normlens.papers.kobayashi2024.related_pairs.matching import (
    Groups,
    Sample,
    matched_groups,
    near_and_far,
    stratum_counts,
)
from normlens.papers.kobayashi2024.related_pairs.pair_tables import (
    UNRELATED_PAIRS,
    LayerPairs,
    Pairs,
    compared,
    layers_of,
    user_relation_groups,
)
from normlens.papers.settings import Settings


def findings(evidence: Evidence, scope_pairs: list[ScopePair]) -> dict[ScopePair, list[Finding]]:
    """Compare every kind of pairs that occurs with other pairs, for each pair of scopes."""
    user_groups = user_relation_groups(evidence)
    near: dict[str, None] = {} if ADJACENT in user_groups else {ADJACENT: None}
    groups: dict[str, tuple[str, ...] | None] = {**GROUPS, **near, **user_groups}
    settings = evidence.settings
    collected = {name: _PairsByLayer({}, {}, {}) for name in groups}
    for layer in layers_of(evidence):
        pairs = LayerPairs.read(evidence, layer, scope_pairs)
        drawn = _Drawable(pairs, {})
        for name, relations in groups.items():
            kinds = None if relations is None else compared(name, relations, settings.others)
            collected[name].add(layer + 1, drawn, kinds, settings)
    by_scopes: dict[ScopePair, list[Finding]] = {}
    for name, relations in groups.items():
        for pair, finding in zip(
            scope_pairs, collected[name].findings(name, relations is None, settings), strict=False
        ):
            by_scopes.setdefault(pair, []).append(finding)
    return by_scopes


@dataclass(frozen=True)
class _Drawable:
    """One layer's pairs that others are drawn from, of each kind once."""

    pairs: LayerPairs
    known: dict[Pairs, tuple[Sample, Sample]]

    def of(self, kind: Pairs) -> tuple[Sample, Sample]:
        """Pairs of subwords, and occurrences."""
        if kind not in self.known:
            self.known[kind] = self.pairs.typed(kind), self.pairs.sampled(kind)
        return self.known[kind]


@dataclass(frozen=True)
class _PairsByLayer:
    """The pairs that each procedure compares, by layer (from 1)."""

    robust: dict[int, Reweighted]
    types: dict[int, Groups]
    occurrences: dict[int, Groups]

    def add(
        self,
        layer: int,
        drawable: _Drawable,
        kinds: tuple[Pairs, Pairs] | None,
        settings: Settings,
    ) -> None:
        """Add one layer's related pairs and others; without kinds, unrelated pairs near and far."""
        pairs = drawable.pairs
        if kinds is None:
            others = drawable.of(UNRELATED_PAIRS)
            sums = [pairs.distance_sums(UNRELATED_PAIRS, ends) for ends in ((1, 1), (2, np.inf))]
            counts = [stratum_counts(others[0].distance), pairs.other_counts()]
            drawn = [near_and_far(*given) for given in zip(others, counts, strict=True)]
        else:
            sums = [pairs.distance_sums(kind) for kind in kinds]
            drawn = [matched_groups(*given) for given in zip(*map(drawable.of, kinds), strict=True)]
        if sums[0].count.any():
            self.robust[layer] = compare_reweighted(
                sums[0], sums[1], resamples=settings.resamples, seed=settings.seed
            )
        for kept, groups in zip((self.types, self.occurrences), drawn, strict=True):
            if len(groups[0]) > 1:
                kept[layer] = groups

    def findings(self, name: str, near: bool, settings: Settings) -> list[Finding]:
        """Compare for each pair of scopes; nothing where no procedure has pairs."""
        if not (self.types or self.occurrences or any(r.pairs > 1 for r in self.robust.values())):
            return []
        robust = list(self.robust.values())
        drawn = {
            procedure: _Drawn.of(groups, settings)
            for procedure, groups in ((TYPES, self.types), (OCCURRENCES, self.occurrences))
            if groups
        }
        findings = []
        for place in range(robust[0].comparison.p.size):
            frames = {procedure: some.frame(procedure, place) for procedure, some in drawn.items()}
            compared = [_rows(result.comparison, slice(place, place + 1)) for result in robust]
            frames[ALL] = _adjusted(
                pd.concat(compared, ignore_index=True),
                ALL,
                list(self.robust),
                [result.pairs for result in robust],
            )
            shown = drawn[TYPES].scores(place) if TYPES in drawn else [np.empty((0, 0))] * 2
            findings.append(
                Finding(
                    name=name,
                    frames=frames,
                    related=shown[0],
                    others=shown[1],
                    left_out=max(result.left_out for result in robust),
                    sequences=max(result.sequences for result in robust),
                    near=near,
                    against=settings.others,
                )
            )
        return findings


@dataclass(frozen=True)
class _Drawn:
    """One draw of others, as many as there are related pairs in every layer, and its test."""

    layers: list[int]
    groups: list[NDArray[np.float64]]  # related and others: (pairs, layers, scope pairs)
    tested: MeanComparison  # (layers · scope pairs)

    @classmethod
    def of(cls, groups: dict[int, Groups], settings: Settings) -> _Drawn:
        size = min(len(related) for related, _ in groups.values())
        stacked = [
            np.stack([group[side].score[:size] for group in groups.values()], axis=1)
            for side in (0, 1)
        ]
        related, others = (side.reshape(size, -1) for side in stacked)
        tested = compare_means(
            related,
            others,
            resamples=settings.resamples,
            seed=settings.seed,
        )
        return cls(list(groups), stacked, tested)

    def scores(self, place: int) -> list[NDArray[np.float64]]:
        return [side[:, :, place] for side in self.groups]

    def frame(self, procedure: str, place: int) -> pd.DataFrame:
        columns = slice(place, None, self.groups[0].shape[2])
        rows = _rows(self.tested, columns)
        return _adjusted(rows, procedure, self.layers, [len(self.groups[0])] * len(rows))


def _rows(tested: MeanComparison, columns: slice) -> pd.DataFrame:
    values = {}
    for name, means in (
        ("mean", tested.first),
        ("others", tested.second),
        ("difference", tested.difference),
    ):
        values[name] = means.mean[columns]
        values[f"{name} low"], values[f"{name} high"] = means.low[columns], means.high[columns]
    return pd.DataFrame({**values, "g": tested.effect[columns], "p": tested.p[columns]})


def _adjusted(
    rows: pd.DataFrame, procedure: str, layers: list[int], pairs: list[int]
) -> pd.DataFrame:
    adjusted = benjamini_hochberg(rows["p"])
    return rows.assign(
        layer=layers,
        procedure=procedure,
        pairs=pairs,
        **{"p adjusted": adjusted, "significant": adjusted < ALPHA},
    )[COLUMNS]
