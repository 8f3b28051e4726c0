"""A run's files against its records, and what belongs to none of them."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from normlens.corpus.runs.folder import TEMPORARY, Folder
from normlens.corpus.runs.ledger import SIDE_FILES, File, holder, is_of_run, read_state, strays
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.manifest import Manifest

# Remembering which files match their checksums, so that each is read for that only once.


#: Where another place than the user's cache folder is wanted for what is remembered.
VARIABLE = "NORMLENS_CACHE"

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
        stamps = self.folder.stamps() if files else {}
        before, problems = dict(self._verified), dict[str, str]()
        for name, _, size, sha256 in files:
            stamp = stamps.get(name)
            if stamp is None:
                problems[name] = "missing"
                continue
            if stamp.size != size:
                problems[name] = f"damaged: {stamp.size} bytes where its record says {size}"
                continue
            seen = stamp.mark and _digest(f"{size} {stamp.mark} {sha256}")
            if seen and self._verified.get(name) == seen and not again:
                continue
            checksum = self.folder.sha256(name)
            if checksum == sha256:
                self._verified |= {name: seen} if seen else {}
            else:
                what = "damaged: its SHA-256 is not the record's"
                problems[name] = "missing" if checksum is None else what
        self._verified |= dict.fromkeys(problems, _WRONG)
        if self._verified != before:
            _write(self._path, self._verified)
        return problems

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


# Checking a whole run.


#: Folders of what is made of a run, which is no part of it: a report, alignments as text.
MADE_OF_IT = ("report/", "links/")


@dataclass(frozen=True)
class Problem:
    """A file that is missing, damaged or stray."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


@dataclass(frozen=True)
class Check:
    """The result of a check: problems, and how many blocks and files it read."""

    blocks: int
    blocks_done: int
    files: int  # that were compared with their checksums
    problems: tuple[Problem, ...]

    @property
    def sound(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        return {"sound": self.sound, **asdict(self)}

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems]
        done = f"{self.blocks_done} of {self.blocks} blocks are done"
        if self.problems:
            many = "problem" if len(lines) == 1 else "problems"
            verdict = (
                f"{len(lines)} {many}; what is lost is computed again by normlens run --resume"
            )
        else:
            verdict = f"their {self.files} files match their checksums"
        return "\n".join([*lines, f"{done}, {verdict}"])


def check(folder: Folder, manifest: Manifest) -> Check:
    """Read every file of the blocks that are done, and look for what belongs to none.

    While a run goes on, files that it has written and not yet recorded count neither as sound nor
    as stray.
    """
    state, names = read_state(folder, manifest, salvage=True), folder.names()
    files = state.all_files()
    problems = Verified(folder).wrong(files, again=True)
    problems |= dict.fromkeys(state.damaged, "missing or damaged")
    known = {MANIFEST, *SIDE_FILES, *(file.name for file in files)}
    may_be_written = state.blocks_done < manifest.blocks or holder(folder) is not None
    left = () if may_be_written else strays(state, names, state.epoch)
    for name in names:
        is_half = may_be_written and name.endswith(TEMPORARY)
        foreign = name not in known and not is_of_run(name) and not is_half
        if name in left or (foreign and not name.startswith(MADE_OF_IT)):
            problems.setdefault(name, "stray: no record names it")
    return Check(
        blocks=manifest.blocks,
        blocks_done=state.blocks_done,
        files=len(files),
        problems=tuple(Problem(name, what) for name, what in sorted(problems.items())),
    )
