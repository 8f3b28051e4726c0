"""From a data specification to a data set: files, patterns, named data sets, tables in memory."""

from __future__ import annotations

import glob
import hashlib
import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from normlens.corpus.data import files as formats
from normlens.corpus.data import text_files
from normlens.corpus.data.files import DataFile, FileData, unreadable
from normlens.corpus.data.records import (
    REVISIONS,
    START,
    Data,
    Mark,
    Reading,
    ReadOptions,
    Record,
    located,
    written,
)
from normlens.corpus.data.tables import needed_columns, row_fields
from normlens.corpus.data.text_files import paragraph_pairs
from normlens.errors import InputError, MissingDependencyError, reason_of
from normlens.inputs import as_list, is_table

# A small data set inside the package: English sentences and passages with named entities.


#: JSONL files with words and entities; `open_data("sample")` reads them.
FOLDER = Path(__file__).with_name("sample_files")

#: What the entities are: people, places, organisations, and other names (works, peoples, events).
LABELS = ("PER", "LOC", "ORG", "MISC")


# Data sets of the papers by name, from the Hugging Face hub.


@dataclass(frozen=True)
class Named:
    """Where a data set lies on the hub, and how its local files are read."""

    hub: str
    config: str | None
    example: str  # a local file of it
    format: str | None  # of local files; None: as their suffix says
    revision: str | None = None
    split: str = "validation"


NAMED = {
    "sst2": Named("stanfordnlp/sst2", None, "dev.tsv", None),
    "conll2003": Named(
        "eriktks/conll2003",
        None,
        "eng.testa",
        "conll",
        # The data set's main branch is a loading script, which datasets 4 no longer runs.
        revision="refs/convert/parquet",
    ),
    "wikitext": Named("Salesforce/wikitext", "wikitext-2-raw-v1", "wiki.valid.raw", "wikitext"),
    "stsb": Named("mteb/stsbenchmark-sts", None, "sts-dev.csv", "stsb"),
}


class HubData(Data):
    """A split that the `datasets` library has loaded; its rows stay in their files until read."""

    seeks = True

    def __init__(self, name: str, rows: Any, limit: int | None = None, extra: tuple[str, ...] = ()):
        super().__init__(name, limit)
        self.rows = rows
        self.extra = extra

    def reading(self, start: Mark = START, *, fingerprint: bool = False) -> Reading:
        return _RowReading(self, start)

    def quick_fingerprint(self) -> str:
        return self.fingerprint

    def _fingerprint(self) -> str:
        fingerprint = str(self.rows._fingerprint)
        parts = [fingerprint, *([] if self.limit is None else [str(self.limit)]), *self.extra]
        if self.name in REVISIONS:
            parts.append(f"reader {REVISIONS[self.name]}")
        return "-".join(parts)


class _RowReading(Reading):
    """Records of a split from one of its rows on."""

    def __init__(self, data: HubData, start: Mark):
        self.rows = _Rows(data.rows, start.number)
        super().__init__(self._made(data, start.record))
        self.count = start.record

    def _made(self, data: HubData, first: int) -> Iterator[Record]:
        readers = {"sst2": _sst2, "conll2003": _conll2003, "wikitext": _wikitext, "stsb": _stsb}
        for index, fields in enumerate(readers[data.name](self.rows), first):
            kept = fields.pop("extra", {})
            extra = {name: kept[name] for name in data.extra}
            yield Record(id=f"{data.name}:{index}", extra=extra, **fields)

    @property
    def mark(self) -> Mark:
        return Mark(number=self.rows.number, record=self.count)


class _Rows:
    """Rows from one of them on, counted as they pass."""

    def __init__(self, rows: Any, first: int):
        self._rows, self._first = rows, first
        self.features = rows.features
        self.number = first

    def __iter__(self) -> Iterator[Any]:
        for row in rows_from(self._rows, self._first):
            self.number += 1
            yield row


def rows_from(rows: Any, first: int) -> Iterable[Any]:
    """The rows of a table of `datasets` from one of them on."""
    return rows.select(range(first, len(rows))) if first else rows


#: Columns of the data sets that a record may keep beside its text.
_EXTRA = {"sst2": ("label",), "stsb": ("score",)}


def open_named(name: str, limit: int | None = None, extra: tuple[str, ...] = ()) -> HubData:
    """Load the validation split of a named data set."""
    dataset = NAMED[name]
    for column in extra:
        if column not in _EXTRA.get(name, ()):
            offered = ", ".join(_EXTRA.get(name, ())) or "none"
            raise InputError(f"{name} has no column {column!r} beside its text; it has: {offered}")
    local = f"--data {name}:path/{dataset.example}"
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise MissingDependencyError(
            f"loading {name!r} from the hub needs the datasets package; run: "
            f"pip install 'normlens[data]' (or give a local file: {local})"
        ) from error
    options = {} if dataset.revision is None else {"revision": dataset.revision}
    try:
        rows = datasets.load_dataset(
            dataset.hub, dataset.config, split=dataset.split, streaming=False, **options
        )
    except Exception as error:  # the hub, the network and the cache fail in many ways
        raise InputError(
            f"cannot load {name!r} ({dataset.hub}) from the Hugging Face hub: {reason_of(error)}; "
            f"give a local file instead: {local}"
        ) from error
    return HubData(name, rows, limit, extra)


def _sst2(rows: Any) -> Iterator[dict[str, Any]]:
    for row in rows:
        if text := row["sentence"].strip():
            yield {"text": text, "extra": {"label": str(row.get("label"))}}


def _stsb(rows: Any) -> Iterator[dict[str, Any]]:
    for row in rows:
        pair = (row["sentence1"].strip(), row["sentence2"].strip())
        if all(pair):
            yield {"text": pair, "extra": {"score": str(row["score"])}}


def _conll2003(rows: Any) -> Iterator[dict[str, Any]]:
    names = rows.features["ner_tags"].feature.names
    for row in rows:
        if row["tokens"]:
            tags = [names[tag] for tag in row["ner_tags"]]
            yield {"words": tuple(row["tokens"]), "entities": text_files.entities(tags)}


def _wikitext(rows: Any) -> Iterator[dict[str, Any]]:
    for first, between, second in paragraph_pairs(row["text"] for row in rows):
        yield {"text": (first, second), "between": between}


# Rows of a table in memory: of pandas, of pyarrow, or of `datasets`.


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


# Data that a user has in memory: a list of texts, a column, a table.


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


# From a data specification to a data set: files, folders, patterns and named data sets.


def open_data(
    spec: str | Path,
    *,
    column: str | None = None,
    pair_column: str | None = None,
    paragraphs: bool = False,
    limit: int | None = None,
    extra: tuple[str, ...] = (),
) -> Data:
    """Open the data set that `spec` names, in a fixed order and with stable record ids.

    `spec` is a file, a folder, a pattern ("data/*.jsonl"), a named data set ("sample", "sst2",
    "conll2003", "wikitext", "stsb") or such a name with a local file ("sst2:path/dev.tsv");
    "parallel:path/file" has a source and its target in each line (``source ||| target``).
    `column` and `pair_column` choose in tables; `paragraphs` takes blank-line-separated paragraphs
    of a .txt file as sequences; `limit` takes the first ones only; `extra` names further columns
    that records keep. Rows with a blank text are left out.
    """
    data = find_data(spec, ReadOptions(column, pair_column, paragraphs, tuple(extra)), limit)
    # What can be known about the file should be said now, not when a run has begun.
    first = next(iter(data), None)
    if first is None:
        raise InputError(f"{data.name!r} holds no sequence; give one with text")
    if first.unreadable and all(record.unreadable for record in data):
        raise InputError(f"no sequence of {data.name!r} can be read; {first.unreadable}")
    return data


def find_data(spec: str | Path, options: ReadOptions, limit: int | None = None) -> Data:
    """The data set that `spec` names, as `open_data` opens it; no record is read yet."""
    name, colon, rest = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    if spec == "sample":
        return _open_files(FOLDER, options, limit, name="sample")
    if name in NAMED and not colon:
        if options != ReadOptions(extra=options.extra):
            raise InputError(
                f"{name} is read as published; leave column, pair_column and paragraphs out"
            )
        return open_named(name, limit, options.extra)
    if name in NAMED:
        kind = NAMED[name].format
        return _open_files(rest, options, limit, kind=kind, prefix=f"{name}:")
    if name in formats.EXPLICIT and colon:
        return _open_files(rest, options, limit, kind=name, prefix=f"{name}:")
    return _open_files(spec, options, limit)


def _open_files(
    spec: str | Path,
    options: ReadOptions,
    limit: int | None,
    *,
    kind: str | None = None,
    name: str | None = None,
    prefix: str = "",
) -> FileData:
    files = []
    for path, shown in _files(spec, any_suffix=kind is not None):
        try:
            if path.stat().st_size == 0:
                raise InputError(f"{str(path)!r} is empty; give a file with text")
            file = DataFile(path, shown, kind or formats.format_of(path))
        except OSError as error:
            raise unreadable(path, error) from error
        formats.check_options(options, path, file.format)
        files.append(file)
    return FileData(name or prefix + Path(spec).name, files, options, limit)


def _files(spec: str | Path, any_suffix: bool) -> list[tuple[Path, str]]:
    """List the files of a specification, in order, each with its name inside the data set."""
    try:
        files = _look(Path(spec).expanduser(), any_suffix) if str(spec).strip() else []
    except InputError:
        raise
    except PermissionError as error:
        raise unreadable(Path(spec), error) from error
    except (OSError, ValueError, RuntimeError):
        files = []  # a name that no file can have
    if files:
        return sorted(files, key=lambda item: item[1])
    names = ", ".join(["sample", *NAMED])
    raise InputError(
        f"there is no data at {str(spec)[:200]!r}; give a file, a folder, a pattern such as "
        f"'data/*.jsonl', or one of: {names}"
    )


def _look(path: Path, any_suffix: bool) -> list[tuple[Path, str]]:
    if path.is_file():
        return [(path, path.name)]
    if path.is_dir():
        inside = [p for p in path.iterdir() if p.is_file() and not p.name.startswith(".")]
        usable = [p for p in inside if any_suffix or p.suffix.lower() in formats.SUFFIXES]
        if not usable:
            raise InputError(
                f"the folder {str(path)!r} holds no data file; give one with files that end in "
                f"{', '.join(formats.SUFFIXES)}"
            )
        return [(p, p.name) for p in usable]
    if glob.has_magic(str(path)):
        matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
        root = _fixed_part(path)
        # Files in several folders may have one name, so records carry the part that varies.
        named_files = [(p, p.relative_to(root).as_posix()) for p in matches if p.is_file()]
        if not named_files:
            raise InputError(f"no file matches {str(path)!r}; check the pattern")
        return named_files
    return []


def _fixed_part(pattern: Path) -> Path:
    """Take the folder that a pattern starts in: its parts before the first wildcard."""
    parts = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        parts.append(part)
    return Path(*parts)
