"""The SQL queries behind a faithfulness report."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from normlens.evaluate.report.protocol_words import MOST, in_order
from normlens.reports.base import Evidence


def protocols(evidence: Evidence) -> list[str]:
    """List the protocols that a run holds values of, in the report's order."""
    names = evidence.sql("SELECT DISTINCT protocol FROM faithfulness WHERE value IS NOT NULL")
    return in_order(names["protocol"])


def methods(evidence: Evidence) -> list[str]:
    """List the methods of a run by name."""
    names = evidence.sql("SELECT DISTINCT method FROM faithfulness ORDER BY method")
    return list(names["method"])


def values_query(protocol: str) -> str:
    return f"""SELECT "index", "first", method, value
FROM faithfulness WHERE protocol = {literal(protocol)}"""


def values(evidence: Evidence, protocol: str) -> dict[str, pd.DataFrame]:
    """Take a protocol's values by what goes first: a row per example, a column per method."""
    return _by_first(evidence.sql(values_query(protocol)), "value")


def accuracies_query(protocol: str) -> str:
    return f"""SELECT "index", "first", method, avg(CAST(correct AS DOUBLE)) AS accuracy
FROM removals WHERE protocol = {literal(protocol)} AND correct IS NOT NULL
GROUP BY ALL"""


def accuracies(evidence: Evidence, protocol: str) -> dict[str, pd.DataFrame]:
    """Take the share of shares at which each example is still classified right, as `values`."""
    return _by_first(evidence.sql(accuracies_query(protocol)), "accuracy")


def curves_query(protocol: str) -> str:
    return f"""SELECT "index", "first", method, share, score, probability,
  CAST(correct AS DOUBLE) AS correct
FROM removals WHERE protocol = {literal(protocol)}"""


def curve_points(evidence: Evidence, protocol: str) -> pd.DataFrame:
    """Take a protocol's curves, point by point."""
    return evidence.sql(curves_query(protocol))


def intact(evidence: Evidence) -> pd.DataFrame:
    """Take what the model says of every whole text."""
    return evidence.sql(
        'SELECT *, CAST(correct AS DOUBLE) AS right_class FROM examples ORDER BY "index"'
    )


PASSES = """SELECT method, avg(forward) AS forward, avg(backward) AS backward, count(*) AS texts
FROM method_passes GROUP BY method"""


def passes(evidence: Evidence) -> pd.DataFrame:
    """Take the passes through the model that a method needs for one text, on average."""
    return evidence.sql(PASSES)


def attributions_query(examples: Sequence[int]) -> str:
    return f"""SELECT *
FROM attributions WHERE "index" IN ({", ".join(map(str, map(int, examples)))})
ORDER BY "index", method, position"""


def attributions(evidence: Evidence, examples: Sequence[int]) -> pd.DataFrame:
    """Take every method's scores of the tokens of some examples."""
    return evidence.sql(attributions_query(examples))


def literal(text: str) -> str:
    """Quote a text for SQL."""
    return "'" + text.replace("'", "''") + "'"


def _by_first(rows: pd.DataFrame, name: str) -> dict[str, pd.DataFrame]:
    tables = {
        str(first): some.pivot(index="index", columns="method", values=name).astype(float)
        for first, some in rows.groupby("first")
    }
    return {first: tables[first] for first in sorted(tables, key=lambda first: first != MOST)}
