"""The folder of a run behind an fsspec URL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import IO, cast

from normlens.corpus.runs.folder_base import Folder
from normlens.corpus.runs.stamps import Stamp, store_stamp
from normlens.errors import (
    InputError,
    MissingDependencyError,
    NormLensError,
    OutputError,
    system_reason,
)

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

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        # What is uploaded is whole: whatever stops the writer leaves nothing in the store.
        try:
            with tempfile.NamedTemporaryFile(prefix="normlens-") as file:
                yield cast("IO[bytes]", file)
                file.flush()
                self._put(name, lambda path: self.system.put_file(file.name, path))
        except NormLensError:
            raise
        except OSError as error:
            raise OutputError(
                f"cannot write a file for {self.url} to {tempfile.gettempdir()!r} first: "
                f"{system_reason(error)}; set TMPDIR to a folder with room"
            ) from error

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

    def remove(self, name: str) -> None:
        with self._failing(f"remove {name} in", OutputError), suppress(FileNotFoundError):
            self.system.rm_file(self._path(name))

    def remove_all(self, names: Collection[str]) -> None:
        if not names:
            return
        with self._failing("remove files in", OutputError):
            try:
                # Object stores remove up to a thousand with one request.
                self.system.rm([self._path(name) for name in names])
            except FileNotFoundError:
                super().remove_all(names)

    def names(self, under: str = "") -> list[str]:
        with self._failing("list", InputError):
            # A listing that was kept from before would hide what another process has written.
            self.system.invalidate_cache()
            try:
                paths = self.system.find(f"{self.root}/{under}" if under else self.root)
            except FileNotFoundError:
                paths = []
            # A store that is down has said so by now.
            if not paths:
                self._check_bucket()
        return sorted(path[len(self.root) :].lstrip("/") for path in paths)

    def stamps(self, names: Collection[str]) -> dict[str, Stamp]:
        self.system.invalidate_cache()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            stamps = zip(names, pool.map(self._stamp, names), strict=True)
            return {name: stamp for name, stamp in stamps if stamp is not None}

    def _stamp(self, name: str) -> Stamp | None:
        with self._failing(f"read {name} in", InputError):
            try:
                return store_stamp(self.system.info(self._path(name)))
            except FileNotFoundError:
                return None

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
