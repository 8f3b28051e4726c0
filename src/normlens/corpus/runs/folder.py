"""The folder that a run lives in: a local one, or any that fsspec reaches by a URL."""

from __future__ import annotations

import hashlib
import os
import stat
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from normlens.corpus.runs.stamps import Stamp, local_stamp, store_stamp
from normlens.errors import (
    InputError,
    MissingDependencyError,
    NormLensError,
    OutputError,
    system_reason,
)

#: What a name ends with until its file is complete.
TEMPORARY = ".tmp"
_CHUNK = 1 << 20


class Folder(ABC):
    """Files by their names inside one folder; a file appears under its name whole or not at all."""

    url: str

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """A file's contents; None if there is no such file."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Make `data` the contents of a file."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file if it is there."""

    @abstractmethod
    def names(self) -> list[str]:
        """Every file, by its name relative to the folder, in order."""

    @abstractmethod
    def stamps(self, names: Collection[str]) -> dict[str, Stamp]:
        """Size and time of each of these files; those that are not there are left out."""

    @abstractmethod
    def _open(self, name: str) -> IO[bytes]:
        """A file to read from."""

    def sha256(self, name: str) -> str | None:
        """The checksum of a file, which is never whole in memory; None if there is no such file."""
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
        """What DuckDB opens a file by."""

    def __str__(self) -> str:
        return self.url


class LocalFolder(Folder):
    """A folder on a disk: files are flushed to it before they take their names.

    Links inside it that lead elsewhere are not followed: a folder that comes from someone else
    must not decide which other files are read or written.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path).expanduser()
        self.url = str(self.path)

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
        path = self.path / name
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TEMPORARY}")
        try:
            self._make(self._inside(name).parent)
            try:
                _write_through(temporary, data)
                os.replace(temporary, path)
                _sync(path.parent)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
        except OSError as error:
            raise OutputError(f"cannot write {str(path)!r}: {system_reason(error)}") from error

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)

    def _inside(self, name: str) -> Path:
        """Where a file lies, unless a link leads out of the folder."""
        path = self.path / name
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise InputError(f"{str(path)!r} leads out of the run's folder; remove the link")
        return path

    def remove(self, name: str) -> None:
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(
                f"cannot remove {str(self.path / name)!r}: {system_reason(error)}"
            ) from error

    def names(self) -> list[str]:
        return sorted(
            (Path(folder) / file).relative_to(self.path).as_posix()
            for folder, _, files in os.walk(self.path)
            for file in files
        )

    def stamps(self, names: Collection[str]) -> dict[str, Stamp]:
        found = {}
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
                found[name] = local_stamp(seen)
        return found

    def _open(self, name: str) -> IO[bytes]:
        return self._inside(name).open("rb")

    def address(self, name: str) -> str:
        return str(self.path.absolute() / name)


class RemoteFolder(Folder):
    """A folder behind an fsspec URL.

    An object store shows an object only once its upload is complete. On others (SFTP, HDFS) a
    file may be cut short: its checksum tells, and the file with the checksums comes last.
    """

    def __init__(self, url: str):
        try:
            import fsspec
        except ImportError as error:
            raise MissingDependencyError(
                f"{url!r} needs the fsspec package; run: pip install fsspec"
            ) from error
        self.url = url.rstrip("/")
        with self._failing("open", InputError):
            self.system, root = fsspec.core.url_to_fs(url)
        self.root = root.rstrip("/")
        self._has_bucket = False

    def read(self, name: str) -> bytes | None:
        with self._failing(f"read {name} in", InputError):
            try:
                return self.system.cat_file(self._path(name))
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with self._failing(f"write {name} in", OutputError):
            self._check_bucket()
            if not self._bucket:  # an object store has no folders, and might make a bucket instead
                self.system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self.system.pipe_file(path, data)

    def remove(self, name: str) -> None:
        with self._failing(f"remove {name} in", OutputError), suppress(FileNotFoundError):
            self.system.rm_file(self._path(name))

    def names(self) -> list[str]:
        with self._failing("list", InputError):
            # A listing that was kept from before would hide what another process has written.
            self.system.invalidate_cache()
            try:
                found = self.system.find(self.root)
            except FileNotFoundError:
                found = []
            # A store that is down has said so by now.
            if not found:
                self._check_bucket()
        return sorted(path[len(self.root) :].lstrip("/") for path in found)

    def stamps(self, names: Collection[str]) -> dict[str, Stamp]:
        found: dict[str, Stamp] = {}
        with self._failing("list", InputError), suppress(FileNotFoundError):
            self.system.invalidate_cache()
            listed = self.system.find(self.root, detail=True)
            for name in names:
                # A listing is not of one moment: what it lacks may have come since.
                with suppress(FileNotFoundError):
                    path = self._path(name)
                    found[name] = store_stamp(listed.get(path) or self.system.info(path))
        return found

    def sha256(self, name: str) -> str | None:
        with self._failing(f"read {name} in", InputError):
            return super().sha256(name)

    def _open(self, name: str) -> IO[bytes]:
        return self.system.open(self._path(name), "rb")

    def address(self, name: str) -> str:
        return self.system.unstrip_protocol(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    @property
    def _bucket(self) -> str:
        """The bucket or container of an object store; nothing where paths begin with a slash."""
        return self.root.partition("/")[0]

    def _check_bucket(self) -> None:
        """A bucket is never made here: a name that does not exist is more likely a typing error."""
        if self._bucket and not self._has_bucket:
            self._has_bucket = self.system.exists(self._bucket)
            if not self._has_bucket:
                raise InputError(
                    f"there is no bucket {self._bucket!r} for {self.url}, or you may not see it; "
                    "check its name and your credentials, or create it first"
                )

    @contextmanager
    def _failing(self, action: str, kind: type[NormLensError]) -> Iterator[None]:
        """Whatever a store raises, as one line: each has exceptions of its own."""
        try:
            yield
        except NormLensError:
            raise
        except Exception as error:
            reason = system_reason(error)
            raise kind(
                f"cannot {action} {self.url}: {reason}; is the store up, and may you use it?"
            ) from error


def open_folder(place: str | os.PathLike[str]) -> Folder:
    """The folder at a path or a URL."""
    text = os.fspath(place)
    protocol, separator, rest = text.partition("://")
    if not separator:
        return LocalFolder(text)
    if protocol in ("file", "local"):
        return LocalFolder(rest)
    return RemoteFolder(text)


def _write_through(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(folder: Path) -> None:
    """A new name lasts only once its folder is on the disk too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
