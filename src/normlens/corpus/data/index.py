"""The index of a data set: what one reading of all of it has found out.

Its fingerprint, the number of its sequences, and for each shard where it begins and a checksum of
its records. With it a shard is read alone, and read for certain as it was.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from normlens.corpus.data.reading import Mark
from normlens.corpus.data.records import Data, Record, written

#: Bytes of memory for records that are kept from the reading: small data is read once in all.
KEPT = 32 << 20
#: Bytes that a record takes beside its contents.
_OBJECT = 350


@dataclass(frozen=True)
class Index:
    """Where the shards of a data set begin, of `size` sequences each."""

    fingerprint: str
    sequences: int
    size: int
    digests: tuple[str, ...]  # SHA-256 of each file, where the data lies in files
    marks: NDArray[np.int64]  # (shard, 4): the fields of a Mark
    checksums: NDArray[np.int64]  # (shard,)

    def mark(self, shard: int) -> Mark:
        return Mark(*map(int, self.marks[shard]))

    def matches(self, shard: int, records: Iterable[Record]) -> bool:
        """Whether these are the records that the shard had when the index was made."""
        return checksum(records) == int(self.checksums[shard])


def checksum(records: Iterable[Record]) -> int:
    """CRC-32 of records, in their order."""
    value = 0
    for record in records:
        value = zlib.crc32(_contents(record), value)
    return value


def _contents(record: Record) -> bytes:
    """All of a record as bytes; most are a text and nothing else, which is quickly written."""
    text = record.text
    if type(text) is str and record.unreadable is None and not record.extra:
        return f"{record.id}\0{text}\0".encode("utf-8", "surrogatepass")
    return written(record)


def read_through(data: Data, size: int) -> tuple[Index, list[Record]]:
    """Read all of a data set once; the index, and the first records as far as memory is spared."""
    reading = data.reading(fingerprint=True)
    # Eight bytes a number: there may be millions of shards.
    marks, checksums = array("q", reading.mark), array("q")
    first: list[Record] = []
    count = held = value = 0
    for count, record in enumerate(islice(reading, data.limit), 1):
        contents = _contents(record)
        value = zlib.crc32(contents, value)
        held += _OBJECT + len(contents)
        if held <= KEPT:
            first.append(record)
        if count % size == 0:
            marks.extend(reading.mark)
            checksums.append(value)
            value = 0
    if count % size:
        checksums.append(value)
    fingerprint = reading.fingerprint() or data.fingerprint
    index = Index(
        fingerprint=fingerprint,
        sequences=count,
        size=size,
        digests=reading.digests,
        marks=np.array(marks[: 4 * len(checksums)], dtype=np.int64).reshape(-1, 4),
        checksums=np.array(checksums, dtype=np.int64),
    )
    return index, first
