"""The folder of a run behind an fsspec URL."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import IO

from normlens.corpus.runs.folder_base import Folder
from normlens.corpus.runs.stamps import Stamp, store_stamp
from normlens.errors import (
    InputError,
    MissingDependencyError,
    NormLensError,
    OutputError,
    system_reason,
)


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
                paths = self.system.find(self.root)
            except FileNotFoundError:
                paths = []
            # A store that is down has said so by now.
            if not paths:
                self._check_bucket()
        return sorted(path[len(self.root) :].lstrip("/") for path in paths)

    def stamps(self, names: Collection[str]) -> dict[str, Stamp]:
        stamps: dict[str, Stamp] = {}
        with self._failing("list", InputError), suppress(FileNotFoundError):
            self.system.invalidate_cache()
            listed = self.system.find(self.root, detail=True)
            for name in names:
                # A listing is not of one moment: what it lacks may have come since.
                with suppress(FileNotFoundError):
                    path = self._path(name)
                    stamps[name] = store_stamp(listed.get(path) or self.system.info(path))
        return stamps

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
