"""CSV for spreadsheets: numbers stay numbers, and no text is taken for a formula.

A spreadsheet runs a cell that begins with one of `= + - @`, and tokens may come from anyone. Such
a text gets an apostrophe in front, which is how spreadsheets mark plain text.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

#: What a formula begins with, for Python and for DuckDB; some programs skip a tab or a return.
_FORMULA = r"^[=+\-@\t\r]"
_MARK = "'"
#: DuckDB's types that are written as numbers.
_NUMBERS = re.compile(r"U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|BIGNUM|DECIMAL(\(.*\))?|FLOAT|DOUBLE")


def harmless(cell: Any) -> Any:
    """The cell, marked as plain text if it is a text that a spreadsheet would run."""
    return _MARK + cell if isinstance(cell, str) and re.match(_FORMULA, cell) else cell


def write_csv(frame: pd.DataFrame, target: str | IO[str]) -> None:
    """Write a table as CSV."""
    from pandas.api.types import is_numeric_dtype

    safe = frame.copy(deep=False)
    safe.columns = [harmless(name) for name in frame.columns]
    quoting = csv.QUOTE_MINIMAL
    for position, dtype in enumerate(frame.dtypes):
        if is_numeric_dtype(dtype):
            continue
        column = frame.iloc[:, position].astype(object)  # the values of a category
        safe.isetitem(position, column.map(harmless))
        if any(isinstance(cell, str) and "\r" in cell for cell in column):
            quoting = csv.QUOTE_NONNUMERIC  # pandas does not quote a return inside a cell by itself
    safe.to_csv(target, index=False, encoding="utf-8", quoting=quoting, lineterminator="\n")


def harmless_sql(query: str, columns: Iterable[tuple[str, str]]) -> str:
    """A query with the same answer, its texts made harmless; `columns` are names and types."""
    aliases, cells = [], []
    for position, (name, kind) in enumerate(columns):
        alias = cell = f"c{position}"  # two columns of an answer may have one name
        aliases.append(alias)
        if not _NUMBERS.fullmatch(kind):
            text = f"CAST({alias} AS VARCHAR)"
            # An expression of the row alone keeps the answer's order; IN (…) may become a join.
            formula = f"regexp_matches({text}, '{_FORMULA}')"
            cell = f"CASE WHEN {formula} THEN '{2 * _MARK}' || {text} ELSE {text} END"
        quoted = str(harmless(name)).replace('"', '""')
        cells.append(f'{cell} AS "{quoted}"')
    return f"SELECT {', '.join(cells)} FROM ({query}\n) AS answer({', '.join(aliases)})"
