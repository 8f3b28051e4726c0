"""A shard between its stages: its sequences, the time that they took, and their batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from normlens.corpus.data.spans import EncodedRecord
from normlens.corpus.engines.shard_rows import ShardRows
from normlens.corpus.runs.shards import Shard
from normlens.results.explanation import Explanation
from normlens.results.maps import Maps

#: What is known of a sequence before it is measured.
Analysed = tuple[Maps, tuple[Explanation, ...]]

#: Bytes of maps that may wait to be measured; a batch is never smaller than one sequence.
HELD = 256 << 20


@dataclass(frozen=True)
class Entry:
    """One sequence: its running number in the data, and its tokens."""

    index: int
    encoded: EncodedRecord

    def __len__(self) -> int:
        """The tokens of the sequence, or of both that an encoder–decoder reads."""
        return sum(map(len, self.encoded.sequences))


class Clock:
    """Count the seconds that each stage of a shard takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def on(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent


@dataclass(frozen=True)
class Prepared:
    """A shard between its stages: tokenised, and with the rows that it has so far."""

    shard: Shard  # without its records
    entries: list[Entry]
    rows: ShardRows
    clock: Clock
    started: float


def batches(
    entries: list[Entry], size: int, bytes_of: Callable[[int], int], tokens: int = 0
) -> Iterator[list[Entry]]:
    """Cut sequences into batches of at most `size`: alike in length, their maps fit in memory.

    A batch of short sequences may have more of them, as long as it has no more than so many
    `tokens`, padding included. `bytes_of` estimates the memory of the maps of a sequence of so many
    tokens.
    """
    ordered = sorted(entries, key=lambda entry: (len(entry), entry.index))
    batch: list[Entry] = []
    for entry in ordered:
        # The longest comes last, and decides.
        fits = (len(batch) + 1) * bytes_of(len(entry)) <= HELD
        full = len(batch) >= size and (len(batch) + 1) * len(entry) > tokens
        if batch and (full or not fits):
            yield batch
            batch = []
        batch.append(entry)
    if batch:
        yield batch
