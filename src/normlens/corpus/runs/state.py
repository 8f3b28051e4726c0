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

    `records` are in the order of their numbers. A compacted file stands for one table of all of its
    shards; of a shard that is done, the tables that no such file covers have files of their own.
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

    @property
    def file_count(self) -> int:
        """How many files hold the tables."""
        alone = sum(int((~self.covered(table)).sum()) for table in self.records.tables)
        return len(self.compacted) + alone

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
        """Take shards and compacted files away, with the shards whose tables these hold.

        Other tables of such a shard stay where they are: what is computed again comes to the same
        rows, of which only those of the lost file are needed.
        """
        gone = np.isin(self.numbers, np.fromiter(lost, np.int64, len(lost)))
        for part in lost_parts:
            gone[self._span(part)] = True
        kept = tuple(part for part in self.compacted if part not in lost_parts)
        return replace(self, records=self.records.taken(~gone), compacted=kept)

    @property
    def incomplete_parts(self) -> tuple[Compacted, ...]:
        """The compacted files with rows of shards that are not done.

        Another file with rows of those shards was lost, and they are to be computed again.
        """
        return tuple(part for part in self.compacted if self._lacks_shards(part))

    def _lacks_shards(self, part: Compacted) -> bool:
        span = self._span(part)
        return span.stop - span.start != part.last - part.first + 1

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
    lie within its shards.
    """
    entries = list(entries)
    records = [entry for entry in entries if isinstance(entry, Done)]
    joined = RecordColumns.joined([*columns, RecordColumns.of(records, tables)], tables)
    _, first = np.unique(joined.rows["number"], return_index=True)
    tries = Counter(attempts)
    tries.update(entry.number for entry in entries if isinstance(entry, Attempt))
    parts: dict[str, list[Compacted]] = {}
    for part in (*compacted, *(entry for entry in entries if isinstance(entry, Compacted))):
        others = [kept for kept in parts.get(part.table, ()) if not _within(kept, part)]
        if any(_overlap(kept, part) for kept in others) and not damaged:
            raise ValueError(f"{part.file.name} covers shards that another file covers")
        # Where damage hides what came between them, the newer one counts.
        parts[part.table] = [kept for kept in others if not _overlap(kept, part)] + [part]
    ordered = sorted(
        (part for of_table in parts.values() for part in of_table),
        key=lambda part: (part.table, part.first),
    )
    return State(epoch, joined.taken(first), dict(tries), tuple(ordered), tuple(damaged))


def _within(part: Compacted, other: Compacted) -> bool:
    return part.table == other.table and other.first <= part.first and part.last <= other.last


def _overlap(part: Compacted, other: Compacted) -> bool:
    return part.table == other.table and part.first <= other.last and other.first <= part.last
