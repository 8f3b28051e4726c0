"""From a data specification to a data set: files, patterns, named data sets, tables in memory."""

from __future__ import annotations

import glob
import hashlib
import importlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from normlens.corpus.data import formats
from normlens.corpus.data.formats import (
    READERS,
    entities,
    needed_columns,
    paragraph_pairs,
    row_fields,
)
from normlens.corpus.data.records import (
    Data,
    Fields,
    Mark,
    Position,
    ReadOptions,
    Record,
    Source,
    located,
    sha256_of,
    written,
)
from normlens.errors import InputError, MissingDependencyError, reason_of, system_reason
from normlens.inputs import as_list, is_table

# Data in files: their records from any mark on, and their fingerprint.


#: Raised whenever files give other records than before.
_VERSION = 2
#: Rows of a table that are read at a time.
_BATCH = 512


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

    def records_from(self, position: Position) -> Iterator[Record]:
        for number in range(position.file, len(self.files)):
            file = self.files[number]
            if number > position.file:
                vars(position).update(Mark(number)._asdict())
            source = Source(file.path, position)
            with _readable(file.path):
                yield from source.records(READERS[file.format](source, self.options), file.name)
            if not position.record:
                raise InputError(f"{str(file.path)!r} holds no sequence; give a file with text")

    def stamps(self) -> list[tuple[int, int]]:
        stamps = []
        for file in self.files:
            with _readable(file.path):
                seen = file.path.stat()
            stamps.append((seen.st_size, seen.st_mtime_ns))
        return stamps

    def _fingerprint(self) -> str:
        digests = []
        for file in self.files:
            with _readable(file.path):
                digests.append([file.name, file.format, sha256_of(file.path)])
        described = {
            "version": _VERSION,
            "options": asdict(self.options),
            "limit": self.limit,
            "files": digests,
        }
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()


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


# Data sets of the papers, from the Hugging Face hub.


#: Makes the fields of records of a table's rows; the table's `features` describe its columns.
RowReader = Callable[[Iterable[Any], Any], Iterator[Fields]]


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
    #: with the text and with the second of a pair, where they have no usual names
    columns: tuple[str | None, str | None] = (None, None)
    read: RowReader | None = None  # what makes fields of rows, where a row is no record
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
        read=_conll2003,
    ),
    "wikitext": Named(
        "Salesforce/wikitext",
        "wikitext-2-raw-v1",
        "wiki.valid.raw",
        "wikitext",
        read=_wikitext,
    ),
    "stsb": Named(
        "mteb/stsbenchmark-sts",
        None,
        "sts-dev.csv",
        "stsb",
        columns=("sentence1", "sentence2"),
        extra=("score",),
    ),
}


def open_named(name: str, limit: int | None = None, extra: tuple[str, ...] = ()) -> MemoryData:
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
    first, second = dataset.columns
    reading = ReadOptions(first, second, extra=extra)
    return MemoryData(rows, reading, limit, name, dataset.read)


# Tables and lists in memory, and tables of `datasets`, which may be larger than the memory.


#: What runs call data in memory; an error of a later run can then say to pass it again.
NAME = "data in memory"


class MemoryData(Data):
    """Sequences of an object in memory; rows without a text are left out.

    Rows of a table (pandas, pyarrow, `datasets`) become records when they are asked for, and only
    the columns that are needed are read.
    """

    def __init__(
        self,
        given: Any,
        options: ReadOptions = ReadOptions(),
        limit: int | None = None,
        name: str = NAME,
        read: RowReader | None = None,
    ):
        super().__init__(name, limit)
        self.options, self.read = options, read
        if is_table(given):
            self.table, self.unit = given, "row"
            names = list(map(str, given.columns if hasattr(given, "iloc") else given.column_names))
            with located(name):
                self.needed = names if read else needed_columns(names, options)
        else:
            self.table, self.unit, self.needed = _texts(given, options), "item", ["text"]
        # A table of `datasets` that is streamed can only be read from its first row.
        self.seeks = hasattr(self.table, "__len__")
        if next(iter(self), None) is None:
            what = f"the {type(given).__name__}" if name == NAME else repr(name)
            raise InputError(f"{what} holds no sequence; give one with text")

    def records_from(self, position: Position) -> Iterator[Record]:
        rows = position.count(self._rows(position.number))
        if self.read is not None:
            made = self.read(rows, self.table.features)
        else:
            made = filter(None, (row_fields(row, self.options) for row in rows))
        with located(lambda: f"{self.name!r}, {self.unit} {position.number - 1}"):
            for fields in made:
                yield Record(f"{self.name}:{position.record}", **fields)

    def _rows(self, first: int) -> Iterator[dict[str, Any]]:
        """The rows from one of them on."""
        rows: Iterable[Any]
        if isinstance(self.table, list):
            rows = ({"text": text} for text in self.table[first:])
        elif hasattr(self.table, "iloc"):
            names = list(map(str, self.table.columns))
            columns = self.table.iloc[first:, [names.index(name) for name in self.needed]]
            values = columns.itertuples(index=False, name=None)
            rows = (dict(zip(self.needed, row, strict=True)) for row in values)
        elif hasattr(self.table, "to_batches"):
            batches = self.table.select(self.needed).slice(first).to_batches(_BATCH)
            rows = (row for batch in batches for row in batch.to_pylist())
        else:
            columns = self.table.select_columns(self.needed)
            rows = columns.skip(first) if first else columns
        for row in rows:
            yield {name: plain(row[name]) for name in self.needed}

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


def _texts(given: Any, options: ReadOptions) -> list[Any]:
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
    return texts


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
        with _readable(path):
            if path.stat().st_size == 0:
                raise InputError(f"{str(path)!r} is empty; give a file with text")
            file = DataFile(path, shown, kind or formats.format_of(path))
        formats.check_options(options, path, file.format)
        files.append(file)
    return FileData(name or prefix + Path(spec).name, files, options, limit)


def _files(spec: str | Path, any_suffix: bool) -> list[tuple[Path, str]]:
    """List the files of a specification, in order, each with its name inside the data set."""
    files = []
    try:
        if str(spec).strip():
            files = _look(Path(spec).expanduser(), any_suffix)
    except InputError:
        raise
    except PermissionError as error:
        raise unreadable(Path(spec), error) from error
    except (OSError, ValueError, RuntimeError):
        pass  # a name that no file can have
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
    if not glob.has_magic(str(path)):
        return []
    # Files in several folders may have one name, so records carry the part that varies.
    fixed = Path(*takewhile(lambda part: not glob.has_magic(part), path.parts[:-1]))
    matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
    named_files = [(p, p.relative_to(fixed).as_posix()) for p in matches if p.is_file()]
    if not named_files:
        raise InputError(f"no file matches {str(path)!r}; check the pattern")
    return named_files
