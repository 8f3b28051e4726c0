"""The folder that a run lives in: a local one, or any that fsspec reaches by a URL."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

from normlens.corpus.runs.folder_base import TEMPORARY, Folder
from normlens.corpus.runs.remote_folder import RemoteFolder
from normlens.corpus.runs.stamps import Stamp, local_stamp
from normlens.errors import InputError, NormLensError, OutputError, system_reason

__all__ = ["TEMPORARY", "Folder", "LocalFolder", "RemoteFolder", "open_folder"]


class LocalFolder(Folder):
    """A folder on a disk: files are flushed to it before they take their names.

    Links inside it that lead elsewhere are not followed: a folder that comes from someone else
    must not decide which other files are read or written.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path).expanduser()
        self.url = str(self.path)
        self._followed: set[str] = set()
        self._checked: set[str] = set()  # folders in which sizes were asked for

    def read(self, name: str) -> bytes | None:
        try:
            return self._inside(name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise InputError(
                f"cannot read {str(self.path / name)!r}: {system_reason(error)}"
            ) from error

    def write(self, name: str, data: bytes) -> None:
        with self.writing(name) as file:
            file.write(data)

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        path = self.path / name
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TEMPORARY}")
        try:
            self._make(self._inside(name).parent)
            try:
                with _flushed(temporary, _NEW_FILE) as file:
                    yield file
                os.replace(temporary, path)
                _sync(path.parent)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
        except NormLensError:
            raise
        except OSError as error:
            raise OutputError(f"cannot write {str(path)!r}: {system_reason(error)}") from error

    def append(self, name: str, data: bytes) -> None:
        """Add `data` to the end of a file, which need not be there, and flush it to the disk."""
        path = self.path / name
        try:
            self._make(self._inside(name).parent)
            is_new = not path.exists()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            with _flushed(path, flags) as file:
                file.write(data)
            if is_new:
                _sync(path.parent)
        except OSError as error:
            raise OutputError(f"cannot write {str(path)!r}: {system_reason(error)}") from error

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)

    def _inside(self, name: str) -> Path:
        """Give a file's path; a link that leads out of the folder is an error."""
        path = self.path / name
        # A folder is followed to its end once, and its files only where they are links.
        parent = name.rpartition("/")[0]
        if parent in self._followed and not os.path.islink(path):
            return path
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise InputError(f"{str(path)!r} leads out of the run's folder; remove the link")
        if path.parent.is_dir():
            self._followed.add(parent)
        return path

    def remove(self, name: str) -> None:
        try:
            os.unlink(self.path / name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise OutputError(
                f"cannot remove {str(self.path / name)!r}: {system_reason(error)}"
            ) from error

    def names(self, under: str = "") -> list[str]:
        return sorted(
            (Path(folder) / file).relative_to(self.path).as_posix()
            for folder, _, files in os.walk(self._inside(under))
            for file in files
        )

    def stamps(self, names: Collection[str]) -> dict[str, Stamp]:
        stamps = {}
        for folder in {name.rpartition("/")[0] for name in names}:
            self._inside(folder)
        for name in names:
            path = os.path.join(self.path, name)
            try:
                seen = os.lstat(path)
                if stat.S_ISLNK(seen.st_mode):
                    seen = os.stat(self._inside(name))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise InputError(
                    f"cannot read {self.url}/{name}: {system_reason(error)}"
                ) from error
            if stat.S_ISREG(seen.st_mode):
                stamps[name] = local_stamp(seen)
        return stamps

    def size(self, name: str) -> int | None:
        """Tell how many bytes a file has; None where there is none, or a link."""
        parent = name.rpartition("/")[0]
        if parent not in self._checked:
            self._inside(parent)
            self._checked.add(parent)
        try:
            seen = os.lstat(f"{self.url}/{name}")
        except OSError:
            return None
        return seen.st_size if stat.S_ISREG(seen.st_mode) else None

    def _open(self, name: str) -> IO[bytes]:
        return self._inside(name).open("rb")

    @property
    def everywhere(self) -> str:
        return str(self.path.absolute())

    def address(self, name: str) -> str:
        return str(self.path.absolute() / name)


def open_folder(place: str | os.PathLike[str]) -> Folder:
    """Open the folder at a path or a URL."""
    text = os.fspath(place)
    protocol, separator, rest = text.partition("://")
    if not separator:
        return LocalFolder(text)
    if protocol in ("file", "local"):
        return LocalFolder(rest)
    return RemoteFolder(text)


_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


@contextmanager
def _flushed(path: Path, flags: int) -> Iterator[IO[bytes]]:
    """Open a file to write to; at the end it is on the disk."""
    file = _Descriptor(os.open(path, flags, 0o666))
    try:
        yield cast("IO[bytes]", file)
        os.fsync(file.number)
    finally:
        file.close()


class _Descriptor:
    """As much of a file as is needed to write to it, without a buffer."""

    def __init__(self, number: int):
        self.number = number

    def write(self, data: bytes) -> int:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(self.number, rest) :]
        return memoryview(data).nbytes

    def close(self) -> None:
        # Whoever still writes must not reach the next file of this number.
        number, self.number = self.number, -1
        os.close(number)

    def flush(self) -> None:
        """Do nothing: what is written is on its way."""


def _sync(folder: Path) -> None:
    """Flush a folder to the disk; a new name lasts only after that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
