"""Cutting a data set into shards."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator

from normlens.corpus.runs.data_index import IndexedData
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.shards import Shard


def shards_to_do(data: IndexedData, manifest: Manifest, done: Container[int]) -> Iterator[Shard]:
    """The shards that are not done, in order, each read only when it is asked for."""
    for number in range(manifest.shards):
        if number in done:
            continue
        start = time.perf_counter()
        records = data.shard(number)
        first = number * manifest.options.shard_size
        yield Shard(number, first, records, time.perf_counter() - start)
