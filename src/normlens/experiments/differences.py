"""How related pairs differ from the others they are compared with: means, effects and tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normlens.analysis.bootstrap import MeanComparison, benjamini_hochberg, compare_means
from normlens.experiments.base import Evidence
from normlens.experiments.matching import Sample, matched_groups, near_and_far
from normlens.measures.scope_pairs import ScopePair

ALPHA = 0.05
COLUMNS = [
    "layer",
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
    "mean of all",
    "others of all",
]

_LABELS = {
    "same_word": "word-split pairs",
    "same_entity": "named-entity pairs",
    "same_type": "same-subword pairs",
    "adjacent": "adjacent pairs",
}


@dataclass(frozen=True)
class Finding:
    """What was found for one relation under one pair of scopes."""

    name: str
    frame: pd.DataFrame
    target: NDArray[np.float64]  # (tested pairs, layers)
    others: NDArray[np.float64]
    left_out: int
    near: bool  # adjacent tokens, to which no distance can be matched

    @property
    def label(self) -> str:
        return _LABELS.get(self.name, f"{self.name} pairs")

    @property
    def compared(self) -> str:
        """What the pairs are compared with."""
        return "pairs further apart" if self.near else "other pairs at the same distance"

    @property
    def threshold(self) -> str:
        """What p must be below in a layer, and how p was adjusted."""
        number = len(self.frame)
        corrected = f" after Benjamini–Hochberg over {number} layers" if number > 1 else ""
        return f"{ALPHA}{corrected}"

    @property
    def strongest(self) -> int | None:
        """The row of the largest effect, in whichever direction."""
        effect = self.frame["g"].abs()
        return None if effect.isna().all() else int(effect.to_numpy().argmax())

    def layers(self, sign: int) -> list[int]:
        """Layers with a significant difference of this sign."""
        chosen = self.frame["significant"] & (np.sign(self.frame["difference"]) == sign)
        return self.frame.loc[chosen, "layer"].tolist()


def findings(evidence: Evidence, scope_pairs: list[ScopePair]) -> dict[ScopePair, list[Finding]]:
    """Every relation of which there are pairs to compare, for each pair of scopes."""
    exact = evidence.sql(
        "SELECT before, after, layer + 1 AS layer, relation, distance, count, sum "
        "FROM amplification_distance WHERE relation <> 'special'"
    )
    main = exact[(exact["before"] == scope_pairs[0][0]) & (exact["after"] == scope_pairs[0][1])]
    samples = _samples(evidence, scope_pairs)
    own = {str(name) for name in exact["relation"].unique()} - {*_LABELS, "other"}
    found: dict[ScopePair, list[Finding]] = {}
    for name in (*_LABELS, *sorted(own)):
        near = name == "adjacent" and not (exact["relation"] == name).any()
        groups = near_and_far(samples, main) if near else matched_groups(samples, name)
        groups = {layer: group for layer, group in groups.items() if len(group[0]) > 1}
        if not groups:
            continue
        size = min(len(target) for target, _ in groups.values())
        settings = evidence.settings
        stacked = [
            np.hstack([group[side].score[:size] for group in groups.values()]) for side in (0, 1)
        ]  # (pairs, layers · scope pairs)
        tested = compare_means(
            stacked[0], stacked[1], resamples=settings.resamples, seed=settings.seed
        )
        for place, pair in enumerate(scope_pairs):
            columns = slice(place, None, len(scope_pairs))
            rows = exact[(exact["before"] == pair[0]) & (exact["after"] == pair[1])]
            means = (_near_and_far_means if near else _matched_means)(rows, name)
            frame = _frame(list(groups), tested, columns).merge(means, on="layer", how="left")
            frame = frame.fillna({"pairs": 0, "left_out": 0})
            relation = Finding(
                name=name,
                frame=frame.astype({"pairs": int})[COLUMNS],
                target=stacked[0][:, columns],
                others=stacked[1][:, columns],
                left_out=int(frame["left_out"].max()),
                near=near,
            )
            found.setdefault(pair, []).append(relation)
    return found


def _samples(evidence: Evidence, scope_pairs: list[ScopePair]) -> dict[int, dict[str, Sample]]:
    """Each layer's (from 1) sampled pairs by relation, in the order of their priorities."""
    place = " ".join(
        f"WHEN before = '{before}' AND after = '{after}' THEN {number}"
        for number, (before, after) in enumerate(scope_pairs)
    )
    # The same pairs of tokens are sampled under all scopes.
    rows = evidence.sql(
        f"SELECT layer + 1 AS layer, relation, distance, score, CASE {place} END AS place "
        "FROM amplification_sample WHERE relation <> 'special' "
        'ORDER BY layer, relation, priority, "index", target, source, place'
    )
    found: dict[int, dict[str, Sample]] = {}
    for (layer, relation), group in rows.groupby(["layer", "relation"], observed=True):
        found.setdefault(layer, {})[str(relation)] = Sample(
            group["distance"].to_numpy(np.int64)[:: len(scope_pairs)],
            group["score"].to_numpy(np.float64).reshape(-1, len(scope_pairs)),
        )
    return found


def _frame(layers: list[int], tested: MeanComparison, columns: slice) -> pd.DataFrame:
    frame = pd.DataFrame({"layer": layers})
    for name, means in (
        ("mean", tested.first),
        ("others", tested.second),
        ("difference", tested.difference),
    ):
        frame[name] = means.mean[columns]
        frame[f"{name} low"], frame[f"{name} high"] = means.low[columns], means.high[columns]
    frame["g"], frame["p"] = tested.effect[columns], tested.p[columns]
    frame["p adjusted"] = benjamini_hochberg(frame["p"])
    frame["significant"] = frame["p adjusted"] < ALPHA
    return frame


def _matched_means(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Exact means over all of the run's pairs: ``Σ_d n_d · mean of others at d / Σ_d n_d``."""
    target = rows[rows["relation"] == name].set_index(["layer", "distance"])[["count", "sum"]]
    others = rows[rows["relation"] == "other"].set_index(["layer", "distance"])[["count", "sum"]]
    both = target.join(others.add_suffix("_other"), how="left")
    alone = both["count_other"].isna()
    kept = both[~alone]
    weighted = kept["count"] * kept["sum_other"] / kept["count_other"]
    pairs = kept.groupby("layer")["count"].sum()
    return pd.DataFrame(
        {
            "pairs": pairs,
            "mean of all": kept.groupby("layer")["sum"].sum() / pairs,
            "others of all": weighted.groupby("layer").sum() / pairs,
            "left_out": both["count"].where(alone, 0).groupby("layer").sum(),
        }
    ).reset_index()


def _near_and_far_means(rows: pd.DataFrame, _: str) -> pd.DataFrame:
    others = rows[rows["relation"] == "other"]
    near, far = (
        others[chosen].groupby("layer")[["count", "sum"]].sum()
        for chosen in (others["distance"] == 1, others["distance"] > 1)
    )
    return pd.DataFrame(
        {
            "pairs": near["count"],
            "mean of all": near["sum"] / near["count"],
            "others of all": far["sum"] / far["count"],
            "left_out": 0,
        }
    ).reset_index()
