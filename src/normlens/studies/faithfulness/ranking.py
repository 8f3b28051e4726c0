"""A protocol's methods from best to worst, their differences, and what each protocol asks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from normlens.measures.bootstrap import LEAST_EXAMPLES, holm, mean_intervals, paired_differences
from normlens.studies.faithfulness.options import LEAST, MOST
from normlens.studies.reports.contents import Evidence, Table
from normlens.studies.reports.words import caption, count, texts

# The SQL queries that a faithfulness report shows, and what the model says of the whole texts.


PASSES = """SELECT method, avg(forward) AS forward, avg(backward) AS backward, count(*) AS texts
FROM method_passes GROUP BY method"""


def protocols(evidence: Evidence) -> list[str]:
    """List the protocols that a run holds values of; those that are not described come last."""
    rows = evidence.sql("SELECT DISTINCT protocol FROM faithfulness WHERE value IS NOT NULL")
    order = list(texts("faithfulness"))
    names = sorted(rows["protocol"])
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def values_query(protocol: str) -> str:
    return f"""SELECT "index", "first", method, value
FROM faithfulness WHERE protocol = {_literal(protocol)}"""


def curves_query(protocol: str) -> str:
    return f"""SELECT "index", "first", method, share, score, probability,
  CAST(correct AS DOUBLE) AS correct
FROM removals WHERE protocol = {_literal(protocol)}"""


def intact(evidence: Evidence) -> pd.DataFrame:
    """Take what the model says of every whole text."""
    return evidence.sql(
        'SELECT *, CAST(correct AS DOUBLE) AS right_class FROM examples ORDER BY "index"'
    )


def _literal(text: str) -> str:
    """Quote a text for SQL."""
    return "'" + text.replace("'", "''") + "'"


# The words of a protocol, and which way its values are better.


NORMLENS = "normlens"
#: Methods that do not look at the model: what every other has to beat.
PRIORS = ("first-token", "random")
_say = partial(caption, "faithfulness")


@dataclass(frozen=True)
class ProtocolWords:
    """A protocol in words, from the section of its name in `texts.ini`."""

    title: str
    question: str
    source: str
    method: str
    compared: str  # how methods are compared, behind the method
    read: str
    value: str  # what its number is called
    axis: str  # what happens to the tokens that a curve's share is of; empty: nothing does
    falls: str  # the column that drops: score or probability
    label: str  # of that column on an axis
    better: str  # higher or lower values
    begins: str  # whether curves begin with the whole text: whole or changed

    @property
    def lower_is_better(self) -> bool:
        return self.better == "lower"

    def better_with(self, first: str) -> str:
        """Return which values are better; the direction flips with the least important first."""
        return "lower" if self.lower_is_better != (first == LEAST) else "higher"


def words_of(protocol: str) -> ProtocolWords:
    """The words of a protocol; what its section leaves out is that of [protocol]."""
    sections = texts("faithfulness")
    known = sections.get(protocol, {"title": protocol})
    return ProtocolWords(**{**sections["protocol"], **known})


# A protocol's methods from the best to the worst, with intervals over examples.


RESAMPLES = 10_000


@dataclass(frozen=True)
class Ranking:
    """One protocol's values on every example, and its table of methods, the best first."""

    protocol: str
    values: pd.DataFrame  # (example, method), the most important tokens first
    table: pd.DataFrame  # a row per method, sorted
    seed: int

    @property
    def words(self) -> ProtocolWords:
        return words_of(self.protocol)

    @property
    def methods(self) -> list[str]:
        return list(self.table["method"])

    @property
    def examples(self) -> int:
        """Examples on which some method has a value."""
        return int(self.values.notna().any(axis=1).sum())

    @property
    def rival(self) -> str | None:
        """The best method of another family than the winner, or else the second."""
        winner, *others = self.methods
        if winner.startswith(NORMLENS):
            others = [name for name in others if not name.startswith(NORMLENS)] or others
        return next(iter(others), None)

    def row(self, method: str) -> pd.Series:
        return self.table.set_index("method").loc[method]


def rank(evidence: Evidence, protocol: str, seed: int) -> Ranking:
    """Read a protocol's values and rank the methods by their means."""
    by_first = _by_first(evidence.sql(values_query(protocol)))
    values = by_first[MOST].dropna(axis=1, how="all")
    table = averages(values, seed)
    examples = table.pop("examples")
    if LEAST in by_first:
        least = averages(by_first[LEAST][values.columns], seed)
        names = {"value": "least first", "low": "least first low", "high": "least first high"}
        table = table.join(least.rename(columns=names)[list(names.values())])
    # The share of the changed texts that the model still classifies right.
    right = _by_first(
        evidence.sql(
            f"""SELECT "index", "first", method, avg(CAST(correct AS DOUBLE)) AS value
FROM removals WHERE protocol = {_literal(protocol)} AND correct IS NOT NULL GROUP BY ALL"""
        )
    )
    for first, name in ((MOST, "accuracy"), (LEAST, "accuracy, least first")):
        if first in right:
            table[name] = right[first].mean()
    table["examples"] = examples
    # Methods of the same value stand in the order of their names.
    table = table.sort_index().sort_values(
        "value", ascending=words_of(protocol).lower_is_better, kind="stable", na_position="last"
    )
    return Ranking(protocol, values, table.reset_index(names="method"), seed)


def _by_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Values of every example, by removal order and method."""
    return rows.pivot(index="index", columns=["first", "method"], values="value").astype(float)


def averages(values: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Average each column over examples, with intervals where there are enough of them."""
    means = mean_intervals(values.to_numpy(float), RESAMPLES, seed)
    examples = values.notna().sum()
    low, high = (np.where(examples < LEAST_EXAMPLES, np.nan, end) for end in means[1:])
    columns = {"value": means.mean, "low": low, "high": high, "examples": examples}
    return pd.DataFrame(columns, index=values.columns)


def ranking_table(ranking: Ranking) -> Table:
    """Write the ranking as the report's table."""
    words, table = ranking.words, ranking.table
    said = _say(
        "table ranking",
        value=words.value[0].upper() + words.value[1:],
        better=words.better_with(MOST),
        worse=words.better_with(LEAST),
        examples=ranking.examples,
        least=LEAST_EXAMPLES,
    )
    return Table(table, ".3f", said, open=True)


# Paired differences between methods: the winner and NormLens against every other.


FLIPS = 100_000
HOLM = "p (Holm)"


def compare_methods(ranking: Ranking) -> pd.DataFrame:
    """Compare the winner with every other method, and NormLens with every other.

    All comparisons of a protocol are one family for Holm's correction.
    """
    winner, *others = ranking.methods
    pairs = [(winner, other) for other in others]
    if NORMLENS in others:
        pairs += [(NORMLENS, other) for other in others if other != NORMLENS]
    first, second = map(list, zip(*pairs, strict=True))
    compared = paired_differences(
        ranking.values[first].to_numpy(),
        ranking.values[second].to_numpy(),
        RESAMPLES,
        FLIPS,
        ranking.seed,
    )
    few = compared.examples < LEAST_EXAMPLES
    low, high, p = (np.where(few, np.nan, end) for end in (compared.low, compared.high, compared.p))
    named = {"method": first, "against": second, "difference": compared.mean}
    ends = {"low": low, "high": high, "p": p, HOLM: holm(p), "examples": compared.examples}
    return pd.DataFrame({**named, **ends})


def comparisons_of(method: str, differences: pd.DataFrame) -> pd.DataFrame:
    """Take one method's comparisons, turned so that it comes first."""
    behind = differences[differences["against"] == method]
    turned = behind.assign(
        method=behind["against"],
        against=behind["method"],
        difference=-behind["difference"],
        low=-behind["high"],
        high=-behind["low"],
    )
    return pd.concat([turned, differences[differences["method"] == method]], ignore_index=True)


def difference_tables(ranking: Ranking) -> dict[str, Table]:
    """Write one table for the winner, and one for NormLens if that is another method."""
    winner, *others = ranking.methods
    if not others:
        return {}
    shown = {"winner": winner} | ({NORMLENS: NORMLENS} if NORMLENS in others else {})
    differences = compare_methods(ranking)
    formats = {"p": ".5f", HOLM: ".5f"}
    facts = {
        "family": count(len(differences), "comparison"),
        "side": "below" if ranking.words.lower_is_better else "above",
    }
    return {
        f"{ranking.protocol}-{name}": Table(
            comparisons_of(method, differences).drop(columns="method"),
            "+.3f",
            _say("table differences", method=method, **facts),
            formats,
            open=True,
        )
        for name, method in shown.items()
    }
