"""Cutting a data set into shards."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator
from itertools import islice

from normlens.corpus.data.records import Record
from normlens.corpus.runs.errors import RunError
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.shards import Shard


def shards_to_do(
    data: Iterable[Record], manifest: Manifest, done: Container[int]
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
            yield Shard(number, first, records, time.perf_counter() - start)
