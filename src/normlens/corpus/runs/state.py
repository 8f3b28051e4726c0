"""What a run's log says: which shards are done, and which files hold their tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from normlens.corpus.runs.record_columns import RecordColumns
from normlens.corpus.runs.shards import Attempt, Compacted, Done, Entry, File


@dataclass(frozen=True)
class State:
    """The state of a run at one moment, small enough for hundreds of thousands of shards.

    `records` are in the order of their numbers. Shards that a compacted file covers are done, all
    of them; a shard that is lost takes along the files that cover it, and with them their shards.
    """

    epoch: int  # of the last driver; 0 if there was none yet
    records: RecordColumns
    attempts: Mapping[int, int] = field(default_factory=dict)  # shard → tries that failed
    compacted: tuple[Compacted, ...] = ()  # by table and first shard
    damaged: tuple[str, ...] = ()  # files of the log that cannot be trusted in full

    @property
    def done(self) -> DoneShards:
        """The shards that are done, by number."""
        return DoneShards(self)

    @property
    def numbers(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The numbers of the shards that are done, in order."""
        return self.records.rows["number"]

    @property
    def sequences(self) -> int:
        """Sequences of these shards that were analysed."""
        return int(self.records.rows["sequences"].sum())

    @property
    def failures(self) -> int:
        """Sequences of these shards that could not be analysed."""
        return int(self.records.rows["failures"].sum())

    @property
    def tokens(self) -> int:
        return int(self.records.rows["tokens"].sum())

    @property
    def seconds(self) -> dict[str, float]:
        """Time per stage, summed over workers."""
        sums = np.nansum(self.records.rows["seconds"], axis=0)
        return dict(zip(self.records.stages, sums.tolist(), strict=True))

    @property
    def spans(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """When each shard was started and finished; (shards, 2)."""
        rows = self.records.rows
        return np.stack([rows["started"], rows["finished"]], axis=1)

    def files(self, table: str) -> list[File]:
        """List the files that hold a table, in the order of shards."""
        parts = self._parts(table)
        alone = np.flatnonzero(~self.covered(table))
        files = self.records.files(table, alone)
        if not parts:
            return files
        numbers = self.numbers[alone].tolist()
        placed = [(part.first, part.file) for part in parts]
        placed += zip(numbers, files, strict=True)
        return [file for _, file in sorted(placed, key=lambda each: each[0])]

    def sizes(self, table: str) -> Iterator[tuple[str, int]]:
        """Give the names of the same files with their sizes in bytes, in any order."""
        for part in self._parts(table):
            yield part.file.name, part.file.bytes
        yield from self.records.sizes(table, np.flatnonzero(~self.covered(table)))

    def covered(self, table: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Tell which of the shards that are done have a table in a compacted file."""
        covered = np.zeros(len(self.records), bool)
        for part in self._parts(table):
            start, stop = np.searchsorted(self.numbers, [part.first, part.last + 1])
            covered[start:stop] = True
        return covered

    def _parts(self, table: str) -> list[Compacted]:
        return [part for part in self.compacted if part.table == table]

    def without(self, lost: Collection[int], lost_parts: Collection[Compacted] = ()) -> State:
        """Take shards and compacted files away, with the files and shards that hang on them."""
        gone = np.isin(self.numbers, np.fromiter(lost, np.int64, len(lost)))
        kept, leaving = list(self.compacted), list(lost_parts)
        while leaving := leaving + [part for part in kept if gone[self._span(part)].any()]:
            for part in leaving:
                gone[self._span(part)] = True
            kept = [part for part in kept if part not in leaving]
            leaving = []
        return replace(self, records=self.records.taken(~gone), compacted=tuple(kept))

    def _span(self, part: Compacted) -> slice:
        start, stop = np.searchsorted(self.numbers, [part.first, part.last + 1])
        return slice(int(start), int(stop))


class DoneShards(Mapping[int, Done]):
    """Records by the number of their shard, each built when it is asked for."""

    def __init__(self, state: State):
        self._state = state

    @cached_property
    def _covered(self) -> dict[str, np.ndarray[Any, np.dtype[np.bool_]]]:
        return {table: self._state.covered(table) for table in self._state.records.tables}

    def __getitem__(self, number: int) -> Done:
        """Give a shard's record, with the files that are its alone."""
        place = self._place(number)
        if place is None:
            raise KeyError(number)
        tables = [table for table, covered in self._covered.items() if not covered[place]]
        return self._state.records.record(place, tables)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._place(number) is not None

    def __iter__(self) -> Iterator[int]:
        return iter(self._state.numbers.tolist())

    def __len__(self) -> int:
        return len(self._state.records)

    def _place(self, number: int) -> int | None:
        numbers = self._state.numbers
        place = int(np.searchsorted(numbers, number))
        return place if place < len(numbers) and numbers[place] == number else None


def built_state(
    epoch: int,
    tables: Sequence[str],
    columns: Iterable[RecordColumns],
    entries: Iterable[Entry],
    attempts: Mapping[int, int],
    compacted: Iterable[Compacted],
    damaged: Sequence[str] = (),
) -> State:
    """Build a state from folded records and what came after them.

    Of two records of one shard the first counts. A compacted file replaces those of its table that
    lie within its shards. One that covers shards without a record is a ValueError, unless damage
    explains it: then its other shards are lost, too.
    """
    entries = list(entries)
    records = [entry for entry in entries if isinstance(entry, Done)]
    joined = RecordColumns.joined([*columns, RecordColumns.of(records, tables)], tables)
    numbers, first = np.unique(joined.rows["number"], return_index=True)
    tries = Counter(attempts)
    tries.update(entry.number for entry in entries if isinstance(entry, Attempt))
    parts: list[Compacted] = []
    lost: list[Compacted] = []
    for part in (*compacted, *(entry for entry in entries if isinstance(entry, Compacted))):
        parts = [kept for kept in parts if not _within(kept, part)]
        span = np.searchsorted(numbers, [part.first, part.last + 1])
        overlaps = any(_overlap(kept, part) for kept in parts)
        if overlaps or span[1] - span[0] != part.last - part.first + 1:
            if not damaged:
                raise ValueError(f"{part.file.name} covers shards that are not done, or covered")
            lost.append(part)
        parts.append(part)
    parts.sort(key=lambda part: (part.table, part.first))
    state = State(epoch, joined.taken(first), dict(tries), tuple(parts), tuple(damaged))
    return state.without((), lost)


def _within(part: Compacted, other: Compacted) -> bool:
    return part.table == other.table and other.first <= part.first and part.last <= other.last


def _overlap(part: Compacted, other: Compacted) -> bool:
    return part.table == other.table and part.first <= other.last and other.first <= part.last
