"""The procedures that compare related pairs with others, their findings, and these in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normlens.corpus.measures.tokens import GROUPS, ScopePair
from normlens.errors import listed
from normlens.measures.bootstrap import MeanComparison, benjamini_hochberg, compare_means
from normlens.measures.reweighting import Reweighted, compare_reweighted
from normlens.scopes import layers_in_words
from normlens.studies.papers.pair_samples import (
    UNRELATED_PAIRS,
    Groups,
    LayerPairs,
    Pairs,
    Sample,
    compared,
    layers_of,
    matched_groups,
    near_and_far,
    stratum_counts,
    user_relation_groups,
)
from normlens.studies.papers.published import Evidence
from normlens.studies.papers.settings import PAPER, Settings
from normlens.studies.reports import words

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
    def compared(self) -> str:
        """What the pairs are compared with."""
        if self.near:
            return "pairs further apart"
        return f"{'other' if self.of_paper else 'unrelated'} pairs at the same distance"

    @property
    def of_paper(self) -> bool:
        """Whether the others are those of the paper."""
        return self.against == PAPER

    @property
    def procedure(self) -> str:
        """What the sentences call `TYPES`."""
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


# The comparison of related pairs with others, in sentences.


_DIRECTIONS = {1: "higher", -1: "lower", 0: "no difference"}
_ROBUST = "all occurrences, bootstrap over sequences"


def capital(text: str) -> str:
    """Write the text with a capital letter at its beginning."""
    return text[0].upper() + text[1:]


def sentence(finding: Finding, amp: str) -> str:
    """Say where the pairs differ from others, and where the paper's procedure disagrees."""
    tested = verdicts(finding.robust)
    if not tested:
        return (
            f"Whether {amp} of {finding.label} differs from that of {finding.compared} cannot be "
            "told: fewer than two sequences hold pairs that can be compared. "
            f"{_by_the_paper(finding)}"
        )
    where = _where(tested)
    criterion = f"({_ROBUST}; p {'<' if where else '≥'} {finding.threshold})"
    if where:
        told = (
            f"{capital(amp)} of {finding.label}, compared with that of {finding.compared}, is "
            f"significantly {where} {criterion}"
        )
    else:
        told = (
            f"In no layer does {amp} of {finding.label} differ significantly from that of "
            f"{finding.compared} {criterion}"
        )
    best = strongest(finding.robust)
    if best is not None:
        row = finding.robust.iloc[best]
        told += (
            f"; the effect is largest in layer {int(row['layer'])} (mean "
            f"{words.fixed(row['mean'], 4)} against {words.fixed(row['others'], 4)}, g = "
            f"{words.fixed(row['g'])})"
        )
    return f"{told}. {_by_the_paper(finding)}"


def short_sentence(findings: Sequence[Finding], amp: str) -> str:
    """Say the same for several kinds of pairs in one sentence."""
    parts = []
    for finding in findings:
        tested = verdicts(finding.robust)
        where = _where(tested)
        told = f"it is {where}" if where else "no layer differs" if tested else "nothing is known"
        differing = _differing(finding)
        if differing:
            told += f" ({finding.procedure}: {differing})"
        parts.append(f"of {finding.label} {told}")
    return (
        f"{capital(amp)}, compared in the same way (p < {findings[0].threshold}): "
        f"{'; '.join(parts)}."
    )


def _where(tested: dict[int, int]) -> str:
    """Say where: ``higher in layers 2–3 and lower in layer 4``, or nothing."""
    parts = [
        f"{_DIRECTIONS[sign]} in {layers_in_words(layers)}"
        for sign in (1, -1)
        if (layers := [layer for layer, direction in tested.items() if direction == sign])
    ]
    return " and ".join(parts)


def _by_the_paper(finding: Finding) -> str:
    if finding.paper is None:
        return (
            f"{capital(finding.procedure)} (subword pairs, one draw of others) cannot be applied: "
            "too few subword pairs occur often enough."
        )
    number = finding.paper["pairs"].max()
    procedure = capital(finding.procedure)
    procedure += f" ({number} subword pairs, one draw of as many others)"
    differing = _differing(finding)
    return (
        f"{procedure} {f'differs: {differing}' if differing else 'finds the same in every layer'}."
    )


def _differing(finding: Finding) -> str:
    """Say what the paper's procedure finds in the layers where it differs."""
    if finding.paper is None:
        return ""
    robust, paper = verdicts(finding.robust), verdicts(finding.paper)
    parts = [
        f"{word} in {layers_in_words(layers)}"
        for sign, word in _DIRECTIONS.items()
        if (
            layers := [
                n for n, direction in paper.items() if direction == sign and robust.get(n) != sign
            ]
        )
    ]
    unanswered = sorted(set(robust) - set(paper))
    if unanswered:
        parts.append(f"no answer in {layers_in_words(unanswered)}")
    return listed(parts) if parts else ""
