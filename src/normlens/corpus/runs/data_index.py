"""The index of a run's data: where each block begins, kept in the run's folder.

With it resuming seeks instead of reading again. Without it, or if it does not fit, the data is read
through once more. Each block's records are compared with their checksum whenever they are read.
"""

from __future__ import annotations

import io
import zlib
from array import array
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normlens.corpus.data.records import Data, Mark, Reading, Record, written
from normlens.corpus.runs.folder import Folder, RunError
from normlens.corpus.runs.ledger import DATA_INDEX
from normlens.corpus.runs.manifest import Manifest, changes, refuse


class Index(NamedTuple):
    """Where the blocks of a data set begin, of `size` sequences each."""

    fingerprint: str
    sequences: int
    size: int
    marks: NDArray[np.int64]  # (block, 4): the fields of a Mark
    checksums: NDArray[np.int64]  # (block,)


class IndexedData:
    """A data set with its index: its blocks one by one, in any order, each as it was."""

    def __init__(self, data: Data, index: Index, saved: bool = False):
        self.data, self.index, self._saved = data, index, saved
        self._reading: Reading | None = None
        self._at = 0  # the block that the reading comes to next

    @property
    def described(self) -> dict[str, Any]:
        """What a manifest says of the data."""
        fingerprint, sequences, *_ = self.index
        return {"name": self.data.name, "fingerprint": fingerprint, "sequences": sequences}

    def block(self, number: int) -> tuple[Record, ...]:
        """Read the records of one block."""
        begin = number * self.index.size
        end = min(begin + self.index.size, self.index.sequences)
        records = tuple(islice(self._reading_at(number), end - begin))
        self._at = number + 1
        if checksum(records) != int(self.index.checksums[number]):
            raise RunError(
                f"sequences {begin} to {end - 1} of {self.data.name!r} are not what they were when "
                "the run began; put the data back and resume, or start a new run"
            )
        return records

    def _reading_at(self, number: int) -> Reading:
        if self._reading is None or (self._at != number and (self.data.seeks or self._at > number)):
            self._reading = self.data.reading(Mark(*map(int, self.index.marks[number])))
        elif self._at < number:  # data that can only be read in order
            ahead = (number - self._at) * self.index.size
            next(islice(self._reading, ahead, ahead), None)
        return self._reading

    def save(self, folder: Folder) -> None:
        """Keep the index in a run's folder, unless it is the one that lies there."""
        if not self._saved:
            contents = io.BytesIO()
            np.savez(contents, **self.index._asdict())
            folder.write(DATA_INDEX, contents.getvalue())


def checksum(records: Iterable[Record], value: int = 0) -> int:
    """CRC-32 of records, in their order, that goes on from `value`."""
    for record in records:
        value = zlib.crc32(_contents(record), value)
    return value


def _contents(record: Record) -> bytes:
    """All of a record as bytes; most are a text and nothing else, which is quickly written."""
    text = record.text
    if type(text) is str and record.unreadable is None and not record.extra:
        return f"{record.id}\0{text}\0".encode("utf-8", "surrogatepass")
    return written(record)


def index_data(data: Data, size: int) -> IndexedData:
    """Read a data set through: its fingerprint, its sequences, and where each block begins."""
    stamps, fingerprint, reading = data.stamps(), data.fingerprint, data.reading()
    # Eight bytes a number: there may be millions of blocks.
    marks, checksums = array("q", reading.mark), array("q")
    count = value = 0
    for count, record in enumerate(islice(reading, data.limit), 1):
        value = checksum([record], value)
        if count % size == 0:
            marks.extend(reading.mark)
            checksums.append(value)
            value = 0
    if count % size:
        checksums.append(value)
    if data.stamps() != stamps:
        raise RunError(f"{data.name!r} was changed while it was read; start again")
    found = np.array(marks[: 4 * len(checksums)], dtype=np.int64).reshape(-1, 4)
    index = Index(fingerprint, count, size, found, np.array(checksums, dtype=np.int64))
    return IndexedData(data, index)


def reopen(folder: Folder, manifest: Manifest, data: Data) -> IndexedData:
    """The data of a run with its index, from the run's folder if it is there.

    Data that is not the run's is refused before a record of it is read.
    """
    refuse(folder, changes(manifest, {"data": {"fingerprint": data.fingerprint}}))
    stored = _load(folder, manifest)
    if stored is None:
        return index_data(data, manifest.options.block_size)
    return IndexedData(data, stored, saved=True)


def _load(folder: Folder, manifest: Manifest) -> Index | None:
    """Read the index; None if it is lost, damaged or of other data."""
    try:
        with np.load(io.BytesIO(folder.read(DATA_INDEX) or b""), allow_pickle=False) as file:
            counts = int(file["sequences"]), int(file["size"])
            index = Index(str(file["fingerprint"]), *counts, file["marks"], file["checksums"])
    except Exception:  # whatever a damaged archive makes NumPy and zipfile raise
        return None
    asked = (manifest.data["fingerprint"], manifest.sequences, manifest.options.block_size)
    shapes = (index.marks.shape, index.checksums.shape)
    fits = index[:3] == asked and shapes == ((manifest.blocks, 4), (manifest.blocks,))
    return index if fits and (index.marks >= 0).all() else None
