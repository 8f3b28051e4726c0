"""An object store that counts what is asked of it.

It behaves as S3 does through fsspec: an object appears whole, there are no folders, a listing gives
a thousand names per request, and a thousand objects are removed by one. Its objects are files in a
folder of this machine: those of a large run must not fill the memory of the process that is
measured.
"""

from __future__ import annotations

import io
import os
import threading
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import fsspec
from fsspec.spec import AbstractFileSystem

PROTOCOL = "counted"
PER_REQUEST = 1000  # names of a listing, objects of a removal
PIECE = 50 << 20  # of an upload in pieces


class CountingStore(AbstractFileSystem):
    """Objects by key; `requests` counts them by verb and room: the folder of a run, as in log."""

    protocol = PROTOCOL
    cachable = False
    root_marker = ""
    place: Path
    requests: Counter[str] = Counter()  # noqa: RUF012
    _lock = threading.Lock()

    @classmethod
    def at(cls, place: Path) -> str:
        """Keep objects in a folder from now on, count from zero, and give the URL of a bucket."""
        place.mkdir(parents=True, exist_ok=True)
        cls.place, cls.requests = place, Counter()
        fsspec.register_implementation(PROTOCOL, cls, clobber=True)
        return f"{PROTOCOL}://bucket"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return str(path).removeprefix(f"{PROTOCOL}://").strip("/")

    def _count(self, verb: str, key: str = "", times: int = 1) -> None:
        room = [*key.split("/"), "", ""][2]  # behind the bucket and the run
        with self._lock:
            self.requests[f"{verb} {room}".strip()] += times

    def _file(self, key: str) -> Path:
        # Keys are no paths: each folder of this machine holds the objects of one prefix.
        prefix, _, name = key.rpartition("/")
        return self.place / quote(prefix, safe="") / quote(name, safe="")

    def _contents(self, key: str) -> bytes:
        try:
            return self._file(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(key) from None

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        key = self._strip_protocol(path)
        self._count("GET", key)
        return self._contents(key)[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        key = self._strip_protocol(path)
        self._count("PUT", key)
        self._keep(key, value, os.link if mode == "create" else os.replace)

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        key, size = self._strip_protocol(rpath), os.path.getsize(lpath)
        # Beyond one piece: begin, the pieces, and complete.
        self._count("PUT", key, 1 if size <= PIECE else 2 + -(-size // PIECE))
        self._keep(key, Path(lpath).read_bytes())

    def _keep(self, key: str, value: bytes, name: Any = os.replace) -> None:
        file = self._file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        whole = file.with_name(f"{file.name}.{os.getpid()}.{threading.get_ident()}~")
        whole.write_bytes(value)
        try:
            name(whole, file)  # `os.link` raises where there is such a file
        finally:
            whole.unlink(missing_ok=True)

    def rm_file(self, path: str) -> None:
        key = self._strip_protocol(path)
        self._count("DELETE", key)
        self._file(key).unlink(missing_ok=True)  # as S3, which tells no difference

    def rm(self, path: Any, recursive: bool = False, maxdepth: Any = None) -> None:
        keys = self._strip_protocol(path if isinstance(path, list) else [path])
        self._count("DELETE", keys[0] if keys else "", -(-len(keys) // PER_REQUEST))
        for key in keys:
            self._file(key).unlink(missing_ok=True)

    def exists(self, path: str, **_: Any) -> bool:
        key = self._strip_protocol(path)
        self._count("HEAD", key)
        return "/" not in key or self._file(key).is_file()

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        key = self._strip_protocol(path)
        self._count("HEAD", key)
        return self._described(key)

    def _described(self, key: str) -> dict[str, Any]:
        try:
            seen = self._file(key).stat()
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(key) from None
        tag = f"{seen.st_ino}-{seen.st_mtime_ns}"
        return {"name": key, "size": seen.st_size, "type": "file", "ETag": tag}

    def find(
        self,
        path: str,
        maxdepth: Any = None,
        withdirs: bool = False,
        detail: bool = False,
        **_: Any,
    ) -> Any:
        prefix = self._strip_protocol(path)
        keys = sorted(self._under(prefix))
        self._count("LIST", prefix, max(1, -(-len(keys) // PER_REQUEST)))
        return {key: self._described(key) for key in keys} if detail else keys

    def _under(self, prefix: str) -> list[str]:
        return [
            f"{parent}/{unquote(entry.name)}"
            for folder in os.scandir(self.place)
            if f"{(parent := unquote(folder.name))}/".startswith(f"{prefix}/")
            for entry in os.scandir(folder.path)
            if not entry.name.endswith("~")
        ]

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        prefix = self._strip_protocol(path)
        keys = [key for key in self._under(prefix) if key.rpartition("/")[0] == prefix]
        self._count("LIST", prefix, max(1, -(-len(keys) // PER_REQUEST)))
        return [self._described(key) for key in keys] if detail else keys

    def modified(self, path: str) -> datetime:
        """No object is written again; DuckDB asks."""
        return datetime(2020, 1, 1, tzinfo=timezone.utc)

    def glob(self, path: str, **_: Any) -> list[str]:
        key = self._strip_protocol(path)
        self._count("HEAD", key)
        return [key] if self._file(key).is_file() else []

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        key = self._strip_protocol(path)
        self._count("GET", key)
        return io.BytesIO(self._contents(key))
