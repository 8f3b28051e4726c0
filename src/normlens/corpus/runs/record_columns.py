"""Records of many shards as columns: small in memory, and fast to write and to read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normlens.corpus.runs.shards import Done, File, table_name
from normlens.errors import parse_json

_COUNTS = ("number", "epoch", "attempt", "sequences", "failures", "tokens")
_TIMES = ("started", "finished")
_SHA256 = 32  # bytes


@dataclass(frozen=True)
class RecordColumns:
    """Records, one row each.

    `rows` has the columns of `_dtype`. Stages and workers differ from record to record but are few
    altogether: `seconds` has one column per stage (NaN where a shard had none), and `worker` is
    the place of the record's `by` among `workers`.
    """

    tables: tuple[str, ...]
    stages: tuple[str, ...]
    workers: tuple[str, ...]  # JSON
    rows: np.ndarray[Any, np.dtype[Any]]

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, records: Sequence[Done], tables: Sequence[str]) -> RecordColumns:
        """Turn records into columns; each has a file for every one of `tables`."""
        stages = tuple(dict.fromkeys(stage for done in records for stage in done.seconds))
        texts = [json.dumps(done.by, sort_keys=True) for done in records]
        workers = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        rows = np.zeros(len(records), _dtype(len(tables), len(stages)))
        for name in (*_COUNTS, *_TIMES):
            rows[name] = [getattr(done, name) for done in records]
        rows["worker"] = [workers[text] for text in texts]
        for row, done in zip(rows, records, strict=True):
            row["seconds"] = [done.seconds.get(stage, np.nan) for stage in stages]
            for place, table in enumerate(tables):
                file = done.tables[table]
                row["file_rows"][place], row["file_bytes"][place] = file.rows, file.bytes
                row["file_sha256"][place] = np.frombuffer(bytes.fromhex(file.sha256), np.uint8)
        return cls(tuple(tables), stages, tuple(workers), rows)

    @classmethod
    def joined(cls, parts: Iterable[RecordColumns], tables: Sequence[str]) -> RecordColumns:
        """Put parts below each other; files of tables that a part lacks are zeros."""
        parts = list(parts)
        stages = tuple(dict.fromkeys(stage for part in parts for stage in part.stages))
        every = dict.fromkeys(text for part in parts for text in part.workers)
        workers = {text: place for place, text in enumerate(every)}
        rows = np.zeros(sum(map(len, parts)), _dtype(len(tables), len(stages)))
        rows["seconds"] = np.nan
        start = 0
        for part in parts:
            below = rows[start : start + len(part)]
            start += len(part)
            for name in (*_COUNTS, *_TIMES):
                below[name] = part.rows[name]
            places = np.array([workers[text] for text in part.workers], "<i4")
            below["worker"] = places[part.rows["worker"]] if len(part) else 0
            for place, stage in enumerate(part.stages):
                below["seconds"][:, stages.index(stage)] = part.rows["seconds"][:, place]
            for place, table in enumerate(part.tables):
                target = tables.index(table)
                for name in ("file_rows", "file_bytes", "file_sha256"):
                    below[name][:, target] = part.rows[name][:, place]
        return cls(tuple(tables), stages, tuple(workers), rows)

    def taken(self, chosen: np.ndarray[Any, np.dtype[Any]]) -> RecordColumns:
        """Keep some rows: a mask, or their places."""
        everything = chosen.all() if chosen.dtype == bool else _is_range(chosen, len(self))
        if everything:
            return self  # columns may be large: they are not copied in vain
        return RecordColumns(self.tables, self.stages, self.workers, self.rows[chosen])

    def without_files(self) -> RecordColumns:
        """Drop the columns of files."""
        return RecordColumns.joined([_no_tables(self)], ())

    def file(self, place: int, table: int) -> File:
        """Describe the file of one table, by their places, of the record in one row."""
        row = self.rows[place]
        mark = (int(row["number"]), int(row["epoch"]), int(row["attempt"]))
        return File(
            table_name(self.tables[table], *mark),
            int(row["file_rows"][table]),
            int(row["file_bytes"][table]),
            row["file_sha256"][table].tobytes().hex(),
        )

    def files(self, table: str, places: np.ndarray[Any, np.dtype[Any]]) -> list[File]:
        """Describe the files of one table, of the records in these rows."""
        column = self.tables.index(table)
        digests = self.rows["file_sha256"][:, column][places].tobytes().hex()
        width = 2 * _SHA256
        sizes = self.sizes(table, places)
        counts = self.rows["file_rows"][:, column][places].tolist()
        return [
            File(name, count, size, digests[width * i : width * (i + 1)])
            for i, ((name, size), count) in enumerate(zip(sizes, counts, strict=True))
        ]

    def sizes(
        self, table: str, places: np.ndarray[Any, np.dtype[Any]]
    ) -> Iterator[tuple[str, int]]:
        """Give the names of the same files with their sizes in bytes."""
        marks = (self.rows[name][places].tolist() for name in ("number", "epoch", "attempt"))
        names = (table_name(table, *mark) for mark in zip(*marks, strict=True))
        sizes = self.rows["file_bytes"][:, self.tables.index(table)][places].tolist()
        return zip(names, sizes, strict=True)

    def record(self, place: int, tables: Iterable[str]) -> Done:
        """Build the record in one row, with its files of these tables."""
        row = self.rows[place]
        seconds = zip(self.stages, row["seconds"].tolist(), strict=True)
        return Done(
            **{name: int(row[name]) for name in _COUNTS},
            started=float(row["started"]),
            finished=float(row["finished"]),
            seconds={stage: spent for stage, spent in seconds if spent == spent},
            tables={table: self.file(place, self.tables.index(table)) for table in tables},
            by=json.loads(self.workers[int(row["worker"])]),
        )

    # As bytes -------------------------------------------------------------------------------------

    def described(self) -> dict[str, Any]:
        """Describe the columns as JSON, for `parsed`."""
        return {
            "tables": list(self.tables),
            "stages": list(self.stages),
            "workers": list(self.workers),
            "rows": len(self),
        }

    def as_buffer(self) -> memoryview:
        return np.ascontiguousarray(self.rows).view(np.uint8).data

    @classmethod
    def parsed(cls, described: dict[str, Any], contents: bytes | memoryview) -> RecordColumns:
        """Read what `described` and `as_buffer` gave, or raise a ValueError."""
        tables, stages, workers = (
            tuple(map(str, described[name])) for name in ("tables", "stages", "workers")
        )
        rows = np.frombuffer(contents, _dtype(len(tables), len(stages)))
        counts = [rows[name] for name in (*_COUNTS, "worker", "file_rows", "file_bytes")]
        sound = (
            len(rows) == described["rows"]
            and all(table.isidentifier() for table in tables)
            and all(isinstance(parse_json(text), dict) for text in workers)
            and all((count >= 0).all() for count in counts)
            and (rows["worker"] < len(workers)).all()
        )
        if not sound:
            raise ValueError("its columns hold no records")
        return cls(tables, stages, workers, rows)


def _is_range(places: np.ndarray[Any, np.dtype[Any]], stop: int) -> bool:
    return len(places) == stop and bool((places == np.arange(stop)).all())


def _no_tables(columns: RecordColumns) -> RecordColumns:
    return RecordColumns((), columns.stages, columns.workers, columns.rows)


def _dtype(tables: int, stages: int) -> np.dtype[Any]:
    return np.dtype(
        [
            *((name, "<i8") for name in _COUNTS),
            *((name, "<f8") for name in _TIMES),
            ("worker", "<i4"),
            ("seconds", "<f8", (stages,)),
            ("file_rows", "<i8", (tables,)),
            ("file_bytes", "<i8", (tables,)),
            ("file_sha256", "u1", (tables, _SHA256)),
        ]
    )
