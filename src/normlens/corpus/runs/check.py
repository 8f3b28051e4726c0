"""Checking a run's files against its records."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from normlens.corpus.runs.folder import TEMPORARY, Folder
from normlens.corpus.runs.lock import holder
from normlens.corpus.runs.log_files import log_file
from normlens.corpus.runs.log_reading import read_state
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.shards import placed
from normlens.corpus.runs.side_files import SIDE_FILES
from normlens.corpus.runs.state import State
from normlens.corpus.runs.verified import Verified

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
    """The result of a check: problems, and how many shards and files it read."""

    shards: int
    shards_done: int
    files: int  # that were compared with their checksums
    problems: tuple[Problem, ...]

    @property
    def sound(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        return {"sound": self.sound, **asdict(self)}

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems]
        done = f"{self.shards_done} of {self.shards} shards are done"
        if self.problems:
            many = "problem" if len(lines) == 1 else "problems"
            verdict = (
                f"{len(lines)} {many}; what is lost is computed again by normlens run --resume"
            )
        else:
            verdict = f"their {self.files} files match their checksums"
        return "\n".join([*lines, f"{done}, {verdict}"])


def check(folder: Folder, manifest: Manifest) -> Check:
    """Read every file of the shards that are done, and look for what belongs to none.

    A run may go on meanwhile: what it is writing has a shard that is not done yet, and counts
    neither as sound nor as stray; neither do files that it has just compacted.
    """
    state, wrong = _compared(folder, manifest)
    names = folder.names()
    files = [file for table in manifest.tables for file in state.files(table)]
    problems = [Problem(name, what) for name, what in wrong.items()]
    problems += [Problem(name, "damaged: it does not match itself") for name in state.damaged]
    listed = {file.name for file in files}
    # Whoever works here may be compacting what is complete.
    unfinished = len(state.done) < manifest.shards or holder(folder) is not None
    stray = _stray(names, state, manifest, listed, unfinished)
    problems += [Problem(name, "stray: no shard's file") for name in stray]
    return Check(
        shards=manifest.shards,
        shards_done=len(state.done),
        files=len(files),
        problems=tuple(sorted(problems, key=lambda problem: problem.file)),
    )


def _compared(folder: Folder, manifest: Manifest) -> tuple[State, dict[str, str]]:
    """Compare every file with its checksum; those that compaction replaced meanwhile do not count.

    Returns the last state that was read, and what is wrong with its files.
    """
    verified = Verified(folder)
    sound: set[str] = set()
    state = read_state(folder, manifest, salvage=True)
    while True:
        files = [file for table in manifest.tables for file in state.files(table)]
        unread = [file for file in files if file.name not in sound]
        wrong = verified.wrong(unread, again=True)
        sound |= {file.name for file in unread} - wrong.keys()
        if not wrong:
            return state, wrong
        state = read_state(folder, manifest, salvage=True)
        names = {file.name for table in manifest.tables for file in state.files(table)}
        if wrong.keys() <= names:
            return state, wrong


def _stray(
    names: list[str], state: State, manifest: Manifest, files: set[str], unfinished: bool
) -> list[str]:
    return [
        name
        for name in names
        if name not in (MANIFEST, *SIDE_FILES, *state.damaged)
        and not name.startswith(MADE_OF_IT)
        and name not in files
        and not (unfinished and name.endswith(TEMPORARY))
        and not _belongs(name, manifest, unfinished)
    ]


def _belongs(name: str, manifest: Manifest, unfinished: bool) -> bool:
    """Whether a file is of the log, or of a shard that is being computed or compacted."""
    if log_file(name) is not None:
        return True
    place = placed(name)
    if place is None:
        return False
    return place.table in manifest.tables and place.number < manifest.shards and unfinished
