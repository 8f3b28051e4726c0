"""The procedures that compare related pairs with others, and what they find."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normlens.corpus.measures.tokens import GROUPS, ScopePair
from normlens.measures.bootstrap import MeanComparison, benjamini_hochberg, compare_means
from normlens.measures.reweighting import Reweighted, compare_reweighted
from normlens.studies.papers.pair_samples import (
    UNRELATED_PAIRS,
    Groups,
    LayerPairs,
    Pairs,
    compared,
    layers_of,
    matched_groups,
    near_and_far,
    stratum_counts,
    user_relation_groups,
)
from normlens.studies.papers.published import Evidence
from normlens.studies.papers.settings import PAPER, Settings

# The result of comparing related pairs with others, by layer and procedure.


ALPHA = 0.05
#: Procedures: the paper's, the same with every occurrence as a pair of its own, and the one
#: that depends on no draw and takes no two pairs of a sequence as independent.
TYPES, OCCURRENCES, ALL = "subword pairs, one draw", "occurrences, one draw", "all occurrences"
COLUMNS = [
    "layer",
    "procedure",
    "pairs",
    "mean",
    "others",
    "difference",
    "g",
    "p",
    "p adjusted",
    "significant",
    "mean low",
    "mean high",
    "others low",
    "others high",
    "difference low",
    "difference high",
]
ADJACENT = "adjacent"
_LABELS = {
    "same_word": "word-split pairs",
    "same_entity": "named-entity pairs",
    "entity_across_words": "entity pairs across words",
    "same_type": "same-subword pairs",
    ADJACENT: "adjacent pairs",
}


@dataclass(frozen=True)
class Finding:
    """The comparison of one kind of pairs with others under one pair of scopes.

    `frames` has a row per layer for each procedure that could be applied; `related` and `others`
    hold the scores that `TYPES` compares.
    """

    name: str
    frames: dict[str, pd.DataFrame]
    related: NDArray[np.float64]  # (pairs, layers)
    others: NDArray[np.float64]
    left_out: int
    sequences: int  # that hold such pairs
    near: bool  # adjacent tokens, to which no distance can be matched
    against: str = PAPER  # which pairs are the others: `Settings.others`

    @property
    def label(self) -> str:
        return _LABELS.get(self.name, f"{self.name} pairs")

    @property
    def of_paper(self) -> bool:
        """Whether the others are those of the paper."""
        return self.against == PAPER

    @property
    def procedure(self) -> str:
        """What captions call `TYPES`."""
        return "the paper's procedure" + ("" if self.of_paper else " against unrelated pairs")

    @property
    def robust(self) -> pd.DataFrame:
        """The rows of `ALL`; layers without an answer have no p."""
        return self.frames[ALL]

    @property
    def paper(self) -> pd.DataFrame | None:
        """The rows of the paper's procedure, if it could be applied."""
        return self.frames.get(TYPES)

    @property
    def frame(self) -> pd.DataFrame:
        """All procedures, layer by layer."""
        together = pd.concat(self.frames.values(), ignore_index=True)
        return together.sort_values("layer", kind="stable", ignore_index=True)

    @property
    def threshold(self) -> str:
        """The limit for p in a layer, with how p was adjusted."""
        number = len(self.robust)
        corrected = f" after Benjamini–Hochberg over {number} layers" if number > 1 else ""
        return f"{ALPHA}{corrected}"


def strongest(frame: pd.DataFrame) -> int | None:
    """Find the row of the largest effect in either direction."""
    effect = frame["g"].abs()
    return None if effect.isna().all() else int(effect.to_numpy().argmax())


def verdicts(frame: pd.DataFrame) -> dict[int, int]:
    """Map each tested layer to its significant direction: +1, −1, or 0 where there is none."""
    tested = frame[frame["p"].notna()]
    signs = np.where(tested["significant"], np.sign(tested["difference"]), 0)
    return dict(zip(tested["layer"].tolist(), signs.astype(int).tolist(), strict=True))


# The procedures that compare related pairs with others: on one draw of them, and on all.


def findings(evidence: Evidence, scope_pairs: list[ScopePair]) -> dict[ScopePair, list[Finding]]:
    """Compare every kind of pairs that occurs with other pairs, for each pair of scopes."""
    user_groups = user_relation_groups(evidence)
    near: dict[str, None] = {} if ADJACENT in user_groups else {ADJACENT: None}
    groups: dict[str, tuple[str, ...] | None] = {**GROUPS, **near, **user_groups}
    settings = evidence.settings
    collected = {name: _PairsByLayer({}, {}, {}) for name in groups}
    for layer in layers_of(evidence):
        pairs = LayerPairs.read(evidence, layer, scope_pairs)
        for name, relations in groups.items():
            kinds = None if relations is None else compared(name, relations, settings.others)
            collected[name].add(layer + 1, pairs, kinds, settings)
    by_scopes: dict[ScopePair, list[Finding]] = {}
    for name, relations in groups.items():
        for pair, finding in zip(
            scope_pairs, collected[name].findings(name, relations is None, settings), strict=False
        ):
            by_scopes.setdefault(pair, []).append(finding)
    return by_scopes


@dataclass(frozen=True)
class _PairsByLayer:
    """The pairs that each procedure compares, by layer (from 1)."""

    robust: dict[int, Reweighted]
    types: dict[int, Groups]
    occurrences: dict[int, Groups]

    def add(
        self, layer: int, pairs: LayerPairs, kinds: tuple[Pairs, Pairs] | None, settings: Settings
    ) -> None:
        """Add one layer's related pairs and others; without kinds, unrelated pairs near and far."""
        if kinds is None:
            others = pairs.drawable(UNRELATED_PAIRS)
            sums = [pairs.distance_sums(UNRELATED_PAIRS, ends) for ends in ((1, 1), (2, np.inf))]
            counts = [stratum_counts(others[0].distance), pairs.other_counts()]
            drawn = [near_and_far(*given) for given in zip(others, counts, strict=True)]
        else:
            sums = [pairs.distance_sums(kind) for kind in kinds]
            by_kind = map(pairs.drawable, kinds)
            drawn = [matched_groups(*given) for given in zip(*by_kind, strict=True)]
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
        scope_pairs = robust[0].comparison.p.size
        frames: list[dict[str, pd.DataFrame]] = [{} for _ in range(scope_pairs)]
        compared = [np.empty((0, 0, scope_pairs))] * 2  # by `TYPES`: (pairs, layers, scope pairs)
        for procedure, groups in ((TYPES, self.types), (OCCURRENCES, self.occurrences)):
            if not groups:
                continue
            # One draw of others, as many as there are related pairs in every layer.
            size = min(len(related) for related, _ in groups.values())
            scores = [
                np.stack([group[side].score[:size] for group in groups.values()], axis=1)
                for side in (0, 1)
            ]
            if procedure == TYPES:
                compared = scores
            related, others = (side.reshape(size, -1) for side in scores)
            tested = compare_means(
                related, others, resamples=settings.resamples, seed=settings.seed
            )
            for place, of_scopes in enumerate(frames):
                rows = _rows(tested, slice(place, None, scope_pairs))
                of_scopes[procedure] = _adjusted(rows, procedure, groups, size)
        for place, of_scopes in enumerate(frames):
            rows = [_rows(result.comparison, slice(place, place + 1)) for result in robust]
            of_scopes[ALL] = _adjusted(
                pd.concat(rows, ignore_index=True),
                ALL,
                self.robust,
                [result.pairs for result in robust],
            )
        return [
            Finding(
                name=name,
                frames=of_scopes,
                related=compared[0][:, :, place],
                others=compared[1][:, :, place],
                left_out=max(result.left_out for result in robust),
                sequences=max(result.sequences for result in robust),
                near=near,
                against=settings.others,
            )
            for place, of_scopes in enumerate(frames)
        ]


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
    rows: pd.DataFrame, procedure: str, layers: Iterable[int], pairs: int | list[int]
) -> pd.DataFrame:
    adjusted = benjamini_hochberg(rows["p"])
    return rows.assign(
        layer=list(layers),
        procedure=procedure,
        pairs=pairs,
        **{"p adjusted": adjusted, "significant": adjusted < ALPHA},
    )[COLUMNS]


def capital(text: str) -> str:
    """Write the text with a capital letter at its beginning."""
    return text[0].upper() + text[1:]
