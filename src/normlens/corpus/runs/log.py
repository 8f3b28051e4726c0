"""The log of a run: what its driver commits, and what everyone reads.

`read_state` tells which shards are done and where their tables lie. A driver, one at a time, takes
over with `Log.begin` and commits with `append`. On a disk entries are appended to a file and
flushed; an object store cannot append, so there each commit is an object. Every so often a commit
is written as a fold of the entries before it, which are then removed, so a log has few files.

A driver that was believed dead and goes on harms nothing: its entries have an older epoch than the
last one's and do not count, and it finds that out at its next fold, or at its end.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from normlens.corpus.runs.entries import entry_line
from normlens.corpus.runs.folder import Folder, LocalFolder, RunError
from normlens.corpus.runs.log_files import (
    ROOT,
    base_name,
    entries_name,
    fold_name,
    folded_bytes,
    log_file,
)
from normlens.corpus.runs.log_reading import read_state
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.record_columns import RecordColumns
from normlens.corpus.runs.shards import Attempt, Compacted, Done, Entry
from normlens.corpus.runs.state import State, built_state

__all__ = ["Attempt", "Compacted", "Done", "Entry", "Log", "State", "empty_state", "read_state"]

#: Entries of which a fold is made, and folds of which a larger one is made.
FOLD = 64


def empty_state(manifest: Manifest) -> State:
    """The state of a run that has not begun."""
    return built_state(0, tuple(manifest.tables), [], [], {}, [])


class Log:
    """The log of a run in the hands of its driver."""

    def __init__(self, folder: Folder, manifest: Manifest, epoch: int, token: str):
        self.folder, self.epoch = folder, epoch
        self._tables, self._digest, self._token = tuple(manifest.tables), manifest.digest, token
        self._count = 0  # entries so far
        self._recent: list[Entry] = []  # since the last fold
        self._recent_files: list[str] = []
        self._folds: list[_Fold] = []  # since the last large one
        self._broken = False
        self._turn = Lock()  # shards and compacted files are committed by different threads

    @classmethod
    def begin(cls, folder: Folder, manifest: Manifest, state: State) -> Log:
        """Take a run over: from now on, `state` and what is appended here are all that counts."""
        older = [file for name in folder.names(ROOT) if (file := log_file(name)) is not None]
        epoch = 1 + max([state.epoch, *(file.epoch for file in older)])
        log = cls(folder, manifest, epoch, uuid.uuid4().hex[:8])
        base = base_name(epoch, log._token)
        folder.write(base, _base_bytes(log._digest, epoch, state))
        try:
            log.check()
        except RunError:
            folder.remove(base)
            raise
        folder.remove_all([file.name for file in older])
        return log

    def append(self, entries: Sequence[Entry]) -> None:
        """Commit entries: they are on the disk, or in the store, when this returns."""
        with self._turn:
            self._append(entries)

    def _append(self, entries: Sequence[Entry]) -> None:
        if self._broken:
            raise RunError(f"an entry of the log of {str(self.folder)!r} could not be written")
        self._broken = True  # half a line may be written before an error
        recent = [*self._recent, *entries]
        if len(recent) >= FOLD:
            self._fold(recent)
        else:
            self._write(entries)
            self._recent = recent
        self._count += len(entries)
        self._broken = False

    def check(self) -> None:
        """Refuse to go on if another driver has taken over, or does so at this moment."""
        listed = [file for name in self.folder.names(ROOT) if (file := log_file(name)) is not None]
        bases = [file for file in listed if file.kind == "base" and file.token != self._token]
        if any(file.epoch >= self.epoch for file in bases):
            raise RunError(
                f"another process has taken over the run in {str(self.folder)!r}; what this one "
                "did before is kept, and the other one goes on"
            )

    def _write(self, entries: Sequence[Entry]) -> None:
        lines = b"".join(entry_line(entry, self._digest, self.epoch) for entry in entries)
        if isinstance(self.folder, LocalFolder):
            name = entries_name(self.epoch, self._token, self._count - len(self._recent))
            self.folder.append(name, lines)
            self._recent_files = [name]
        else:
            name = entries_name(self.epoch, self._token, self._count)
            self.folder.write(name, lines)
            self._recent_files.append(name)

    def _fold(self, recent: list[Entry]) -> None:
        """Write the recent entries as a fold, or with those of the last folds as a large one."""
        self.check()
        start = self._count - len(self._recent)
        fold = _Fold(
            start,
            start + len(recent),
            RecordColumns.of([e for e in recent if isinstance(e, Done)], self._tables),
            [e for e in recent if not isinstance(e, Done)],
        )
        obsolete = self._recent_files
        if len(self._folds) + 1 >= FOLD:
            obsolete = [*obsolete, *map(self._name, self._folds)]
            fold, self._folds = _joined([*self._folds, fold], self._tables), []
        else:
            self._folds.append(fold)
        compacted = [entry for entry in fold.others if isinstance(entry, Compacted)]
        tries = Counter(entry.number for entry in fold.others if isinstance(entry, Attempt))
        contents = folded_bytes(self._digest, self.epoch, [fold.columns], tries, compacted)
        self.folder.write(self._name(fold), contents)
        # From here on the fold counts, and what it covers is of no use any more.
        self.folder.remove_all(obsolete)
        self._recent, self._recent_files = [], []

    def _name(self, fold: _Fold) -> str:
        return fold_name(self.epoch, self._token, fold.first, fold.last)


class _Fold(NamedTuple):
    """Entries from one place of an epoch to another."""

    first: int
    last: int  # excluded
    columns: RecordColumns
    others: list[Entry]


def _joined(folds: list[_Fold], tables: Sequence[str]) -> _Fold:
    return _Fold(
        folds[0].first,
        folds[-1].last,
        RecordColumns.joined([fold.columns for fold in folds], tables),
        [entry for fold in folds for entry in fold.others],
    )


def _base_bytes(digest: str, epoch: int, state: State) -> bytes:
    """Write a state; shards whose tables are all compacted need no columns for files."""
    covered = state.records.rows["number"] < 0
    if state.compacted:
        covered = ~covered
        for table in state.records.tables:
            covered &= state.covered(table)
    columns = [
        state.records.taken(covered).without_files(),
        state.records.taken(~covered),
    ]
    return folded_bytes(digest, epoch, columns, state.attempts, state.compacted)
