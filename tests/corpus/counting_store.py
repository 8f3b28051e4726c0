"""An object store in memory that counts requests, as S3 is seen through fsspec."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

BUCKET = "counted"
URL = f"counting://{BUCKET}"


class CountingStore(AbstractFileSystem):
    """Objects by their keys: whole, never appended to, gone or there.

    `requests` counts what a client would send: (put, get, list, head, delete; key). A listing is
    one request for each thousand keys, and so is the removal of many.
    """

    protocol = "counting"
    root_marker = ""
    cachable = False
    objects: dict[str, bytes] = {}  # noqa: RUF012
    requests: Counter[tuple[str, str]] = Counter()  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("counting://").strip("/")

    @classmethod
    def count(cls, kind: str, under: str = "") -> int:
        """How many requests of a kind there were for keys that contain `under`."""
        return sum(n for (done, key), n in cls.requests.items() if done == kind and under in key)

    @classmethod
    def repeated(cls, *kinds: str) -> list[tuple[str, str]]:
        """The requests of these kinds that were made more than once for one key."""
        return [(kind, key) for (kind, key), n in cls.requests.items() if kind in kinds and n > 1]

    def _note(self, kind: str, path: str, times: int = 1) -> str:
        key = self._strip_protocol(path)
        self.requests[kind, key] += times
        return key

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        key = self._note("put", path)
        if mode == "create" and key in self.objects:
            raise FileExistsError(path)
        self.objects[key] = bytes(value)

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        key = self._note("get", path)
        if key not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[key][start:end]

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return io.BytesIO(self.cat_file(path))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        key = self._note("head", path)
        if key not in self.objects:
            raise FileNotFoundError(path)
        return self._described(key)

    def modified(self, path: str) -> datetime:
        """Objects are never written again here; DuckDB asks."""
        return datetime(2020, 1, 1, tzinfo=timezone.utc)

    def exists(self, path: str, **_: Any) -> bool:
        key = self._note("head", path)
        return key == BUCKET or key in self.objects

    def find(self, path: str, maxdepth: Any = None, withdirs: Any = None, detail: bool = False,
             **_: Any) -> Any:  # fmt: skip
        key = self._strip_protocol(path)
        found = sorted(k for k in list(self.objects) if k.startswith(f"{key}/") or k == key)
        self._note("list", path, 1 + len(found) // 1000)
        return {k: self._described(k) for k in found} if detail else found

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        found = self.find(path, detail=True)
        return list(found.values()) if detail else list(found)

    def rm_file(self, path: str) -> None:
        self.objects.pop(self._note("delete", path), None)

    def rm(self, path: Any, recursive: bool = False, maxdepth: Any = None) -> None:
        paths = [path] if isinstance(path, str) else list(path)
        keys = [self._strip_protocol(each) for each in paths]
        for key in keys:
            self.objects.pop(key, None)
        self.requests["delete", keys[0]] += -(-len(keys) // 1000)

    def _described(self, key: str) -> dict[str, Any]:
        contents = self.objects[key]
        return {"name": key, "size": len(contents), "type": "file", "ETag": str(hash(contents))}


@contextmanager
def counting_store() -> Iterator[type[CountingStore]]:
    """Register an empty store for `counting://counted/…`; it is emptied again at the end."""
    fsspec.register_implementation("counting", CountingStore, clobber=True)
    CountingStore.objects.clear()
    CountingStore.requests.clear()
    try:
        yield CountingStore
    finally:
        CountingStore.objects.clear()
        CountingStore.requests.clear()
