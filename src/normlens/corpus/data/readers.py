"""From a data specification to a data set: files, patterns, named data sets, tables in memory."""

from __future__ import annotations

import glob
import hashlib
import importlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from normlens.corpus.data import formats
from normlens.corpus.data.formats import (
    READERS,
    Fields,
    entities,
    needed_columns,
    paragraph_pairs,
    row_fields,
)
from normlens.corpus.data.records import (
    START,
    Cursor,
    Data,
    Mark,
    Reading,
    ReadOptions,
    Record,
    Source,
    located,
    records,
    sha256_of,
    written,
)
from normlens.errors import InputError, MissingDependencyError, reason_of, system_reason
from normlens.inputs import as_list, is_table

# Data in files: their records from any mark on, and their fingerprint.


#: Raised whenever files give other records than before.
_VERSION = 2


@dataclass(frozen=True)
class DataFile:
    """One file of a data set: where it lies, how records name it, how it is read."""

    path: Path
    name: str
    format: str


class FileData(Data):
    """Sequences in files, read as they are asked for."""

    seeks = True

    def __init__(
        self, name: str, files: list[DataFile], options: ReadOptions, limit: int | None = None
    ):
        super().__init__(name, limit)
        self.files = tuple(files)
        self.options = options

    def reading(self, start: Mark = START) -> FileReading:
        return FileReading(self, start)

    def stamps(self) -> list[tuple[int, int]]:
        stamps = []
        for file in self.files:
            with _readable(file.path):
                seen = file.path.stat()
                stamps.append((seen.st_size, seen.st_mtime_ns))
        return stamps

    def _fingerprint(self) -> str:
        described = {
            "version": _VERSION,
            "options": asdict(self.options),
            "limit": self.limit,
            "files": [[file.name, file.format, _digest(file.path)] for file in self.files],
        }
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()


class FileReading(Reading):
    """Records of files from a mark on."""

    def __init__(self, data: FileData, start: Mark):
        self.data = data
        super().__init__(self._made(start), start, Cursor(start))

    def _made(self, start: Mark) -> Iterator[Record]:
        for number, file in enumerate(self.data.files[start.file :], start.file):
            source = Source(file.path, start if number == start.file else START)
            self.file, self.cursor, self.count = number, source, source.start.record
            with _readable(file.path):
                rows = READERS[file.format](source, self.data.options)
                yield from records(rows, file.name, self.count, source.place)
                if not self.count:
                    raise InputError(f"{str(file.path)!r} holds no sequence; give a file with text")


def _digest(path: Path) -> str:
    with _readable(path):
        return sha256_of(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> InputError:
    """The error of a file that the system does not let be read."""
    return InputError(
        f"cannot read {str(path)!r}: {system_reason(error)}; check the path and its permissions"
    )


# A small data set inside the package: English sentences and passages with named entities.


#: JSONL files with words and entities; `open_data("sample")` reads them.
FOLDER = Path(__file__).with_name("sample_files")

#: What the entities are: people, places, organisations, and other names (works, peoples, events).
LABELS = ("PER", "LOC", "ORG", "MISC")


# Data of numbered rows: data sets of the papers, from the Hugging Face hub, and tables in memory.


class RowData(Data):
    """Sequences made of rows, which are counted as they are read."""

    seeks = True

    def reading(self, start: Mark = START) -> Reading:
        cursor = Cursor(start)
        fields = self.fields(cursor.count(self.rows(start.number)))
        made = records(
            fields, self.name, start.record, lambda: f"{self.name!r}, row {cursor.number - 1}"
        )
        return Reading(made, start, cursor)

    @abstractmethod
    def rows(self, first: int) -> Iterable[Any]:
        """The rows from one of them on."""

    @abstractmethod
    def fields(self, rows: Iterable[Any]) -> Iterator[Fields]:
        """What the records of rows are made of."""


def _conll2003(rows: Iterable[Any], features: Any) -> Iterator[Fields]:
    names = features["ner_tags"].feature.names
    for row in rows:
        if row["tokens"]:
            tags = [names[tag] for tag in row["ner_tags"]]
            yield {"words": tuple(row["tokens"]), "entities": entities(tags)}


def _wikitext(rows: Iterable[Any], features: Any) -> Iterator[Fields]:
    for first, between, second in paragraph_pairs(row["text"] for row in rows):
        yield {"text": (first, second), "between": between}


@dataclass(frozen=True)
class Named:
    """Where a data set lies on the hub, and how its rows and its local files are read."""

    hub: str
    config: str | None
    example: str  # a local file of it
    format: str | None = None  # of local files; None: as their suffix says
    revision: str | None = None
    split: str = "validation"
    #: the columns with the text, where they have no usual name, or what makes fields of rows
    columns: ReadOptions | Callable[[Iterable[Any], Any], Iterator[Fields]] | None = None
    extra: tuple[str, ...] = ()  # columns that a record may keep beside its text


NAMED = {
    "sst2": Named("stanfordnlp/sst2", None, "dev.tsv", extra=("label",)),
    "conll2003": Named(
        "eriktks/conll2003",
        None,
        "eng.testa",
        "conll",
        # The data set's main branch is a loading script, which datasets 4 no longer runs.
        revision="refs/convert/parquet",
        columns=_conll2003,
    ),
    "wikitext": Named(
        "Salesforce/wikitext",
        "wikitext-2-raw-v1",
        "wiki.valid.raw",
        "wikitext",
        columns=_wikitext,
    ),
    "stsb": Named(
        "mteb/stsbenchmark-sts",
        None,
        "sts-dev.csv",
        "stsb",
        columns=ReadOptions("sentence1", "sentence2"),
        extra=("score",),
    ),
}


class HubData(RowData):
    """A split that the `datasets` library has loaded; its rows stay in their files until read."""

    def __init__(self, name: str, rows: Any, limit: int | None = None, extra: tuple[str, ...] = ()):
        super().__init__(name, limit)
        self.split, self.extra = rows, extra

    def rows(self, first: int) -> Iterable[Any]:
        return rows_from(self.split, first)

    def fields(self, rows: Iterable[Any]) -> Iterator[Fields]:
        columns = NAMED[self.name].columns
        if callable(columns):
            return columns(rows, self.split.features)
        options = replace(columns or ReadOptions(), extra=self.extra)
        return filter(None, (row_fields(row, options) for row in rows))

    def _fingerprint(self) -> str:
        limit = [] if self.limit is None else [str(self.limit)]
        return "-".join([str(self.split._fingerprint), *limit, *self.extra])


def rows_from(rows: Any, first: int) -> Iterable[Any]:
    """The rows of a table of `datasets` from one of them on."""
    return rows.select(range(first, len(rows))) if first else rows


def open_named(name: str, limit: int | None = None, extra: tuple[str, ...] = ()) -> HubData:
    """Load the validation split of a named data set."""
    dataset = NAMED[name]
    for column in extra:
        if column not in dataset.extra:
            offered = ", ".join(dataset.extra) or "none"
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


#: What runs call data in memory; an error of a later run can then say to pass it again.
NAME = "data in memory"
_BATCH = 512


class MemoryData(RowData):
    """Sequences of an object in memory; rows without a text are left out.

    Texts are kept as records. Of a table (pandas, pyarrow, `datasets`) the rows become records
    when they are asked for, a batch at a time and only the columns that are needed: a table of
    `datasets` may be larger than the memory.
    """

    def __init__(self, given: Any, options: ReadOptions = ReadOptions(), limit: int | None = None):
        super().__init__(NAME, limit)
        self.table, self.options = given, options
        self.frame = hasattr(given, "iloc")
        self._held: tuple[Record, ...] | None = None
        if is_table(given):
            with located(NAME):
                names = given.columns if self.frame else given.column_names
                self.needed = needed_columns(map(str, names), options)
            # A table of `datasets` that is streamed can only be read from its first row.
            self.seeks = self.frame or hasattr(given, "to_pylist") or hasattr(given, "select")
        else:
            cursor, self.table = Cursor(), None
            texts = self.fields(cursor.count(_texts(given, options)))
            self._held = tuple(
                records(texts, NAME, 0, lambda: f"{NAME!r}, item {cursor.number - 1}")
            )
        if next(iter(self), None) is None:
            raise InputError(f"the {type(given).__name__} holds no sequence; give one with text")

    def reading(self, start: Mark = START) -> Reading:
        return super().reading(start) if self._held is None else Reading(iter(self._held), start)

    def fields(self, rows: Iterable[Any]) -> Iterator[Fields]:
        return filter(None, (row_fields(row, self.options) for row in rows))

    def rows(self, first: int) -> Iterator[dict[str, Any]]:
        for row in self._from(first):
            yield {name: plain(row[name]) for name in self.needed}

    def _from(self, first: int) -> Iterator[dict[str, Any]]:
        if not (self.frame or hasattr(self.table, "to_pylist")):  # datasets
            rows = self.table.select_columns(self.needed)
            yield from rows_from(rows, first) if self.seeks else islice(rows, first, None)
            return
        for start in range(first, len(self.table), _BATCH):
            if self.frame:
                batch = self.table.iloc[start : start + _BATCH][self.needed]
                yield from batch.to_dict("records")
            else:
                yield from self.table.select(self.needed).slice(start, _BATCH).to_pylist()

    def _fingerprint(self) -> str:
        described = hashlib.sha256(str(self.limit).encode())
        for record in self:
            described.update(written(record))
        return described.hexdigest()


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


def is_in_memory(given: Any) -> bool:
    """Whether data is an object, and not a name, a path, or an open data set."""
    return not isinstance(given, (str, Data)) and not hasattr(given, "__fspath__")


def _texts(given: Any, options: ReadOptions) -> list[Fields]:
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
    return [{"text": plain(text)} for text in texts]


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
