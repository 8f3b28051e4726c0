"""Readers of tables: JSON lines, comma- or tab-separated values, and Parquet."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any

from normlens.corpus.data.lines import Lines
from normlens.corpus.data.read_options import Located, ReadOptions
from normlens.corpus.data.records import located
from normlens.corpus.data.row_fields import (
    check_extra,
    kind_of,
    needed_columns,
    row_fields,
    text_columns,
)
from normlens.corpus.data.source import Source
from normlens.errors import InputError, parse_json, reason_of

_BUFFER = 1 << 20


def read_jsonl(source: Source, options: ReadOptions) -> Iterator[Located]:
    """Read a JSON object per line: text, words with entities, or tokens."""
    path, lines = source.path, Lines(source)
    for line in lines:
        if not line.strip():
            continue
        where = f"line {source.number}"
        if problem := lines.problem():
            yield where, {"unreadable": problem}
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            reason = getattr(error, "msg", None) or error
            raise InputError(f"{str(path)!r}, {where}: broken JSON ({reason})") from error
        if not isinstance(row, dict):
            raise InputError(
                f"{str(path)!r}, {where}: {kind_of(row)} instead of an object such as "
                '{"text": "…"} or {"words": […]}'
            )
        if fields := row_fields(path, where, row, options):
            yield where, fields


def read_csv(source: Source, options: ReadOptions) -> Iterator[Located]:
    """Read comma-separated values with a header; fields may be quoted."""
    return _read_table(source, options, ",")


def read_tsv(source: Source, options: ReadOptions) -> Iterator[Located]:
    """Read tab-separated values with a header; fields may be quoted."""
    return _read_table(source, options, "\t")


def _read_table(source: Source, options: ReadOptions, delimiter: str) -> Iterator[Located]:
    path, lines = source.path, Lines(source)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        # Whoever begins further down needs the names of the columns, too.
        top = Lines(Source(path)) if source.start.offset else lines
        first = csv.reader(top, delimiter=delimiter, strict=True) if top is not lines else rows
        header = [name.strip() for name in next(first, [])]
        if problem := top.problem():
            raise InputError(f"{str(path)!r}, {problem}")
        if header:
            with located(repr(str(path))):
                text_columns(header, options)
                check_extra(header, options)
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise InputError(
                    f"{str(path)!r}, line {source.number}: {len(row)} fields where the header has "
                    f"{len(header)}; put fields that hold the separator in double quotes"
                )
            where = f"line {source.number}"
            if problem := lines.problem():
                yield where, {"unreadable": problem}
                continue
            named = dict(zip(header, row, strict=True))
            if fields := row_fields(path, where, named, options, structured=False):
                yield where, fields
    except csv.Error as error:
        raise InputError(
            f"{str(path)!r}, line {source.number}: {error}; check its double quotes, or save the "
            'data as JSONL lines {"text": "…"}'
        ) from error


def read_parquet(source: Source, options: ReadOptions) -> Iterator[Located]:
    """Read rows of a Parquet file, a batch at a time and only the columns that are needed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = source.path
    try:
        # The buffer lets a large row group pass page by page.
        with pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            names = list(file.schema_arrow.names)
            with located(repr(str(path))):
                needed = needed_columns(names, options)
            groups, skipped = _groups_from(file.metadata, source.start.number)
            for batch in file.iter_batches(batch_size=512, columns=needed, row_groups=groups):
                behind = batch.slice(skipped)
                skipped -= batch.num_rows - behind.num_rows
                for row in _rows(behind):
                    source.number += 1
                    where = f"row {source.number}"
                    if row is None:
                        problem = f"{where}: the text is not UTF-8; write the file anew"
                        yield where, {"unreadable": problem}
                    elif fields := row_fields(path, where, row, options):
                        yield where, fields
    except pa.ArrowException as error:
        raise InputError(
            f"{str(path)!r} is not a Parquet file, or is damaged ({reason_of(error)})"
        ) from error


def _groups_from(metadata: Any, row: int) -> tuple[list[int], int]:
    """List the row groups from the one that holds a row, and the rows before it in that one."""
    first = 0
    while first < metadata.num_row_groups and row >= metadata.row_group(first).num_rows:
        row -= metadata.row_group(first).num_rows
        first += 1
    return list(range(first, metadata.num_row_groups)), row


def _rows(batch: Any) -> Iterator[dict[str, Any] | None]:
    """Yield the rows of a batch; None for one whose text is not UTF-8."""
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        for index in range(batch.num_rows):
            try:
                yield batch.slice(index, 1).to_pylist()[0]
            except UnicodeDecodeError:
                yield None
