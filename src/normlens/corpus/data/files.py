"""Data in files: its records from any mark on, its fingerprint and its index."""

from __future__ import annotations

import hashlib
import json
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normlens.corpus.data.formats import READERS
from normlens.corpus.data.records import (
    REVISIONS,
    START,
    Data,
    Mark,
    Reading,
    ReadOptions,
    Record,
    Source,
    records,
    sha256_of,
    written,
)
from normlens.errors import InputError, system_reason

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
        super().__init__(self._made(start), start, self._source)

    def _made(self, start: Mark) -> Iterator[Record]:
        for number, file in enumerate(self.data.files[start.file :], start.file):
            self.file = number
            if number > start.file:
                self.cursor = self._source = Source(file.path, hashed=self.hashed)
                self.count = 0
            source = self._source
            with _readable(file.path):
                rows = READERS[file.format](source, self.data.options)
                yield from records(rows, file.name, self.count, source.place)
                if not self.count:
                    raise InputError(f"{str(file.path)!r} holds no sequence; give a file with text")
                if self.hashed:
                    self._behind.append(source.sha256())

    def fingerprint(self) -> str | None:
        """The fingerprint; what a limit has left unread is read for it now."""
        if not self.hashed:
            return None
        for file in self.data.files[len(self._behind) :]:
            reached = file is self.data.files[self.file]
            source = self._source if reached else Source(file.path, hashed=True)
            with _readable(file.path):
                self._behind.append(source.sha256())
        self.digests = tuple(self._behind)
        return self.data.fingerprint_of(self.digests)


def digest(path: Path) -> str:
    """The checksum of a file of data."""
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


# The index of a data set: what one reading of all of it has found out.
#
# Its fingerprint, the number of its sequences, and for each block where it begins and a checksum
# of its records. With it a block is read alone, and read for certain as it was.


#: Bytes of memory for records that are kept from the reading: small data is read once in all.
KEPT = 32 << 20
#: Bytes that a record takes beside its contents.
_OBJECT = 350


@dataclass(frozen=True)
class Index:
    """Where the blocks of a data set begin, of `size` sequences each."""

    fingerprint: str
    sequences: int
    size: int
    digests: tuple[str, ...]  # SHA-256 of each file, where the data lies in files
    marks: NDArray[np.int64]  # (block, 4): the fields of a Mark
    checksums: NDArray[np.int64]  # (block,)

    def mark(self, block: int) -> Mark:
        return Mark(*map(int, self.marks[block]))

    def matches(self, block: int, records: Iterable[Record]) -> bool:
        """Whether these are the records that the block had when the index was made."""
        return checksum(records) == int(self.checksums[block])


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
    # Eight bytes a number: there may be millions of blocks.
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
