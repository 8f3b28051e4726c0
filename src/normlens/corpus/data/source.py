"""One file as its reader sees it: where to begin, how far it has come, and its checksum."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

from normlens.corpus.data.reading import START, Mark

_BUFFER = 1 << 18
_BLOCK = 1 << 20


class Source:
    """A file that is read from a mark on.

    Readers keep `offset` (bytes) and `number` (lines, rows or items) at what they have read, so
    that behind each record they say where the next one begins. With `hashed`, the file's checksum
    comes from the bytes that pass by; `sha256` reads those that did not.
    """

    def __init__(self, path: Path, start: Mark = START, *, hashed: bool = False):
        self.path = path
        self.start = start
        self.offset, self.number = start.offset, start.number
        self._digest = hashlib.sha256() if hashed else None
        self._hashed: _Hashed | None = None

    def open(self) -> io.BufferedReader:
        """Open the file at the byte where reading begins."""
        file: Any = self.path.open("rb", buffering=0)
        if self._digest is None:
            file.seek(self.start.offset)
        else:
            file = self._hashed = _Hashed(file, self._digest)
        return io.BufferedReader(file, _BUFFER)

    def sha256(self) -> str:
        """The checksum of the whole file; bytes that no reader has taken are read now."""
        if self._digest is None:
            raise ValueError("the file was opened without a checksum")
        if self._hashed is None or not self._hashed.ended:
            with self.path.open("rb", buffering=0) as file:
                file.seek(0 if self._hashed is None else self._hashed.count)
                while block := file.read(_BLOCK):
                    self._digest.update(block)
        return self._digest.hexdigest()


class _Hashed(io.RawIOBase):
    """A file read from its beginning to its end, whose bytes go into a checksum as they pass."""

    def __init__(self, file: io.RawIOBase, digest: Any):
        self._file, self._digest = file, digest
        self.count = 0  # bytes that have passed
        self.ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._file.readinto(buffer)
        if count:
            self._digest.update(memoryview(buffer)[:count])
            self.count += count
        else:
            self.ended = True
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def sha256_of(path: Path) -> str:
    """The checksum of a file."""
    return Source(path, hashed=True).sha256()
