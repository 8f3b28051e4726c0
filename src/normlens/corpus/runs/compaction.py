"""Compaction: the small files that shards leave become few large ones, one table at a time.

A new file is written whole and flushed, then the log says which shards it stands for, and only then
are the files that it replaces removed. Whatever stops this leaves either the old files in charge or
the new one, and at most a file that the log does not know, which the next driver removes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from threading import Event

import pyarrow as pa

from normlens.corpus.runs.compaction_plan import Piece, Sizes, SmallFiles
from normlens.corpus.runs.folder import Folder, LocalFolder, RunError
from normlens.corpus.runs.joining import JoinedFile, Unjoinable
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.merging import combining
from normlens.corpus.runs.shards import Compacted, Done, File, part_name
from normlens.corpus.runs.state import State

#: Files that are read ahead of being joined, and their bytes; a store answers several at once.
AHEAD, AHEAD_BYTES = 64, 64 << 20


class DamagedFile(RunError):
    """Files that are to be joined are not what their records say, or not of their table."""

    def __init__(self, folder: Folder, pieces: Sequence[Piece], what: str):
        more = f" (or one of {len(pieces) - 1} with it)" if len(pieces) > 1 else ""
        super().__init__(
            f"{pieces[0].file.name}{more} in {str(folder)!r} {what}; see all with normlens check "
            f"{folder}, compute them again with normlens run --resume {folder}"
        )
        self.pieces = pieces


class Stopped(Exception):
    """The run ends before a file is finished."""


class Compaction:
    """The files of a run that may still be joined, and how they are.

    `commit` writes an entry to the run's log and returns once it will last, and nobody else has
    taken the run over. Whoever sets `stopped` ends the file that is being written.
    """

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        state: State,
        epoch: int,
        commit: Callable[[Compacted], None],
        sizes: Sizes | None = None,
    ):
        self.folder, self.manifest, self.epoch = folder, manifest, epoch
        self.sizes = sizes or Sizes()
        self._commit = commit
        self._numbers = count(1)
        self._small = {
            table: SmallFiles(self.sizes, pieces_of(state, table)) for table in manifest.tables
        }
        # Shards that are computed again because a file of another table was lost.
        self._incomplete = state.incomplete_parts
        self.has_joined = bool(state.compacted)
        self.stopped = Event()

    def add(self, done: Done) -> None:
        """Take the files of a new shard into account."""
        there = {part.table for part in self._incomplete if part.first <= done.number <= part.last}
        for table, file in done.tables.items():
            if table not in there:
                self._small[table].add(Piece(done.number, done.number, file))

    def step(self, *, rest: bool = False) -> bool:
        """Join neighbours of one table, if some are due (with `rest` any two); tell if there were.

        Files that are missing or damaged are left out from then on, with an error.
        """
        # The largest backlog first: no table waits for ever behind one that always has some due.
        for table, small in sorted(self._small.items(), key=lambda each: -len(each[1])):
            if group := small.due(rest=rest):
                try:
                    taken, entry = self._join(table, group)
                except DamagedFile as error:
                    small.remove(error.pieces)
                    raise
                self._commit(entry)
                small.remove(taken)
                small.add(Piece(entry.first, entry.last, entry.file))
                # On a store a driver may be stopped here, and wake when another one relies on these
                # files: there the end of the run removes them.
                if isinstance(self.folder, LocalFolder):
                    self.folder.remove_all([piece.file.name for piece in taken])
                self.has_joined = True
                # The rows are gone; pyarrow would keep their memory for the next ones.
                pa.default_memory_pool().release_unused()
                return True
        return False

    def _join(self, table: str, group: Sequence[Piece]) -> tuple[list[Piece], Compacted]:
        """Write the first of some files as one, until it is large enough."""
        name = part_name(table, next(self._numbers), self.epoch)
        combine = combining(self.manifest, table)
        taken: list[Piece] = []
        with self.folder.writing(name) as sink, JoinedFile(sink, combine) as joined:
            try:
                for piece, contents in self._contents(group):
                    taken.append(piece)
                    if piece.file.rows or len(taken) == 1:  # nothing is to be read in the others
                        joined.add(contents)
                    if joined.size >= self.sizes.size and len(taken) > 1:
                        break
                joined.close()
            except Unjoinable as error:
                blamed = taken if error.together else taken[-1:]
                raise DamagedFile(self.folder, blamed, f"cannot be joined: {error}") from error
            if combine is None and joined.rows != sum(piece.file.rows for piece in taken):
                raise RunError(f"{name} would not hold the rows of the files that it replaces")
        file = File(name, joined.rows, joined.size, joined.sha256)
        return taken, Compacted(table, taken[0].first, taken[-1].last, file)

    def _contents(self, group: Sequence[Piece]) -> Iterator[tuple[Piece, bytes]]:
        """Read files in their order, some ahead, each compared with its checksum."""
        for some in _in_batches(group):
            if self.stopped.is_set():
                raise Stopped
            read = self.folder.read_all([piece.file.name for piece in some])
            for piece in some:
                contents = read.pop(piece.file.name, None)
                if contents is None:
                    raise DamagedFile(self.folder, [piece], "is missing")
                if hashlib.sha256(contents).hexdigest() != piece.file.sha256:
                    raise DamagedFile(
                        self.folder, [piece], "is damaged: its SHA-256 is not the record's"
                    )
                yield piece, contents


def pieces_of(state: State, table: str) -> Iterable[Piece]:
    """List a table's files with the shards that each of them holds."""
    parts = {part.file.name: part for part in state.compacted if part.table == table}
    numbers = iter(state.numbers[~state.covered(table)].tolist())
    for file in state.files(table):
        if part := parts.get(file.name):
            yield Piece(part.first, part.last, file)
        else:
            number = next(numbers)
            yield Piece(number, number, file)


def _in_batches(group: Sequence[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in group:
        if batch and (len(batch) == AHEAD or size + piece.bytes > AHEAD_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += piece.bytes
    if batch:
        yield batch
