"""The folder that a run lives in: a local one, or any that fsspec reaches by a URL."""

from __future__ import annotations

import errno
import hashlib
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from normlens.errors import (
    InputError,
    MissingDependencyError,
    NormLensError,
    OutputError,
    system_reason,
)

if TYPE_CHECKING:
    from normlens.lens import Lens

# What can go wrong with a run as a whole.


class RunError(NormLensError):
    """A run that cannot be started, resumed or read."""


class StuckError(RunError):
    """A sequence takes too long in a thread of this process, which cannot be ended."""


class AllFailedError(RunError):
    """No sequence of a run could be analysed."""


class SomeFailedWarning(UserWarning):
    """Some sequences of a run could not be analysed."""


def another_manifest(folder: object, name: str) -> RunError:
    """The manifest was exchanged, or two runs are mixed."""
    return RunError(
        f"{name} in {str(folder)!r} belongs to another manifest.json than the one that lies there; "
        "put the run's own back"
    )


# Names of models and data as a run keeps them, which hold from any folder.


#: What stands behind the name of a model that was passed as an object.
OBJECT = " (an object)"


def model_name(model: str | os.PathLike[str] | Lens) -> str:
    """What a run calls a model: a folder absolutely, everything else as it is given."""
    if not isinstance(model, (str, os.PathLike)):
        return model.source
    name = os.fspath(model)
    # A folder without a model may happen to be called like one that is not a folder.
    no_model = os.path.isdir(name) and not any(
        os.path.isfile(os.path.join(name, file)) for file in ("config.json", "adapter_config.json")
    )
    return name if no_model else fixed_path(name)


def fixed_path(spec: str | os.PathLike[str]) -> str:
    """A path made absolute, so that a run can be resumed from another folder; names as they are."""
    text = os.fspath(spec)
    prefix, separator, rest = text.partition(":")
    if separator and not Path(text).exists() and prefix.isalnum() and "//" not in rest:
        return f"{prefix}:{_absolute(rest)}"  # a data set's name with a local file
    return _absolute(text)


def shown_data(name: str) -> str:
    """What reports call a data set: its file or pattern without the folders that lead to it."""
    prefix, separator, rest = name.partition(":")
    if separator and prefix.isalnum() and not rest.startswith("//"):
        return f"{prefix}:{Path(rest).name or rest}"
    return Path(name).name if Path(name).is_absolute() else name


def _absolute(text: str) -> str:
    path = Path(text).expanduser()
    if path.exists() or (any(mark in text for mark in "*?[") and path.parent != Path(".")):
        return str(path.absolute())
    return text


# Stamps of files: size and time, to tell without reading that a file is still the same.

#: Seconds for which a file counts as new: a clock that ticks slowly may not show its next change.
NEW = 2.0
_TAGS = ("ETag", "etag", "md5Hash", "content_md5")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True)
class Stamp:
    """A file's size and a mark of when it was written; None where that could hide a change."""

    size: int
    mark: str | None


def local_stamp(seen: os.stat_result) -> Stamp:
    """Stamp a file on a disk. Its time of change (ctime) cannot be set back by a program."""
    is_new = time.time() - max(seen.st_mtime, seen.st_ctime) < NEW
    mark = f"{seen.st_mtime_ns} {seen.st_ctime_ns} {seen.st_ino}"
    return Stamp(seen.st_size, None if is_new else mark)


def store_stamp(described: Mapping[str, Any]) -> Stamp:
    """Stamp a file in a store, from what fsspec says of it: a tag of its contents, or its time."""
    values = (described.get(name) for name in (*_TAGS, *_TIMES))
    mark = next((str(value) for value in values if value is not None), None)
    return Stamp(int(described.get("size") or 0), mark)


# The interface of a run's folder, wherever it lies.


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
    def create(self, name: str, data: bytes) -> bool:
        """Write a file that nobody has written yet; return False if somebody has."""

    def read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        """Read the contents of several files; those that are not there are left out."""
        contents = ((name, self.read(name)) for name in names)
        return {name: data for name, data in contents if data is not None}

    @abstractmethod
    def remove(self, names: Collection[str]) -> None:
        """Remove files, as far as they are there."""

    def names(self, under: str = "") -> list[str]:
        """List every file, or those under one folder, by its name relative to this, in order."""
        return sorted(self.stamps(under))

    @abstractmethod
    def stamps(self, under: str = "") -> dict[str, Stamp]:
        """List files with their sizes and times; a store is asked once."""

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


# The folder of a run behind an fsspec URL.


#: Requests under way at once where several files are read.
AT_ONCE = 16


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
                f"{url!r} needs the fsspec package; run: pip install 'normlens[corpus]'"
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

    def read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        wanted = list(names)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            contents = zip(wanted, pool.map(self.read, wanted), strict=True)
            return {name: data for name, data in contents if data is not None}

    def write(self, name: str, data: bytes) -> None:
        self._put(name, lambda path: self.system.pipe_file(path, data))

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that nobody has written yet; return False if somebody has.

        The store decides between two writers (`If-None-Match`), as far as it can.
        """
        try:
            self._put(name, lambda path: self.system.pipe_file(path, data, mode="create"))
        except OutputError:
            # Where only the answer was lost, the file there is this one.
            there = self.read(name)
            if there is None:
                raise
            return there == data
        return True

    def _put(self, name: str, put: Callable[[str], object]) -> None:
        path = self._path(name)
        with self._failing(f"write {name} in", OutputError):
            # One request, as a rule: what might be wrong with the place is asked afterwards.
            try:
                put(path)
            except Exception:
                self._check_bucket()
                if self._bucket:  # an object store has no folders, and might make a bucket instead
                    raise
                self.system.makedirs(path.rpartition("/")[0], exist_ok=True)
                put(path)

    def remove(self, names: Collection[str]) -> None:
        paths = [self._path(name) for name in names]
        with self._failing("remove files in", OutputError):
            try:
                # Object stores remove up to a thousand with one request.
                self.system.rm(paths)
            except FileNotFoundError:
                for path in paths:
                    with suppress(FileNotFoundError):
                        self.system.rm_file(path)

    def stamps(self, under: str = "") -> dict[str, Stamp]:
        with self._failing("list", InputError):
            # A listing that was kept from before would hide what another process has written.
            self.system.invalidate_cache()
            try:
                found = self.system.find(f"{self.root}/{under}".rstrip("/"), detail=True)
            except FileNotFoundError:
                found = {}
            # A store that is down has said so by now.
            if not found:
                self._check_bucket()
        return {
            path[len(self.root) :].lstrip("/"): store_stamp(described)
            for path, described in found.items()
        }

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
        """Refuse a bucket that does not exist: it is probably a typing error, so it is not made."""
        if self._bucket and not self._has_bucket:
            self._has_bucket = self.system.exists(self._bucket)
            if not self._has_bucket:
                raise InputError(
                    f"there is no bucket {self._bucket!r} for {self.url}, or you may not see it; "
                    "check its name and your credentials, or create it first"
                )

    @contextmanager
    def _failing(self, action: str, kind: type[NormLensError]) -> Iterator[None]:
        """Raise whatever a store raises as one line: each store has its own exceptions."""
        try:
            yield
        except NormLensError:
            raise
        except Exception as error:
            reason = system_reason(error)
            raise kind(
                f"cannot {action} {self.url}: {reason}; is the store up, and may you use it?"
            ) from error


# The folder of a run on a disk.


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
        with self._written(name, data) as (temporary, path):
            os.replace(temporary, path)

    def create(self, name: str, data: bytes) -> bool:
        with self._written(name, data) as (temporary, path):
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                    raise
                return _create_plainly(path, data)  # this disk knows no links
        return True

    @contextmanager
    def _written(self, name: str, data: bytes) -> Iterator[tuple[Path, Path]]:
        """Write a temporary file, which is to become `name`, and flush it to the disk."""
        path = self.path / name
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TEMPORARY}")
        try:
            self._make(self._inside(name).parent)
            try:
                _write_flushed(temporary, data)
                yield temporary, path
                _sync(path.parent)
            finally:
                with suppress(OSError):
                    os.unlink(temporary)
        except OSError as error:
            if isinstance(error, NormLensError):
                raise
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
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise InputError(f"{str(path)!r} leads out of the run's folder; remove the link")
        return path

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            try:
                (self.path / name).unlink(missing_ok=True)
            except OSError as error:
                raise OutputError(
                    f"cannot remove {str(self.path / name)!r}: {system_reason(error)}"
                ) from error

    def stamps(self, under: str = "") -> dict[str, Stamp]:
        stamps = {}
        for folder, _, files in os.walk(self._inside(under)):
            for file in files:
                path = Path(folder) / file
                with suppress(FileNotFoundError):  # a run that goes on replaces its heartbeat
                    stamps[path.relative_to(self.path).as_posix()] = local_stamp(os.lstat(path))
        return stamps

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


def _write_flushed(path: Path, data: bytes) -> None:
    """Write a new file; at the end it is on the disk."""
    descriptor = os.open(path, _NEW_FILE, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create_plainly(path: Path, data: bytes) -> bool:
    try:
        _write_flushed(path, data)
    except FileExistsError:
        return False
    return True


def _sync(folder: Path) -> None:
    """Flush a folder to the disk; a new name lasts only after that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
