"""Reading a run's log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from normlens.corpus.runs.entries import parse_entry
from normlens.corpus.runs.folder import Folder, RunError, another_manifest
from normlens.corpus.runs.log_files import ROOT, Folded, LogFile, log_file, parse_folded
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.record_columns import RecordColumns
from normlens.corpus.runs.shards import Done, Entry
from normlens.corpus.runs.state import State, built_state

#: How often a log is listed again because its driver folded files while they were being read.
_LISTINGS = 20


def read_state(folder: Folder, manifest: Manifest, *, salvage: bool = False) -> State:
    """Read which shards of a run are done, and their files, from its log alone.

    A damaged log is an error. With `salvage` what is sound in it counts, and the state names the
    files that are damaged.
    """
    before: int | None = None
    for _ in range(_LISTINGS):
        chain = listed_log(folder, before)
        if chain is None:
            raise RunError(
                f"the log of {str(folder)!r} vanished ({ROOT}/), which says what is done; put it "
                "back, or start the run again in another folder"
            )
        contents = folder.read_all(file.name for file in chain.files)
        lacking = [file for file in chain.files if file.name not in contents]
        if lacking and listed_log(folder, before) == chain:
            raise RunError(f"cannot read {lacking[0].name} in {str(folder)!r}")
        if lacking:
            continue
        try:
            return _Reading(folder, manifest, salvage).state(chain, contents)
        except _LostBaseError:
            # Not every place writes a file whole or not at all. A driver that was stopped while it
            # wrote its base has committed nothing and removed nothing: the one before it counts.
            older = listed_log(folder, chain.epoch) if len(chain.files) == 1 else None
            if older is None or older.base is None:
                raise
            before = chain.epoch
    raise RunError(f"the log of {str(folder)!r} changes faster than it can be read; try again")


class _LostBaseError(RunError):
    """The base of an epoch is missing or damaged."""


class Chain(NamedTuple):
    """The files of the newest epoch of a log: its base, and the folds and entries to read."""

    epoch: int
    base: LogFile | None
    files: list[LogFile]


def listed_log(folder: Folder, before: int | None = None) -> Chain | None:
    """List a log, and choose the files of its newest epoch, or of the newest one before another.

    None if there is no log.
    """
    named = [file for name in folder.names(ROOT) if (file := log_file(name)) is not None]
    listed = [file for file in named if before is None or file.epoch < before]
    epochs = [file.epoch for file in listed if file.kind == "base"]
    if not listed:
        return None
    if not epochs:
        return Chain(0, None, [])
    newest = [file for file in listed if file.epoch == max(epochs)]
    # Of two drivers that took over at once at most one has gone on.
    bases = [file for file in newest if file.kind == "base"]
    tokens = [file.token for file in newest if file.kind != "base"] or [bases[0].token]
    base = next((file for file in bases if file.token == tokens[0]), None)
    rest = [file for file in newest if file.kind != "base" and file.token == tokens[0]]
    chosen, last = [], 0
    # The longest fold from each place; files that it covers are about to be removed.
    for file in sorted(rest, key=lambda file: (file.first, -file.last)):
        if file.kind == "fold" and file.last > last:
            chosen.append(file)
            last = file.last
    chosen += [file for file in rest if file.kind == "entries" and file.first >= last]
    files = sorted(chosen, key=lambda file: file.first)
    return Chain(max(epochs), base, files if base is None else [base, *files])


class _Reading:
    """Parses the files of a log, and keeps in mind what is damaged."""

    def __init__(self, folder: Folder, manifest: Manifest, salvage: bool):
        self.folder, self.manifest, self.salvage = folder, manifest, salvage
        self.digest = manifest.digest
        self.damaged: list[str] = []

    def state(self, chain: Chain, contents: dict[str, bytes]) -> State:
        if chain.base is None:
            raise self._lost_base(f"the base of the log ({ROOT}/…) vanished")
        tables = tuple(self.manifest.tables)
        folds: list[Folded] = []
        entries: list[Entry] = []
        place = 0
        for number, file in enumerate(chain.files):
            data = contents[file.name]
            if file.kind == "base":
                folds += self._folded(file, data)
                continue
            if file.first != place:
                self._damage(file.name, "the file before it is missing")
            if file.kind == "fold":
                folds += self._folded(file, data)
                place = file.last
            else:
                is_last = number == len(chain.files) - 1
                read, place = self._entries(file, data, is_last)
                entries += read
        columns = [part for fold in folds for part in fold.columns]
        attempts: dict[int, int] = {}
        for fold in folds:
            for shard, count in fold.attempts.items():
                attempts[shard] = attempts.get(shard, 0) + count
        compacted = [part for fold in folds for part in fold.compacted]
        self._check_columns(columns)
        _check_tables(self.folder, self.manifest, (e for e in entries if isinstance(e, Done)))
        try:
            return built_state(
                chain.epoch, tables, columns, entries, attempts, compacted, self.damaged
            )
        except ValueError as error:
            raise _refused(self.folder, ROOT, str(error)) from error

    def _folded(self, file: LogFile, data: bytes) -> list[Folded]:
        try:
            folded, digest, epoch = parse_folded(data)
            if epoch != file.epoch:
                raise ValueError("it is another epoch's")
        except ValueError as error:
            if file.kind == "base":
                raise self._lost_base(f"{file.name} is damaged") from error
            self._damage(file.name, str(error))
            return []
        self._check_manifest(file.name, digest)
        return [folded]

    def _entries(self, file: LogFile, data: bytes, is_last: bool) -> tuple[list[Entry], int]:
        """Parse lines; return their entries and the number of the entry that comes next."""
        entries: list[Entry] = []
        *lines, torn = data.split(b"\n")
        if torn and not is_last:
            self._damage(file.name, "its last line is cut short")
        for number, line in enumerate(lines):
            try:
                entry, digest, epoch = parse_entry(line)
                if epoch != file.epoch:
                    raise ValueError("it is another epoch's")
            except ValueError as error:
                self._damage(file.name, f"line {number + 1}: {error}")
                continue
            self._check_manifest(file.name, digest)
            entries.append(entry)
        return entries, file.first + len(lines)

    def _damage(self, name: str, what: str) -> None:
        if not self.salvage:
            raise _refused(self.folder, name, what)
        if name not in self.damaged:
            self.damaged.append(name)

    def _lost_base(self, what: str) -> _LostBaseError:
        return _LostBaseError(
            f"{what} in {str(self.folder)!r}, which says which shards are done; put it back from a "
            "copy, or start the run again in another folder"
        )

    def _check_manifest(self, name: str, digest: str) -> None:
        if digest != self.digest:
            raise another_manifest(self.folder, name)

    def _check_columns(self, columns: Iterable[RecordColumns]) -> None:
        if any(set(part.tables) - set(self.manifest.tables) for part in columns):
            raise _another_run(self.folder, ROOT)


def _check_tables(folder: Folder, manifest: Manifest, records: Iterable[Done]) -> None:
    for done in records:
        if set(done.tables) != set(manifest.tables):
            raise _another_run(folder, f"shard {done.number}")


def _another_run(folder: Folder, what: str) -> RunError:
    return RunError(f"{what} in {str(folder)!r} is sound but not of this run; move it away")


def _refused(folder: Folder, name: str, what: str) -> RunError:
    return RunError(
        f"{name} in {str(folder)!r} is damaged: {what}; see all with normlens check {folder}, "
        f"compute again what it held with normlens run --resume {folder}"
    )
