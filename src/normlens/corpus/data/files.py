"""Data in files: which reader a file takes, its records from any mark on, fingerprint and index."""

from __future__ import annotations

import hashlib
import json
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normlens.corpus.data import text_files
from normlens.corpus.data.records import (
    REVISIONS,
    START,
    Data,
    Lines,
    Located,
    Mark,
    Reading,
    ReadOptions,
    Record,
    Source,
    sha256_of,
    unless,
    written,
)
from normlens.corpus.data.tables import read_csv, read_jsonl, read_parquet, read_tsv
from normlens.corpus.data.text_files import (
    looks_like_stsb,
    read_parallel,
    read_stsb,
    read_text,
    read_wikitext,
)
from normlens.errors import InputError, system_reason

# The file formats: which reader a file takes, by its suffix or its first lines.


def read_conll(source: Source, options: ReadOptions) -> Iterator[Located]:
    """Read sentences of a CoNLL column file, with their entities."""
    lines = Lines(source)
    sentences = text_files.sentences(lines, repr(str(source.path)), source.number + 1)
    for index, (words, entities) in enumerate(sentences, source.start.record + 1):
        fields = unless(lines.problem(), words=words, entities=entities)
        yield f"sentence {index}", fields


READERS: dict[str, Callable[[Source, ReadOptions], Iterator[Located]]] = {
    "text": read_text,
    "jsonl": read_jsonl,
    "csv": read_csv,
    "tsv": read_tsv,
    "parquet": read_parquet,
    "conll": read_conll,
    "wikitext": read_wikitext,
    "stsb": read_stsb,
    "parallel": read_parallel,
}
SUFFIXES = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    **dict.fromkeys(text_files.SUFFIXES, "conll"),
}
#: Formats that no suffix tells; a file is read so where the name stands before it.
EXPLICIT = ("parallel",)
_TABLES = ("jsonl", "csv", "tsv", "parquet")


def format_of(path: Path) -> str:
    """Tell a file's format by its suffix or its first lines."""
    by_suffix = SUFFIXES.get(path.suffix.lower())
    if by_suffix in ("csv", "tsv") and looks_like_stsb(Lines(Source(path))):
        return "stsb"
    if by_suffix not in ("text", None):
        return by_suffix
    try:
        if text_files.looks_like_columns(Lines(Source(path))):
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
    if (options.column or options.pair_column) and kind not in _TABLES:
        raise InputError(
            f"{str(path)!r} has no columns to choose (it is read as {kind}); leave column and "
            "pair_column out, or give a .jsonl, .csv, .tsv or .parquet file"
        )
    if options.extra and kind not in (*_TABLES, "stsb"):
        raise InputError(
            f"{str(path)!r} has no column {options.extra[0]!r} (it is read as {kind}); give a "
            ".jsonl, .csv, .tsv or .parquet file"
        )
    if options.paragraphs and kind != "text":
        raise InputError(
            f"paragraphs are for .txt files and {str(path)!r} is read as {kind}; leave it out"
        )


# Data in files: their records from any mark on, and their fingerprint.


#: Raised whenever files of every format give other records than before; of one: `REVISIONS`.
_VERSION = 1


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

    def reading(self, start: Mark = START, *, fingerprint: bool = False) -> FileReading:
        return FileReading(self, start, hashed=fingerprint)

    def _fingerprint(self) -> str:
        return self.fingerprint_of([digest(file.path) for file in self.files])

    def fingerprint_of(self, digests: Sequence[str]) -> str:
        """The fingerprint of the data if these are the checksums of its files."""
        options = asdict(self.options)
        if not self.options.extra:
            del options["extra"]  # a run of data without further columns stays the same run
        revised = {
            file.format: REVISIONS[file.format] for file in self.files if file.format in REVISIONS
        }
        described = {
            "version": _VERSION,
            "options": options,
            "limit": self.limit,
            "files": [
                [file.name, file.format, sha256]
                for file, sha256 in zip(self.files, digests, strict=True)
            ],
            **({"readers": revised} if revised else {}),
        }
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()


class FileReading(Reading):
    """Records of files from a mark on; `hashed` takes the checksums of the files on the way."""

    def __init__(self, data: FileData, start: Mark, hashed: bool = False):
        self.data, self.file, self.hashed = data, start.file, hashed
        self._behind: list[str] = []  # SHA-256 of the files that were read to their end
        self._source = Source(data.files[start.file].path, start, hashed=hashed)
        super().__init__(self._made(start))
        self.count = start.record

    def _made(self, start: Mark) -> Iterator[Record]:
        for number, file in enumerate(self.data.files[start.file :], start.file):
            self.file = number
            if number > start.file:
                self._source, self.count = Source(file.path, hashed=self.hashed), 0
            for where, fields in self._located(file):
                try:
                    record = Record(id=f"{file.name}:{self.count}", **fields)
                except InputError as error:
                    raise InputError(f"{str(file.path)!r}, {where}: {error}") from error
                yield record
            if not self.count:
                raise InputError(f"{str(file.path)!r} holds no sequence; give a file with text")
            if self.hashed:
                self._behind.append(self._sha256(file, self._source))

    def _located(self, file: DataFile) -> Iterator[Located]:
        try:
            yield from READERS[file.format](self._source, self.data.options)
        except OSError as error:
            raise unreadable(file.path, error) from error

    @property
    def mark(self) -> Mark:
        return Mark(self.file, self._source.offset, self._source.number, self.count)

    def fingerprint(self) -> str | None:
        """The fingerprint; what a limit has left unread is read for it now."""
        if not self.hashed:
            return None
        for file in self.data.files[len(self._behind) :]:
            reached = file is self.data.files[self.file]
            source = self._source if reached else Source(file.path, hashed=True)
            self._behind.append(self._sha256(file, source))
        self.digests = tuple(self._behind)
        return self.data.fingerprint_of(self.digests)

    def _sha256(self, file: DataFile, source: Source) -> str:
        try:
            return source.sha256()
        except OSError as error:
            raise unreadable(file.path, error) from error


def digest(path: Path) -> str:
    """The checksum of a file of data."""
    try:
        return sha256_of(path)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> InputError:
    """The error of a file that the system does not let be read."""
    return InputError(
        f"cannot read {str(path)!r}: {system_reason(error)}; check the path and its permissions"
    )


# The index of a data set: what one reading of all of it has found out.
#
# Its fingerprint, the number of its sequences, and for each shard where it begins and a checksum
# of its records. With it a shard is read alone, and read for certain as it was.


#: Bytes of memory for records that are kept from the reading: small data is read once in all.
KEPT = 32 << 20
#: Bytes that a record takes beside its contents.
_OBJECT = 350


@dataclass(frozen=True)
class Index:
    """Where the shards of a data set begin, of `size` sequences each."""

    fingerprint: str
    sequences: int
    size: int
    digests: tuple[str, ...]  # SHA-256 of each file, where the data lies in files
    marks: NDArray[np.int64]  # (shard, 4): the fields of a Mark
    checksums: NDArray[np.int64]  # (shard,)

    def mark(self, shard: int) -> Mark:
        return Mark(*map(int, self.marks[shard]))

    def matches(self, shard: int, records: Iterable[Record]) -> bool:
        """Whether these are the records that the shard had when the index was made."""
        return checksum(records) == int(self.checksums[shard])


def checksum(records: Iterable[Record]) -> int:
    """CRC-32 of records, in their order."""
    value = 0
    for record in records:
        value = zlib.crc32(_contents(record), value)
    return value


def _contents(record: Record) -> bytes:
    """All of a record as bytes; most are a text and nothing else, which is quickly written."""
    text = record.text
    if type(text) is str and record.unreadable is None and not record.extra:
        return f"{record.id}\0{text}\0".encode("utf-8", "surrogatepass")
    return written(record)


def read_through(data: Data, size: int) -> tuple[Index, list[Record]]:
    """Read all of a data set once; the index, and the first records as far as memory is spared."""
    reading = data.reading(fingerprint=True)
    # Eight bytes a number: there may be millions of shards.
    marks, checksums = array("q", reading.mark), array("q")
    first: list[Record] = []
    count = held = value = 0
    for count, record in enumerate(islice(reading, data.limit), 1):
        contents = _contents(record)
        value = zlib.crc32(contents, value)
        held += _OBJECT + len(contents)
        if held <= KEPT:
            first.append(record)
        if count % size == 0:
            marks.extend(reading.mark)
            checksums.append(value)
            value = 0
    if count % size:
        checksums.append(value)
    fingerprint = reading.fingerprint() or data.fingerprint
    index = Index(
        fingerprint=fingerprint,
        sequences=count,
        size=size,
        digests=reading.digests,
        marks=np.array(marks[: 4 * len(checksums)], dtype=np.int64).reshape(-1, 4),
        checksums=np.array(checksums, dtype=np.int64),
    )
    return index, first
