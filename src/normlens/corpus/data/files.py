"""Data in files: their records from any mark on, and their fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from normlens.corpus.data import formats
from normlens.corpus.data.read_options import REVISIONS, Located, ReadOptions
from normlens.corpus.data.reading import START, Mark, Reading
from normlens.corpus.data.records import Data, Record
from normlens.corpus.data.source import Source, sha256_of
from normlens.errors import InputError, system_reason

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
            yield from formats.READERS[file.format](self._source, self.data.options)
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
