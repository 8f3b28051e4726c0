"""The interface of a run's folder, wherever it lies."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import IO

from normlens.corpus.runs.stamps import Stamp
from normlens.errors import InputError, system_reason

#: What a name ends with until its file is complete.
TEMPORARY = ".tmp"
_CHUNK = 1 << 20


class Folder(ABC):
    """Files by their names inside one folder; a file appears under its name whole or not at all."""

    url: str

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Read a file's contents; None if there is no such file."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Make `data` the contents of a file."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file if it is there."""

    @abstractmethod
    def names(self) -> list[str]:
        """List every file by its name relative to the folder, in order."""

    @abstractmethod
    def stamps(self, names: Collection[str]) -> dict[str, Stamp]:
        """Stat these files: size and time of each; those that are not there are left out."""

    @abstractmethod
    def _open(self, name: str) -> IO[bytes]:
        """Open a file to read from."""

    def sha256(self, name: str) -> str | None:
        """Compute a file's checksum piece by piece; None if there is no such file."""
        digest = hashlib.sha256()
        try:
            with self._open(name) as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise InputError(f"cannot read {self.url}/{name}: {system_reason(error)}") from error
        return digest.hexdigest()

    @abstractmethod
    def address(self, name: str) -> str:
        """Give the path or URL by which DuckDB opens a file."""

    def __str__(self) -> str:
        return self.url
