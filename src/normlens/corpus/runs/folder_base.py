"""The interface of a run's folder, wherever it lies."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
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
    def writing(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a new file to write it piece by piece; without an error it appears at the end."""

    def read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        """Read the contents of several files; those that are not there are left out."""
        contents = ((name, self.read(name)) for name in names)
        return {name: data for name, data in contents if data is not None}

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file if it is there."""

    def remove_all(self, names: Collection[str]) -> None:
        """Remove several files, as far as they are there."""
        for name in names:
            self.remove(name)

    @abstractmethod
    def names(self, under: str = "") -> list[str]:
        """List every file, or those under one folder, by its name relative to this, in order."""

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

    @property
    def everywhere(self) -> str:
        """The URL or absolute path by which any process opens the folder."""
        return self.url

    @abstractmethod
    def address(self, name: str) -> str:
        """Give the path or URL by which DuckDB opens a file."""

    def __str__(self) -> str:
        return self.url
