"""Rows of a table in memory: of pandas, of pyarrow, or of `datasets`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from normlens.corpus.data.named import rows_from
from normlens.corpus.data.read_options import ReadOptions
from normlens.corpus.data.row_fields import needed_columns

_BATCH = 512


class TableRows:
    """The rows that records are made of, a batch at a time and only the columns that are needed."""

    def __init__(self, table: Any, options: ReadOptions):
        self.table, self.options = table, options
        self.frame = hasattr(table, "iloc")
        names = [str(name) for name in (table.columns if self.frame else table.column_names)]
        self.needed = needed_columns(names, options)
        #: a table of `datasets` that is streamed can only be read from its first row
        self.seeks = self.frame or hasattr(table, "to_pylist") or hasattr(table, "select")

    def rows(self, first: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
        """The rows from one of them on, each with its place."""
        for number, row in enumerate(self._from(first), first):
            yield f"row {number}", {name: plain(row[name]) for name in self.needed}

    def _from(self, first: int) -> Iterator[dict[str, Any]]:
        if not (self.frame or hasattr(self.table, "to_pylist")):  # datasets
            rows = self.table.select_columns(self.needed)
            yield from rows_from(rows, first) if self.seeks else islice(rows, first, None)
            return
        for start in range(first, len(self.table), _BATCH):
            columns = [self._column(name, start) for name in self.needed]
            for values in zip(*columns, strict=True):
                yield dict(zip(self.needed, values, strict=True))

    def _column(self, name: str, start: int) -> list[Any]:
        if self.frame:
            return self.table[name].iloc[start : start + _BATCH].tolist()
        return self.table.column(name).slice(start, _BATCH).to_pylist()


def plain(value: Any) -> Any:
    """A value as JSON would hold it; what pandas calls missing is None."""
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "tolist"):  # of NumPy: an array, or one number
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    missing = type(value).__name__ in ("NAType", "NaTType") or value != value
    return None if missing else value
