"""How many bytes of data files are read."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest


class Counter:
    """Counts the bytes that are read from files which `Path.open` opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.bytes = 0
        whole = Path.open
        counter = self

        class Counted(io.FileIO):
            def readinto(self, buffer: Any) -> int:
                count = super().readinto(buffer) or 0
                counter.bytes += count
                return count

            def read(self, size: int | None = -1) -> bytes:
                block = super().read(-1 if size is None else size) or b""
                counter.bytes += len(block)
                return block

        def open_counted(path: Path, mode: str = "r", buffering: int = -1, **kw: Any) -> Any:
            if mode != "rb":
                return whole(path, mode, buffering, **kw)
            file = Counted(path)
            return file if buffering == 0 else io.BufferedReader(file)

        monkeypatch.setattr(Path, "open", open_counted)
