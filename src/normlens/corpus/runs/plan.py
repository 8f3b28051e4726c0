"""Cutting a data set into shards."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator
from typing import Any

import numpy as np

from normlens.corpus.runs.data_index import IndexedData
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
    data: IndexedData, manifest: Manifest, done: Container[int], epoch: int
) -> Iterator[Shard]:
    """The shards that are not done, in order, each read only when it is asked for."""
    for number in range(manifest.shards):
        if number in done:
            continue
        start = time.perf_counter()
        records = data.shard(number)
        first = number * manifest.options.shard_size
        yield Shard(number, first, records, time.perf_counter() - start, epoch)
