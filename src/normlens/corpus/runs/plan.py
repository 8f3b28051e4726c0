"""Cutting a data set into shards."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from normlens.corpus.data.records import Record
from normlens.corpus.runs.errors import RunError
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.shards import Shard


class Numbers(Container[int]):
    """A set of numbers, eight bytes each."""

    def __init__(self, numbers: np.ndarray[Any, np.dtype[np.int64]]):
        self._numbers = np.sort(numbers)

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        place = int(np.searchsorted(self._numbers, number))
        return place < len(self._numbers) and int(self._numbers[place]) == number


def shards_to_do(
    data: Iterable[Record], manifest: Manifest, done: Container[int], epoch: int
) -> Iterator[Shard]:
    """The shards that are not done, in order, each read only when it is asked for."""
    source = iter(data)
    for number in range(manifest.shards):
        start = time.perf_counter()
        size = manifest.size(number)
        read = islice(source, size)
        # What is done has to be read past, but is not kept.
        records = () if number in done else tuple(read)
        count = sum(1 for _ in read) if number in done else len(records)
        if count != size:
            raise RunError(
                f"the data ended after {number * manifest.options.shard_size + count} sequences "
                f"where it had {manifest.sequences}; it was changed while the run went on"
            )
        if number not in done:
            first = number * manifest.options.shard_size
            yield Shard(number, first, records, time.perf_counter() - start, epoch)
