"""Readers of tables: JSON lines, comma- or tab-separated values, and Parquet."""

from __future__ import annotations

import csv
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from normlens.corpus.data.records import Entity, Lines, Located, ReadOptions, Source, located
from normlens.errors import InputError, parse_json, reason_of

# The columns of a table that hold a record, and the record's fields in a row.


#: Columns that hold the text when the user names none.
TEXT_COLUMNS = _SENTENCE, _TEXT = ("sentence", "text")


def needed_columns(names: list[str], options: ReadOptions) -> list[str]:
    check_extra(names, options)
    if not (options.column or options.pair_column):
        for structured in (["words", "entities"], ["tokens"]):
            if structured[0] in names:
                needed = [name for name in structured if name in names]
                return list(dict.fromkeys((*needed, *options.extra)))
    texts = [_outer(name, names) for name in text_columns(names, options)]
    return list(dict.fromkeys((*texts, *options.extra)))


def check_extra(names: list[str], options: ReadOptions) -> None:
    """Refuse further columns that the table does not have."""
    for name in options.extra:
        if name not in names:
            raise InputError(f"there is no column {name!r}; choose one of: {_listed(names)}")


def text_columns(names: list[str], options: ReadOptions) -> list[str]:
    """Choose the columns to read: the ones that the user names, or the usual one."""
    wanted = [name for name in (options.column, options.pair_column) if name is not None]
    for name in wanted:
        if _outer(name, names) not in names:
            raise InputError(f"there is no column {name!r}; choose one of: {_listed(names)}")
    if options.column is None:
        usual = next((name for name in TEXT_COLUMNS if name in names), None)
        if usual is None:
            raise InputError(
                f"there is no column {' or '.join(map(repr, TEXT_COLUMNS))}; name one of these "
                f"with column=… (--column): {_listed(names)}"
            )
        wanted.insert(0, usual)
    return wanted


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _outer(name: str, names: Container[str]) -> str:
    """The column that a name means: itself, or the object before its dot (``translation.en``)."""
    return name if name in names else name.partition(".")[0]


def _value(row: Mapping[str, Any], column: str) -> Any:
    if column in row:
        return row[column]
    outer, _, inner = column.partition(".")
    holder = row[outer]
    if holder is None:
        return None
    if not isinstance(holder, dict):
        raise InputError(f"{outer!r} holds {kind_of(holder)}, which has no field {inner!r}")
    if inner not in holder:
        listed = ", ".join(map(repr, holder)) or "none"
        raise InputError(f"{outer!r} has no field {inner!r}; choose one of: {listed}")
    return holder[inner]


def row_fields(
    path: Path | str,
    where: str,
    row: Mapping[str, Any],
    options: ReadOptions,
    structured: bool = True,
) -> dict[str, Any]:
    """The fields of the record in a row; none if its text is blank."""
    # Nearly all rows of large data are of this kind, and there may be a billion of them.
    text = _usual_text(row, options, structured)
    if text is not None:
        return {"text": text} if text else {}
    with located(f"{str(path)!r}, {where}"):
        text_only = not structured or options.column or options.pair_column
        if "words" in row and not text_only:
            words = _strings(row["words"], "words")
            entities = _entities(row.get("entities"))
            fields: dict[str, Any] = {"words": words, "entities": entities} if words else {}
        elif "tokens" in row and not text_only:
            tokens = _strings(row["tokens"], "tokens")
            fields = {"tokens": tokens} if tokens else {}
        else:
            fields = _text(row, options)
        if fields and options.extra:
            check_extra(list(row), options)
            fields["extra"] = {name: _plain(row[name], name) for name in options.extra}
    return fields


def _usual_text(row: Mapping[str, Any], options: ReadOptions, structured: bool) -> str | None:
    """The text of a row that is one text and nothing else; None for any other row."""
    if options.pair_column or options.extra:
        return None
    if options.column is not None:
        value = row.get(options.column)
    elif structured and ("words" in row or "tokens" in row):
        return None
    else:
        value = row[_SENTENCE] if _SENTENCE in row else row.get(_TEXT)
    return value.strip() if type(value) is str and is_whole(value) else None


def _text(row: Mapping[str, Any], options: ReadOptions) -> dict[str, Any]:
    columns = text_columns(list(row), options)
    values = [_value(row, column) for column in columns]
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
        if len(values) != 2:
            raise InputError(
                f"{columns[0]!r} is a list of {len(values)}; give a text or a pair of texts"
            )
    if options.pair_column and all(isinstance(value, list) for value in values):
        words, second = (_strings(*item) for item in zip(values, columns, strict=True))
        return {"words": words, "second_words": second} if words and second else {}
    texts = [_string(value, columns[0]).strip() for value in values]
    if not all(texts):
        return {}
    return {"text": texts[0] if len(texts) == 1 else tuple(texts)}


def _string(value: Any, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{what!r} holds {kind_of(value)} where a text should be")
    if not is_whole(value):
        raise InputError(f"{what!r} holds half of a surrogate pair; correct the text")
    return value


def is_whole(text: str) -> bool:
    """Whether every character is one; JSON can write half of one, "\ud800"."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(value: Any, what: str) -> str:
    """A further column's value as text; numbers as Python writes them."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _string(value, what).strip()
    return str(value)


def _strings(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError(f"{what!r} holds {kind_of(value)} where a list of texts should be")
    return tuple(_string(item, what) for item in value)


def _entities(value: Any) -> tuple[Entity, ...]:
    """Read spans given as [start, stop, label] or as objects with these names, in any order."""
    if not isinstance(value, (list, type(None))):
        raise InputError(f"'entities' holds {kind_of(value)} where a list should be")
    entities = []
    for item in value or []:
        if isinstance(item, dict):
            item = [item.get(name) for name in ("start", "stop", "label")]
        start, stop, label = item if isinstance(item, list) and len(item) == 3 else [None] * 3
        if type(start) is not int or type(stop) is not int or not isinstance(label, str):
            raise InputError(f"an entity is [start, stop, label], not {item!r}")
        entities.append(Entity(start, stop, label))
    return tuple(sorted(entities, key=lambda entity: entity.start))


def kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    names |= {int: "a number", float: "a number", type(None): "null", bytes: "bytes"}
    return names.get(type(value), f"a {type(value).__name__}")


# Readers of tables: JSON lines, comma- or tab-separated values, and Parquet.


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
