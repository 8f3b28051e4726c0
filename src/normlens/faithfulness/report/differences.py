"""Paired differences between methods: the winner and NormLens against every other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from normlens.faithfulness.report.protocol_words import NORMLENS
from normlens.faithfulness.report.ranking import RESAMPLES, Ranking
from normlens.measures.bootstrap import LEAST_EXAMPLES, holm, paired_differences
from normlens.reports.base import Table
from normlens.reports.formatting import count

FLIPS = 100_000
LEVEL = 0.05
HOLM = "p (Holm)"


@dataclass(frozen=True)
class Differences:
    """The comparisons of one protocol, all in one family for Holm's correction."""

    frame: pd.DataFrame  # method, against, difference, low, high, p, p (Holm), examples

    def of(self, method: str) -> pd.DataFrame:
        """Take one method's comparisons, turned so that it comes first."""
        ahead = self.frame[self.frame["method"] == method]
        behind = self.frame[self.frame["against"] == method]
        turned = behind.assign(
            method=behind["against"],
            against=behind["method"],
            difference=-behind["difference"],
            low=-behind["high"],
            high=-behind["low"],
        )
        return pd.concat([turned, ahead], ignore_index=True)

    def between(self, method: str, against: str) -> pd.Series:
        rows = self.of(method)
        return rows[rows["against"] == against].iloc[0]


def significant(row: pd.Series) -> bool:
    """Whether a difference's interval excludes 0 and its adjusted p is below 5 %."""
    return bool((row["low"] > 0 or row["high"] < 0) and row[HOLM] < LEVEL)


def compare_methods(ranking: Ranking) -> Differences:
    """Compare the winner with every other method, and NormLens with every other."""
    methods = ranking.methods
    winner = methods[0]
    pairs = [(winner, other) for other in methods[1:]]
    if NORMLENS in methods[1:]:
        pairs += [(NORMLENS, other) for other in methods if other not in (NORMLENS, winner)]
    values = ranking.values
    if not pairs:
        columns = ("method", "against", "difference", "low", "high", "p", HOLM, "examples")
        return Differences(pd.DataFrame(columns=list(columns)))
    compared = paired_differences(
        values[[first for first, _ in pairs]].to_numpy(),
        values[[second for _, second in pairs]].to_numpy(),
        RESAMPLES,
        FLIPS,
        ranking.seed,
    )
    few = compared.examples < LEAST_EXAMPLES
    p = np.where(few, np.nan, compared.p)
    return Differences(
        pd.DataFrame(
            {
                "method": [first for first, _ in pairs],
                "against": [second for _, second in pairs],
                "difference": compared.mean,
                "low": np.where(few, np.nan, compared.low),
                "high": np.where(few, np.nan, compared.high),
                "p": p,
                HOLM: holm(p),
                "examples": compared.examples,
            }
        )
    )


def difference_tables(ranking: Ranking, differences: Differences) -> dict[str, Table]:
    """Write one table for the winner, and one for NormLens if that is another method."""
    methods = ranking.methods
    if len(methods) < 2:
        return {}
    shown = {"winner": methods[0]}
    if NORMLENS in methods[1:]:
        shown[NORMLENS] = NORMLENS
    family = count(len(differences.frame), "comparison")
    better = "above" if not ranking.words.lower_is_better else "below"
    formats = {"difference": "+.3f", "low": "+.3f", "high": "+.3f", "p": ".5f", HOLM: ".5f"}
    return {
        f"{ranking.protocol}-{name}": Table(
            differences.of(method).drop(columns="method"),
            f"{method} against every other method on the same examples ({better} 0: {method} is "
            "better), with 95 % bootstrap intervals; p by flipping signs, and adjusted by Holm "
            f"over this protocol's {family}.",
            formats,
            open=True,
        )
        for name, method in shown.items()
    }
