"""Data that a user has in memory: a list of texts, a column, a table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from normlens.corpus.data.read_options import ReadOptions
from normlens.corpus.data.records import Data, Record, located
from normlens.corpus.data.row_fields import located_fields, needed_columns
from normlens.errors import InputError
from normlens.iterables import as_list, is_table

#: What runs call such data; an error of a later run can then say that it has to be passed again.
NAME = "data in memory"


class MemoryData(Data):
    """Sequences of an object in memory, read once; rows without a text are left out."""

    def __init__(self, given: Any, options: ReadOptions = ReadOptions(), limit: int | None = None):
        super().__init__(NAME, limit)
        self._held = tuple(_records(given, options))
        if not self._held:
            raise InputError(f"the {type(given).__name__} holds no sequence; give one with text")

    def _records(self) -> Iterator[Record]:
        return iter(self._held)

    def _fingerprint(self) -> str:
        described = hashlib.sha256(str(self.limit).encode())
        for record in self:
            fields = {**vars(record), "entities": [vars(entity) for entity in record.entities]}
            described.update(json.dumps(fields, sort_keys=True, default=list).encode())
        return described.hexdigest()


def is_in_memory(given: Any) -> bool:
    """Whether data is an object, and not a name, a path, or an open data set."""
    return not isinstance(given, (str, Data)) and not hasattr(given, "__fspath__")


def _records(given: Any, options: ReadOptions) -> Iterator[Record]:
    index = 0
    for where, row in _rows(given, options):
        for place, fields in located_fields(NAME, where, row, options):
            with located(f"{NAME}, {place}"):
                yield Record(id=f"{NAME}:{index}", **fields)
            index += 1


def _rows(given: Any, options: ReadOptions) -> Iterator[tuple[str, dict[str, Any]]]:
    if is_table(given):
        yield from _table_rows(given, options)
        return
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
        yield f"item {number}", {"text": _plain(pair)}


def _table_rows(table: Any, options: ReadOptions) -> Iterator[tuple[str, dict[str, Any]]]:
    frame = hasattr(table, "iloc")
    names = [str(name) for name in (table.columns if frame else table.column_names)]
    with located(NAME):
        needed = needed_columns(names, options)
    columns: Iterable[Any]
    if frame:
        columns = [table[name].tolist() for name in needed]
    elif hasattr(table, "to_pylist"):  # pyarrow
        columns = [table.column(name).to_pylist() for name in needed]
    else:  # datasets, also one that is streamed
        rows = list(table.select_columns(needed))
        columns = [[row[name] for row in rows] for name in needed]
    for number, values in enumerate(zip(*columns, strict=True)):
        yield f"row {number}", {n: _plain(v) for n, v in zip(needed, values, strict=True)}


def _plain(value: Any) -> Any:
    """A value as JSON would hold it; what pandas calls missing is None."""
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "tolist"):  # of NumPy: an array, or one number
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    missing = type(value).__name__ in ("NAType", "NaTType") or value != value
    return None if missing else value
