"""Remembering which files match their checksums, so that each is read for that only once."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from normlens.corpus.runs.folder import Folder

#: Where another place than the user's cache folder is wanted for what is remembered.
VARIABLE = "NORMLENS_CACHE"

_remembered: dict[str, dict[str, list[str]]] = {}  # folder → file → [stamp, SHA-256]


class Verified:
    """Files of a run's folder against the sizes and checksums in their records.

    What matched is remembered with the file's size and time, in this process and in the user's
    cache folder; never in the run, which may be someone else's or read-only.
    """

    def __init__(self, folder: Folder):
        self.folder = folder
        place = folder.address("")
        self._path = cache_folder() / f"{hashlib.sha256(place.encode()).hexdigest()[:32]}.json"
        if place not in _remembered:
            _remembered[place] = _read(self._path)
        self._verified = _remembered[place]

    def wrong(
        self, files: Mapping[str, Mapping[str, Any]], *, again: bool = False
    ) -> dict[str, str]:
        """List the files that are missing or damaged, with what is wrong; `again` reads them all.

        `files` are names with what their records say: `bytes` and `sha256`.
        """
        stamps = self.folder.stamps(list(files))
        problems: dict[str, str] = {}
        learnt = False
        for name, told in files.items():
            stamp = stamps.get(name)
            if stamp is None:
                problems[name] = "missing"
                continue
            if stamp.size != told["bytes"]:
                problems[name] = (
                    f"damaged: {stamp.size} bytes where its record says {told['bytes']}"
                )
                continue
            seen = None if stamp.mark is None else [f"{stamp.size} {stamp.mark}", told["sha256"]]
            if seen is not None and self._verified.get(name) == seen and not again:
                continue
            checksum = self.folder.sha256(name)
            if checksum == told["sha256"]:
                if seen is not None and self._verified.get(name) != seen:
                    self._verified[name], learnt = seen, True
                continue
            self._verified.pop(name, None)
            problems[name] = (
                "missing" if checksum is None else "damaged: its SHA-256 is not the record's"
            )
        if learnt:
            _write(self._path, self._verified)
        return problems


def cache_folder() -> Path:
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "normlens" / "verified"


def _read(path: Path) -> dict[str, list[str]]:
    try:
        remembered = json.loads(path.read_bytes())
        return {str(name): [str(part) for part in seen] for name, seen in remembered.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}  # nothing is remembered; the files are read again


def _write(path: Path, verified: dict[str, list[str]]) -> None:
    """Remember verified files on disk; if that fails, the next process reads them again."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            temporary.write_text(json.dumps(verified))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
