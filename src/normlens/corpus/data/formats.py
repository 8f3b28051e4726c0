"""The file formats: lines, paragraphs and columns of text, JSON lines, CSV, TSV and Parquet."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from normlens.corpus.data.records import Entity, Fields, ReadOptions, Record, Source, located
from normlens.errors import InputError, parse_json, reason_of, require

#: Reads a file; an error in a row is raised behind it, so that the source knows where that is.
Reader = Callable[[Source, ReadOptions], Iterator[Fields]]

_BUFFER = 1 << 20

# The columns of a table that hold a record, and the record's fields in a row.


#: Columns that hold the text when the user names none.
TEXT_COLUMNS = ("sentence", "text")


@lru_cache(maxsize=256)
def record_columns(
    names: tuple[str, ...], options: ReadOptions, structured: bool = True
) -> tuple[str, tuple[str, ...]]:
    """Choose the columns that make a record: its words, its tokens, or its texts.

    Those of texts are the ones that the user names, or the usual one.
    """
    wanted = [name for name in (options.column, options.pair_column) if name is not None]
    if structured and not wanted:
        for kind in ("words", "tokens"):
            if kind in names:
                beside = kind == "words" and "entities" in names
                return kind, (kind, "entities") if beside else (kind,)
    for name in wanted:
        _check(name, _outer(name, names), names)
    if options.column is None:
        usual = next((name for name in TEXT_COLUMNS if name in names), None)
        if usual is None:
            raise InputError(
                f"there is no column {' or '.join(map(repr, TEXT_COLUMNS))}; name one of these "
                f"with column=… (--column): {_listed(names)}"
            )
        wanted.insert(0, usual)
    return "text", tuple(wanted)


def needed_columns(
    names: Iterable[str], options: ReadOptions, structured: bool = True
) -> list[str]:
    """List the columns of a table that have to be read."""
    names = tuple(names)
    for name in options.extra:
        _check(name, name, names)
    _, chosen = record_columns(names, options, structured)
    return list(dict.fromkeys((*(_outer(name, names) for name in chosen), *options.extra)))


def _check(name: str, column: str, names: Iterable[str]) -> None:
    require(column in names, f"there is no column {name!r}; choose one of: {_listed(names)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _outer(name: str, names: Iterable[str]) -> str:
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
        raise InputError(f"{outer!r} holds {_kind_of(holder)}, which has no field {inner!r}")
    if inner not in holder:
        raise InputError(f"{outer!r} has no field {inner!r}; choose one of: {_listed(holder)}")
    return holder[inner]


def row_fields(row: Mapping[str, Any], options: ReadOptions, structured: bool = True) -> Fields:
    """The fields of the record in a row; none if its text is blank."""
    kind, names = record_columns(tuple(row), options, structured)
    fields: Fields = {}
    if kind == "text":
        fields = _texts([_value(row, name) for name in names], names, options)
    elif content := _strings(row[kind], kind):
        fields = {kind: content}
        if kind == "words":
            fields["entities"] = _entities(row.get("entities"))
    if fields and options.extra:
        for name in options.extra:
            _check(name, name, row)
        fields["extra"] = {name: _plain(row[name], name) for name in options.extra}
    return fields


def _texts(values: list[Any], names: Sequence[str], options: ReadOptions) -> Fields:
    """The text, the pair of texts or the pair of lists of words that columns hold."""
    if len(values) == 1 and isinstance(values[0], list):
        (values,) = values
        if len(values) != 2:
            raise InputError(
                f"{names[0]!r} is a list of {len(values)}; give a text or a pair of texts"
            )
    if options.pair_column and all(isinstance(value, list) for value in values):
        words, second = map(_strings, values, names)
        return {"words": words, "second_words": second} if words and second else {}
    texts = [_string(value, names[0]).strip() for value in values]
    if not all(texts):
        return {}
    return {"text": texts[0] if len(texts) == 1 else tuple(texts)}


def _string(value: Any, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{what!r} holds {_kind_of(value)} where a text should be")
    return value


def _plain(value: Any, what: str) -> str:
    """A further column's value as text; numbers as Python writes them, lists as JSON."""
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number else _string(value, what).strip()


def _strings(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError(f"{what!r} holds {_kind_of(value)} where a list of texts should be")
    return tuple(_string(item, what) for item in value)


def _entities(value: Any) -> tuple[Entity, ...]:
    """Read spans given as [start, stop, label] or as objects with these names, in any order."""
    if not isinstance(value, (list, type(None))):
        raise InputError(f"'entities' holds {_kind_of(value)} where a list should be")
    entities = []
    for item in value or []:
        if isinstance(item, dict):
            item = [item.get(name) for name in ("start", "stop", "label")]
        if not isinstance(item, list) or [type(part) for part in item] != [int, int, str]:
            raise InputError(f"an entity is [start, stop, label], not {item!r}")
        entities.append(Entity(*item))
    return tuple(sorted(entities, key=lambda entity: entity.start))


def _kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    names |= {int: "a number", float: "a number", type(None): "null", bytes: "bytes"}
    return names.get(type(value), f"a {type(value).__name__}")


# Readers of running text: lines, paragraphs, and pairs of WikiText's paragraphs.


def read_text(source: Source, options: ReadOptions) -> Iterator[Fields]:
    """Read a sequence per line, or per paragraph between blank lines."""
    paragraph: list[str] = []
    for line in chain(source, [""]):
        text = line.strip()
        if text:
            paragraph.append(text)
        if paragraph and not (text and options.paragraphs):
            yield {"text": " ".join(paragraph)}
            paragraph = []


def read_wikitext(source: Source, options: ReadOptions) -> Iterator[Fields]:
    """Read pairs of consecutive paragraphs of an article, and what stands between the two."""
    for first, between, second in paragraph_pairs(source):
        if not any("\udc80" <= character <= "\udcff" for character in first + between + second):
            source.problem = None  # of a line that is in no pair
        yield {"text": (first, second), "between": between}


def paragraph_pairs(paragraphs: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Pair the first and second, third and fourth, … paragraph of each article.

    Clark et al. 2019, section 2: two consecutive paragraphs of Wikipedia as BERT's two segments.
    Each pair comes as (first, between, second): a line break stands between the two, with the
    headings of sections that begin there, and the three in a row are one passage of the article.
    """
    first: str | None = None
    headings: list[str] = []  # behind the first paragraph
    for line in paragraphs:
        text = line.strip()
        if not text:
            continue
        if text.startswith("= ") and text.endswith(" ="):
            headings.append(text)
            if not text.startswith("= = "):  # an article's title, not a section's
                first = None
        elif first is None:
            first = text
            headings.clear()
        else:
            yield first, "\n".join(["", *headings, ""]), text
            first = None


# Formats with a record in each row: JSON objects, parallel text, STS-B, tables and Parquet.


def by_row(
    rows_of: Callable[[Source, ReadOptions], Iterable[Any]],
    fields_of: Callable[[Any, ReadOptions], Fields],
) -> Reader:
    """Make a reader of what gives a file's rows, and what gives the fields of one."""

    def read(source: Source, options: ReadOptions) -> Iterator[Fields]:
        for row in rows_of(source, options):
            fields = {"unreadable": source.problem} if source.problem else fields_of(row, options)
            if fields:
                yield fields

    return read


def _lines(source: Source, options: ReadOptions) -> Iterator[str]:
    return (line for line in source if line.strip())


def _json_line(line: str, options: ReadOptions) -> Fields:
    """Text, words with entities, or tokens of a JSON object."""
    try:
        row = parse_json(line)
    except ValueError as error:
        reason = getattr(error, "msg", None) or error
        raise InputError(f"broken JSON ({reason})") from error
    if not isinstance(row, dict):
        raise InputError(
            f'{_kind_of(row)} instead of an object such as {{"text": "…"}} or {{"words": […]}}'
        )
    return row_fields(row, options)


#: Between a source and its target, as files for word alignment have them.
SEPARATOR = "|||"

#: The words of a source and those of its target.
WordPair = tuple[tuple[str, ...], tuple[str, ...]]


def _parallel_line(line: str, options: ReadOptions) -> Fields:
    """A source and its target, both as words that spaces separate."""
    pair = split_pair(line)
    if pair is None:
        raise InputError(
            "not a line of parallel text, which is a source and its target with one "
            f"{SEPARATOR} between them"
        )
    return {"words": pair[0], "second_words": pair[1]} if all(pair) else {}


def split_pair(line: str) -> WordPair | None:
    """The words on both sides of a line's separator; None unless there is exactly one."""
    sides = [tuple(side.split()) for side in line.split(SEPARATOR)]
    return (sides[0], sides[1]) if len(sides) == 2 else None


def has_target(record: Record) -> bool:
    """Whether a record has a second text, which is a target to an encoder–decoder."""
    if isinstance(record.text, str):
        return SEPARATOR in record.text
    return record.text is not None or record.second_words is not None


#: Columns of STS-B's own files that a record may keep beside its sentences, by their places.
STSB_COLUMNS = {"genre": 0, "file": 1, "year": 2, "id": 3, "score": 4}


def _stsb_line(line: str, options: ReadOptions) -> Fields:
    """A pair of sentences of STS-B: seven columns between tabs or more, and nothing is quoted.

    Cer et al. 2017: genre, file, year, id, score from 0 to 5, the two sentences, and sometimes
    where they come from.
    """
    row = [column.strip() for column in line.split("\t")]
    if not _is_stsb(row):
        raise InputError(
            "not a line of STS-B, which has genre, file, year, id, a score from 0 to 5 and two "
            "sentences, separated by tabs"
        )
    extra = {name: row[STSB_COLUMNS[name]] for name in options.extra}
    return {"text": (row[5], row[6]), "extra": extra} if row[5] and row[6] else {}


def _is_stsb(row: list[str]) -> bool:
    """Whether there are seven columns, and a score from 0 to 5 where one stands."""
    try:
        return 0 <= float(row[STSB_COLUMNS["score"]]) <= 5 and len(row) > 6
    except (IndexError, ValueError):
        return False


def _table_rows(
    delimiter: str, source: Source, options: ReadOptions
) -> Iterator[Mapping[str, str]]:
    """The rows of a table with a header, whose fields may be quoted."""

    def rows_of(lines: Source) -> Iterator[list[str]]:
        try:
            yield from csv.reader(lines, delimiter=delimiter, strict=True)
        except csv.Error as error:
            raise InputError(
                f'{error}; check its double quotes, or save the data as JSONL lines {{"text": "…"}}'
            ) from error

    # A reading that begins further down needs the names of the columns, too.
    rows = rows_of(source)
    top = rows_of(Source(source.path)) if source.position.offset else rows
    header = [name.strip() for name in next(top, [])]
    if header:
        needed_columns(header, options, structured=False)
    source.problem = None  # an odd name of a column spoils no row
    for row in filter(None, rows):
        if len(row) != len(header):
            raise InputError(
                f"{len(row)} fields where the header has {len(header)}; put fields that hold "
                "the separator in double quotes"
            )
        yield dict(zip(header, row, strict=True))


def _parquet_rows(source: Source, options: ReadOptions) -> Iterator[Mapping[str, Any]]:
    """The rows of a Parquet file, a batch at a time and only the columns that are needed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source.unit, position = "row", source.position
    try:
        # The buffer lets a large row group pass page by page.
        with pq.ParquetFile(source.path, buffer_size=_BUFFER, pre_buffer=False) as file:
            needed = needed_columns(file.schema_arrow.names, options)
            groups, skipped = _groups_from(file.metadata, position.number)
            for batch in file.iter_batches(batch_size=512, columns=needed, row_groups=groups):
                behind = batch.slice(skipped)
                skipped -= batch.num_rows - behind.num_rows
                yield from position.count(behind.to_pylist())
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"it is not a Parquet file, or is damaged ({reason_of(error)})") from error


def _groups_from(metadata: Any, row: int) -> tuple[list[int], int]:
    """List the row groups from the one that holds a row, and the rows before it in that one."""
    first = 0
    while first < metadata.num_row_groups and row >= metadata.row_group(first).num_rows:
        row -= metadata.row_group(first).num_rows
        first += 1
    return list(range(first, metadata.num_row_groups)), row


# Column files of the CoNLL shared tasks: a word per line, its tag in the last column.


CONLL_SUFFIXES = (".conll", ".train", ".testa", ".testb", ".bio", ".iob", ".iob2", ".iobes")
_DOCUMENT = "-DOCSTART-"
_TAG = re.compile(r"O|[BIESLU]-(\S+)")
# BILOU and IOBES are one scheme in other letters.
_LETTERS = {"L": "E", "U": "S"}


def read_conll(source: Source, options: ReadOptions) -> Iterator[Fields]:
    """Read words and entities of each sentence; `-DOCSTART-` lines are not sentences."""
    words: list[str] = []
    tags: list[str] = []
    width: int | None = None
    for line in chain(source, [""]):
        fields = _columns(line)
        if not fields or fields[0] == _DOCUMENT:
            if words:
                yield {"words": tuple(words), "entities": entities(tags)}
            words, tags = [], []
            continue
        width = width or len(fields)
        if len(fields) != width or width < 2:
            before = f"the lines before have {width}" if width > 1 else "two are needed"
            raise InputError(
                f"{len(fields)} columns where {before}; each line is a word, further columns, and "
                "its entity tag"
            )
        if not _TAG.fullmatch(fields[-1]) and source.problem is None:
            raise InputError(
                f"the last column is {fields[-1]!r}, not an entity tag such as O, B-PER or I-PER"
            )
        words.append(fields[0])
        tags.append(fields[-1])


def entities(tags: Iterable[str]) -> tuple[Entity, ...]:
    """Find the entity spans in a sentence's tags: IOB1, IOB2, IOE1, IOE2, IOBES or BILOU.

    These are the chunk borders of the shared tasks' own scorer (conlleval). In IOB1 a B- stands
    only where an entity follows another of the same label; an I- after O or after another
    label begins an entity as well.
    """
    spans: list[Entity] = []
    start = 0
    letter, label = "O", ""
    for index, tag in enumerate([*tags, "O"]):
        new_letter, _, new_label = tag.partition("-")
        new_letter = _LETTERS.get(new_letter, new_letter)
        # A label that changes ends the entity even without a B-.
        goes_on = letter in ("B", "I") and new_letter in ("I", "E") and new_label == label
        if not goes_on:
            if letter != "O":
                spans.append(Entity(start, index, label))
            start = index
        letter, label = new_letter, new_label
    return tuple(spans)


def _looks_like_columns(lines: Iterable[str]) -> bool:
    """Whether a file's first lines are words with entity tags rather than prose."""
    width, count = 0, 0
    for row in filter(None, map(_columns, islice(lines, 40))):
        if row[0] == _DOCUMENT:
            return True
        width = width or len(row)
        if len(row) != width or width < 2 or not _TAG.fullmatch(row[-1]):
            return False
        count += 1
    # Two lines of prose may end like tags by chance; a tagged sentence is longer.
    return count >= 3


def _columns(line: str) -> list[str]:
    """Split a line into columns, at spaces and tabs only: a word may hold U+00A0."""
    return [field for field in re.split(r"[ \t\r\n]+", line) if field]


# The file formats: which reader a file takes, by its suffix or its first lines.


READERS: dict[str, Reader] = {
    "text": read_text,
    "jsonl": by_row(_lines, _json_line),
    "csv": by_row(partial(_table_rows, ","), partial(row_fields, structured=False)),
    "tsv": by_row(partial(_table_rows, "\t"), partial(row_fields, structured=False)),
    "parquet": by_row(_parquet_rows, row_fields),
    "conll": read_conll,
    "wikitext": read_wikitext,
    "stsb": by_row(_lines, _stsb_line),
    "parallel": by_row(_lines, _parallel_line),
}
SUFFIXES = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    **dict.fromkeys(CONLL_SUFFIXES, "conll"),
}
#: Formats that no suffix tells; a file is read so where the name stands before it.
EXPLICIT = ("parallel",)
_TABLES = ("jsonl", "csv", "tsv", "parquet")


def format_of(path: Path) -> str:
    """Tell a file's format by its suffix or its first lines."""
    by_suffix = SUFFIXES.get(path.suffix.lower())
    with located(repr(str(path))):
        if by_suffix in ("csv", "tsv"):
            return "stsb" if _is_stsb(next(iter(Source(path)), "").split("\t")) else by_suffix
        if by_suffix not in ("text", None):
            return by_suffix
        try:
            if _looks_like_columns(Source(path)):
                return "conll"
        except InputError:
            if by_suffix:
                raise
    if by_suffix:
        return by_suffix
    raise InputError(
        f"cannot tell the format of {str(path)!r} by its suffix {path.suffix!r}; rename it to one "
        f"of: {', '.join(SUFFIXES)} (or name the data set: wikitext:{path.name})"
    )


def check_options(options: ReadOptions, path: Path, kind: str) -> None:
    """Refuse an option that this file's format would ignore."""
    if kind not in _TABLES:
        offered = tuple(STSB_COLUMNS) if kind == "stsb" else ()
        require(
            not (options.column or options.pair_column),
            f"{str(path)!r} has no columns to choose (it is read as {kind}); leave column and "
            "pair_column out, or give a .jsonl, .csv, .tsv or .parquet file",
        )
        for name in options.extra:
            require(
                name in offered,
                f"{str(path)!r} has no column {name!r} (read as {kind}, it has "
                f"{_listed(offered)}); leave it out, or give a .jsonl, .csv, .tsv or .parquet file",
            )
    require(
        not options.paragraphs or kind == "text",
        f"paragraphs are for .txt files and {str(path)!r} is read as {kind}; leave it out",
    )
