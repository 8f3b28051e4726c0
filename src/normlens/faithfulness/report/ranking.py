"""A protocol's methods from the best to the worst, with intervals over examples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from normlens.faithfulness.report import queries
from normlens.faithfulness.report.protocol_words import (
    LEAST,
    MOST,
    ProtocolWords,
    same_family,
    words_of,
)
from normlens.measures.bootstrap import LEAST_EXAMPLES, mean_intervals
from normlens.reports.base import Evidence, Table

RESAMPLES = 10_000


@dataclass(frozen=True)
class Ranking:
    """One protocol's values on every example, and its table of methods, the best first."""

    protocol: str
    words: ProtocolWords
    values: pd.DataFrame  # (example, method), the most important tokens first
    table: pd.DataFrame  # a row per method, sorted
    seed: int

    @property
    def methods(self) -> list[str]:
        return list(self.table["method"])

    @property
    def examples(self) -> int:
        """Examples on which some method has a value."""
        return int(self.values.notna().any(axis=1).sum())

    @property
    def certain(self) -> bool:
        """Whether there are enough examples for intervals."""
        return self.examples >= LEAST_EXAMPLES

    @property
    def rival(self) -> str | None:
        """The best method that is not of the winner's own family, or else the second."""
        winner, *others = self.methods
        foreign = [name for name in others if not same_family(winner, name)]
        return next(iter(foreign or others), None)

    def row(self, method: str) -> pd.Series:
        return self.table.set_index("method").loc[method]


def rank(evidence: Evidence, protocol: str, seed: int) -> Ranking:
    """Read a protocol's values and rank the methods by their means."""
    words = words_of(protocol)
    by_first = queries.values(evidence, protocol)
    values = by_first.get(MOST, next(iter(by_first.values())))
    values = values[[name for name in values if values[name].notna().any()]]
    columns = _with_interval(values, seed, ("value", "low", "high"))
    columns["examples"] = values.notna().sum()
    if LEAST in by_first:
        names = ("least first", "least first low", "least first high")
        columns |= _with_interval(by_first[LEAST].reindex(columns=values.columns), seed, names)
    for first, accuracy in queries.accuracies(evidence, protocol).items():
        name = "accuracy" if first == MOST else f"accuracy, {first} first"
        columns[name] = accuracy.mean().reindex(values.columns)
    table = pd.DataFrame(columns)
    # Methods of the same value stand in the order of their names.
    table = table.sort_index().sort_values(
        "value", ascending=words.lower_is_better, kind="stable", na_position="last"
    )
    table = table.reset_index(names="method")
    order = [name for name in table if name != "examples"]
    return Ranking(protocol, words, values, table[[*order, "examples"]], seed)


def _with_interval(
    values: pd.DataFrame, seed: int, names: tuple[str, str, str]
) -> dict[str, pd.Series]:
    """Take means and intervals by method; too few examples have no interval."""
    means = mean_intervals(values.to_numpy(), RESAMPLES, seed)
    few = (values.notna().sum() < LEAST_EXAMPLES).to_numpy()
    columns = (means.mean, np.where(few, np.nan, means.low), np.where(few, np.nan, means.high))
    return {
        name: pd.Series(column, index=values.columns)
        for name, column in zip(names, columns, strict=True)
    }


def ranking_table(ranking: Ranking) -> Table:
    """Write the ranking as the report's table."""
    words, table = ranking.words, ranking.table
    better = words.better_with(MOST)
    about = f"{words.value[0].upper()}{words.value[1:]} of every method ({better} is better)"
    about += (
        f", with 95 % bootstrap intervals over {ranking.examples} examples."
        if ranking.certain
        else f"; {ranking.examples} examples are too few for intervals (at least {LEAST_EXAMPLES})."
    )
    if "least first" in table:
        about += (
            " Least first: the same with the least important tokens first "
            f"({words.better_with(LEAST)} is better)."
        )
    if "accuracy" in table:
        about += " Accuracy: of the changed texts, averaged over all shares."
    formats = {name: ".3f" for name in table if name not in ("method", "examples")}
    return Table(table, about, formats, open=True)
