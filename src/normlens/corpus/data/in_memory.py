"""Data that a user has in memory: a list of texts, a column, a table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from normlens.corpus.data.read_options import ReadOptions
from normlens.corpus.data.reading import START, Mark, Reading
from normlens.corpus.data.records import Data, Record, located, written
from normlens.corpus.data.row_fields import row_fields
from normlens.corpus.data.table_rows import TableRows, plain
from normlens.errors import InputError
from normlens.inputs import as_list, is_table

#: What runs call such data; an error of a later run can then say that it has to be passed again.
NAME = "data in memory"
#: Where a row stands ("row 3"), and its columns.
_Row = tuple[str, dict[str, Any]]


class MemoryData(Data):
    """Sequences of an object in memory; rows without a text are left out.

    Texts are kept as records. Of a table the rows become records when they are asked for: a table
    of `datasets` may be larger than the memory.
    """

    def __init__(self, given: Any, options: ReadOptions = ReadOptions(), limit: int | None = None):
        super().__init__(NAME, limit)
        self._rows: TableRows | None = None
        self._held: tuple[Record, ...] = ()
        if is_table(given):
            with located(NAME):
                self._rows = TableRows(given, options)
            self.seeks = self._rows.seeks
        else:
            self._held = tuple(_records(_texts(given, options), options))
            self.seeks = True
        if next(iter(self), None) is None:
            raise InputError(f"the {type(given).__name__} holds no sequence; give one with text")

    def reading(self, start: Mark = START, *, fingerprint: bool = False) -> Reading:
        return _MemoryReading(self, start, fingerprint)

    def _fingerprint(self) -> str:
        described = hashlib.sha256(str(self.limit).encode())
        for record in self:
            described.update(written(record))
        return described.hexdigest()


class _MemoryReading(Reading):
    """Records of an object from one of its rows on."""

    def __init__(self, data: MemoryData, start: Mark, hashed: bool):
        self._table, self._number = data._rows, start.number
        self._digest = hashlib.sha256(str(data.limit).encode()) if hashed else None
        if data._rows is None:
            super().__init__(iter(data._held), start)
        else:
            rows = self._counted(data._rows.rows(start.number), start.number)
            super().__init__(_records(rows, data._rows.options, start.record))
            self.count = start.record

    def _counted(self, rows: Iterator[_Row], first: int) -> Iterator[_Row]:
        for self._number, row in enumerate(rows, first + 1):
            yield row

    def __next__(self) -> Record:
        record = super().__next__()
        if self._digest is not None:
            self._digest.update(written(record))
        return record

    @property
    def mark(self) -> Mark:
        return Mark(number=self._number, record=self.count)

    def fingerprint(self) -> str | None:
        return None if self._digest is None else self._digest.hexdigest()


def is_in_memory(given: Any) -> bool:
    """Whether data is an object, and not a name, a path, or an open data set."""
    return not isinstance(given, (str, Data)) and not hasattr(given, "__fspath__")


def _records(rows: Iterable[_Row], options: ReadOptions, first: int = 0) -> Iterator[Record]:
    index = first
    for where, row in rows:
        if fields := row_fields(NAME, where, row, options):
            with located(f"{NAME}, {where}"):
                yield Record(id=f"{NAME}:{index}", **fields)
            index += 1


def _texts(given: Any, options: ReadOptions) -> Iterator[_Row]:
    if options.column or options.pair_column or options.extra:
        raise InputError(
            f"a {type(given).__name__} of texts has no columns to choose; leave column, "
            "pair_column and extra_columns out, or pass a table"
        )
    texts = as_list(given)
    if not isinstance(texts, list):
        raise InputError(
            "data is a name, a path, a list of texts or a table (pandas, pyarrow, datasets), not "
            f"{type(given).__name__}"
        )
    for number, text in enumerate(texts):
        pair = list(text) if isinstance(text, (tuple, list)) else text
        yield f"item {number}", {"text": plain(pair)}
