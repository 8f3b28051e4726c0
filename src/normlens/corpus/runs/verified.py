"""Remembering which files match their checksums, so that each is read for that only once."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from normlens.corpus.runs.folder import Folder
from normlens.corpus.runs.shards import File
from normlens.corpus.runs.state import State

#: Where another place than the user's cache folder is wanted for what is remembered.
VARIABLE = "NORMLENS_CACHE"

#: Files that may be remembered in vain.
_SPARE = 1000

#: What is remembered of a file that was wrong.
_WRONG = "wrong"

_remembered: dict[str, dict[str, str]] = {}  # folder → file → digest of its stamp and SHA-256


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

    def wrong(self, files: Sequence[File], *, again: bool = False) -> dict[str, str]:
        """List the files that are missing or damaged, with what is wrong; `again` reads them all.

        What is wrong is remembered, too, so that resuming computes it again.
        """
        stamps = self.folder.stamps([file.name for file in files])
        problems: dict[str, str] = {}
        learnt = False
        for name, _, size, sha256 in files:
            stamp = stamps.get(name)
            if stamp is None:
                problems[name] = "missing"
                continue
            if stamp.size != size:
                problems[name] = f"damaged: {stamp.size} bytes where its record says {size}"
                continue
            seen = None if stamp.mark is None else _digest(f"{size} {stamp.mark} {sha256}")
            if seen is not None and self._verified.get(name) == seen and not again:
                continue
            checksum = self.folder.sha256(name)
            if checksum == sha256:
                if seen is not None and self._verified.get(name) != seen:
                    self._verified[name], learnt = seen, True
                continue
            problems[name] = (
                "missing" if checksum is None else "damaged: its SHA-256 is not the record's"
            )
        for name in problems:
            learnt |= self._verified.get(name) != _WRONG
            self._verified[name] = _WRONG
        if learnt:
            _write(self._path, self._verified)
        return problems

    def forget_others(self, state: State) -> None:
        """Forget files that a run no longer has, once they are more than those that it has."""
        if len(self._verified) <= 2 * state.file_count + _SPARE:
            return
        names = {file.name for table in state.records.tables for file in state.files(table)}
        for name in self._verified.keys() - names:
            del self._verified[name]
        _write(self._path, self._verified)

    def suspects(self) -> frozenset[str]:
        """The files that were wrong when they were last compared."""
        return frozenset(name for name, seen in self._verified.items() if seen == _WRONG)


def cache_folder() -> Path:
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "normlens" / "verified"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _read(path: Path) -> dict[str, str]:
    try:
        remembered = json.loads(path.read_bytes())
        return {str(name): str(seen) for name, seen in remembered.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}  # nothing is remembered; the files are read again


def _write(path: Path, verified: dict[str, str]) -> None:
    """Remember verified files on disk; if that fails, the next process reads them again."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            temporary.write_text(json.dumps(verified))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
