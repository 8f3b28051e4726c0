"""One reader per file format; each gives the fields of a record at a time, never a whole file."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normlens.corpus.data import conll, unpickle
from normlens.corpus.data.lines import Lines
from normlens.corpus.data.records import Entity, located
from normlens.errors import InputError, reason_of
from normlens.json_text import parse_json

#: Columns that hold the text when the user names none.
TEXT_COLUMNS = ("sentence", "text")

#: Where in the file a record stands ("line 3"), and the fields that it is made of.
Found = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Options:
    """How to read files that leave a choice."""

    column: str | None = None
    pair_column: str | None = None
    paragraphs: bool = False


# Prose ------------------------------------------------------------------------------------------


def read_text(path: Path, options: Options) -> Iterator[Found]:
    """A sequence per line, or per paragraph between blank lines."""
    gathered: list[str] = []
    begin = 0
    lines = Lines(path)
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not gathered:
            begin = number
        if text:
            gathered.append(text)
        if gathered and not (text and options.paragraphs):
            yield f"line {begin}", _unless(lines.problem(), text=" ".join(gathered))
            gathered = []
    if gathered:
        yield f"line {begin}", _unless(lines.problem(), text=" ".join(gathered))


def read_wikitext(path: Path, options: Options) -> Iterator[Found]:
    """Pairs of consecutive paragraphs of an article."""
    lines = Lines(path)
    problems: dict[str, str] = {}  # paragraph → what is wrong with it

    def watched() -> Iterator[str]:
        for line in lines:
            if problem := lines.problem():
                problems[line.strip()] = problem
            yield line

    for index, pair in enumerate(paragraph_pairs(watched()), 1):
        problem = next((problems[text] for text in pair if text in problems), None)
        yield f"pair {index}", _unless(problem, text=pair)


def _unless(problem: str | None, **fields: Any) -> dict[str, Any]:
    """A record's fields, or what keeps it from being read."""
    return fields if problem is None else {"unreadable": problem}


def paragraph_pairs(paragraphs: Iterable[str]) -> Iterator[tuple[str, str]]:
    """First and second, third and fourth, … paragraph of each article; headings do not count.

    Clark et al. 2019, section 2: two consecutive paragraphs of Wikipedia as BERT's two segments.
    """
    first: str | None = None
    for line in paragraphs:
        text = line.strip()
        if not text:
            continue
        if text.startswith("= ") and text.endswith(" ="):
            if not text.startswith("= = "):  # an article's title, not a section's
                first = None
        elif first is None:
            first = text
        else:
            yield first, text
            first = None


# Rows -------------------------------------------------------------------------------------------


def read_jsonl(path: Path, options: Options) -> Iterator[Found]:
    """A JSON object per line: text, words with entities, or tokens."""
    lines = Lines(path)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"line {number}"
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
                f"{str(path)!r}, {where}: {_kind(row)} instead of an object such as "
                '{"text": "…"} or {"words": […]}'
            )
        yield from _found(path, where, row, options)


def read_csv(path: Path, options: Options) -> Iterator[Found]:
    """Comma-separated values with a header; fields may be quoted."""
    return _read_table(path, options, ",")


def read_tsv(path: Path, options: Options) -> Iterator[Found]:
    """Tab-separated values with a header; fields may be quoted."""
    return _read_table(path, options, "\t")


def _read_table(path: Path, options: Options, delimiter: str) -> Iterator[Found]:
    lines = Lines(path)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        if problem := lines.problem():
            raise InputError(f"{str(path)!r}, {problem}")
        if header:
            with located(repr(str(path))):
                _text_columns(header, options)
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise InputError(
                    f"{str(path)!r}, line {rows.line_num}: {len(row)} fields where the header has "
                    f"{len(header)}; put fields that hold the separator in double quotes"
                )
            where = f"line {rows.line_num}"
            if problem := lines.problem():
                yield where, {"unreadable": problem}
                continue
            named = dict(zip(header, row, strict=True))
            yield from _found(path, where, named, options, structured=False)
    except csv.Error as error:
        raise InputError(
            f"{str(path)!r}, line {rows.line_num}: {error}; check its double quotes, or save the "
            'data as JSONL lines {"text": "…"}'
        ) from error


def read_parquet(path: Path, options: Options) -> Iterator[Found]:
    """Rows of a Parquet file, a batch at a time and only the columns that are needed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            names = list(file.schema_arrow.names)
            with located(repr(str(path))):
                needed = _needed(names, options)
            for batch in file.iter_batches(batch_size=512, columns=needed):
                for row in _rows(batch):
                    number += 1
                    where = f"row {number}"
                    if row is None:
                        problem = f"{where}: the text is not UTF-8; write the file anew"
                        yield where, {"unreadable": problem}
                    else:
                        yield from _found(path, where, row, options)
    except pa.ArrowException as error:
        raise InputError(
            f"{str(path)!r} is not a Parquet file, or is damaged ({reason_of(error)})"
        ) from error


def _rows(batch: Any) -> Iterator[dict[str, Any] | None]:
    """The rows of a batch; None for one whose text is not UTF-8."""
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        for index in range(batch.num_rows):
            try:
                yield batch.slice(index, 1).to_pylist()[0]
            except UnicodeDecodeError:
                yield None


def _needed(names: list[str], options: Options) -> list[str]:
    if not (options.column or options.pair_column):
        for structured in (["words", "entities"], ["tokens"]):
            if structured[0] in names:
                return [name for name in structured if name in names]
    return _text_columns(names, options)


def _text_columns(names: list[str], options: Options) -> list[str]:
    """The columns to read: the ones that the user names, or the usual one."""
    listed = ", ".join(map(repr, names)) or "none"
    wanted = [name for name in (options.column, options.pair_column) if name is not None]
    for name in wanted:
        if name not in names:
            raise InputError(f"there is no column {name!r}; choose one of: {listed}")
    if options.column is None:
        usual = next((name for name in TEXT_COLUMNS if name in names), None)
        if usual is None:
            raise InputError(
                f"there is no column {' or '.join(map(repr, TEXT_COLUMNS))}; name one of these "
                f"with column=… (--column): {listed}"
            )
        wanted.insert(0, usual)
    return wanted


def _found(
    path: Path, where: str, row: Mapping[str, Any], options: Options, structured: bool = True
) -> Iterator[Found]:
    """The record of a row, or none if its text is blank."""
    with located(f"{str(path)!r}, {where}"):
        text_only = not structured or options.column or options.pair_column
        if "words" in row and not text_only:
            words = _strings(row["words"], "words")
            fields = {"words": words, "entities": _entities(row.get("entities"))} if words else {}
        elif "tokens" in row and not text_only:
            tokens = _strings(row["tokens"], "tokens")
            fields = {"tokens": tokens} if tokens else {}
        else:
            fields = _text(row, options)
    if fields:
        yield where, fields


def _text(row: Mapping[str, Any], options: Options) -> dict[str, Any]:
    columns = _text_columns(list(row), options)
    values = [row[column] for column in columns]
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
        if len(values) != 2:
            raise InputError(
                f"{columns[0]!r} is a list of {len(values)}; give a text or a pair of texts"
            )
    texts = [_string(value, columns[0]).strip() for value in values]
    if not all(texts):
        return {}
    return {"text": texts[0] if len(texts) == 1 else tuple(texts)}


def _string(value: Any, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{what!r} holds {_kind(value)} where a text should be")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can write half a character, "\ud800"
        raise InputError(f"{what!r} holds half of a surrogate pair; correct the text") from error
    return value


def _strings(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError(f"{what!r} holds {_kind(value)} where a list of texts should be")
    return tuple(_string(item, what) for item in value)


def _entities(value: Any) -> tuple[Entity, ...]:
    """Spans as [start, stop, label] or as objects with these names, in any order."""
    if not isinstance(value, (list, type(None))):
        raise InputError(f"'entities' holds {_kind(value)} where a list should be")
    entities = []
    for item in value or []:
        if isinstance(item, dict):
            item = [item.get(name) for name in ("start", "stop", "label")]
        start, stop, label = item if isinstance(item, list) and len(item) == 3 else [None] * 3
        if type(start) is not int or type(stop) is not int or not isinstance(label, str):
            raise InputError(f"an entity is [start, stop, label], not {item!r}")
        entities.append(Entity(start, stop, label))
    return tuple(sorted(entities, key=lambda entity: entity.start))


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    names |= {int: "a number", float: "a number", type(None): "null", bytes: "bytes"}
    return names.get(type(value), f"a {type(value).__name__}")


# Columns and pickles ----------------------------------------------------------------------------


def read_conll(path: Path, options: Options) -> Iterator[Found]:
    """Sentences of a CoNLL column file, with their entities."""
    lines = Lines(path)
    for index, (words, entities) in enumerate(conll.sentences(lines, repr(str(path))), 1):
        fields = _unless(lines.problem(), words=words, entities=entities)
        yield f"sentence {index}", fields


def read_pickle(path: Path, options: Options) -> Iterator[Found]:
    """The Wikipedia excerpts of Clark et al. 2019: a list of {"tokens": […]}.

    A pickle can only be read as a whole; every other format is read piece by piece.
    """
    items = unpickle.as_list(unpickle.load(path))
    if items is None:
        raise InputError(f'{str(path)!r} holds no list; give a list of {{"tokens": […]}} records')
    for index, item in enumerate(items, 1):
        tokens = unpickle.as_list(item.get("tokens")) if isinstance(item, dict) else None
        if tokens is None or not all(isinstance(token, str) for token in tokens):
            raise InputError(
                f"{str(path)!r}, item {index}: there is no list of texts under 'tokens'; give a "
                'list of {"tokens": […]} records'
            )
        yield f"item {index}", {"tokens": tuple(tokens)}


# Which reader -----------------------------------------------------------------------------------

READERS: dict[str, Callable[[Path, Options], Iterator[Found]]] = {
    "text": read_text,
    "jsonl": read_jsonl,
    "csv": read_csv,
    "tsv": read_tsv,
    "parquet": read_parquet,
    "conll": read_conll,
    "pickle": read_pickle,
    "wikitext": read_wikitext,
}
SUFFIXES = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pkl": "pickle",
    ".pickle": "pickle",
    **dict.fromkeys(conll.SUFFIXES, "conll"),
}
_TABLES = ("jsonl", "csv", "tsv", "parquet")


def format_of(path: Path) -> str:
    """The format that a file's suffix, or its first lines, say."""
    known = SUFFIXES.get(path.suffix.lower())
    if known not in ("text", None):
        return known
    try:
        if conll.looks_like_columns(Lines(path)):
            return "conll"
    except InputError:
        if known:
            raise
    if known:
        return known
    raise InputError(
        f"cannot tell the format of {str(path)!r} by its suffix {path.suffix!r}; rename it to one "
        f"of: {', '.join(SUFFIXES)} (or name the data set: wikitext:{path.name})"
    )


def check_options(options: Options, path: Path, kind: str) -> None:
    """Refuse an option that this file's format would ignore."""
    if (options.column or options.pair_column) and kind not in _TABLES:
        raise InputError(
            f"{str(path)!r} has no columns to choose (it is read as {kind}); leave column and "
            "pair_column out, or give a .jsonl, .csv, .tsv or .parquet file"
        )
    if options.paragraphs and kind != "text":
        raise InputError(
            f"paragraphs are for .txt files and {str(path)!r} is read as {kind}; leave it out"
        )
