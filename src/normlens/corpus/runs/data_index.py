"""The index of a run's data, kept in its folder so that resuming seeks instead of reading again.

The file vouches for itself (it has a checksum) and for nothing else: without it, or if it does not
fit, the data is read through once more. It is trusted as long as the data files have the size and
time that they had; a file with another time is compared by its SHA-256, and each block's records by
their checksum whenever they are read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.corpus.data.files import DataFile, FileData, Index, digest, read_through, unreadable
from normlens.corpus.data.records import Data, Reading, Record
from normlens.corpus.runs.folder import Folder, RunError, Stamp, local_stamp
from normlens.corpus.runs.ledger import DATA_INDEX, sealed, unsealed
from normlens.corpus.runs.manifest import Manifest, changes, refuse

FORMAT = "normlens-data-index"
VERSION = 1


class IndexedData:
    """A data set with its index: its blocks one by one, in any order, each as it was."""

    def __init__(
        self,
        data: Data,
        index: Index,
        stamps: Sequence[Stamp],
        first: Sequence[Record] = (),
        saved: bool = False,
    ):
        self.data, self.index, self._saved = data, index, saved
        self._stamps = list(stamps)  # of the files
        self._first = first  # records that are in memory anyway
        self._reading: Reading | None = None
        self._at = 0  # the block that the reading comes to next

    @property
    def described(self) -> dict[str, Any]:
        """What a manifest says of the data."""
        index = self.index
        return {
            "name": self.data.name,
            "fingerprint": index.fingerprint,
            "sequences": index.sequences,
        }

    def block(self, number: int) -> tuple[Record, ...]:
        """Read the records of one block."""
        index = self.index
        begin = number * index.size
        end = min(begin + index.size, index.sequences)
        self._check_files(number)
        if end <= len(self._first):
            return tuple(self._first[begin:end])
        records = tuple(islice(self._reading_at(number), end - begin))
        self._at = number + 1
        if len(records) < end - begin:
            raise RunError(
                f"the data ended after {begin + len(records)} sequences where it had "
                f"{index.sequences}; it was changed while the run went on"
            )
        if not index.matches(number, records):
            raise RunError(
                f"sequences {begin} to {end - 1} of {self.data.name!r} are not what they were when "
                "the run began; put the data back and resume, or start a new run"
            )
        return records

    def _reading_at(self, number: int) -> Reading:
        if self._reading is None or (self._at != number and (self.data.seeks or self._at > number)):
            self._reading = self.data.reading(self.index.mark(number))
        elif self._at < number:  # data that can only be read in order
            ahead = (number - self._at) * self.index.size
            next(islice(self._reading, ahead, ahead), None)
        return self._reading

    def _check_files(self, number: int) -> None:
        """Refuse files that a block lies in and that are not what they were."""
        if not isinstance(self.data, FileData):
            return
        last = number + 1 == len(self.index.marks)
        until = self.index.mark(number if last else number + 1).file
        for place in range(self.index.mark(number).file, until + 1):
            then, file = self._stamps[place], self.data.files[place]
            now = _stamp(file)
            if _may_be_same(then, now):
                continue
            if digest(file.path) != self.index.digests[place]:
                raise RunError(
                    f"{str(file.path)!r} was changed while the run went on; put it back and resume"
                )
            self._stamps[place] = now

    def save(self, folder: Folder) -> None:
        """Keep the index in a run's folder, unless it is the one that lies there."""
        if self._saved:
            return
        index = self.index
        told = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": index.fingerprint,
            "sequences": index.sequences,
            "size": index.size,
            "files": [
                [stamp.size, stamp.mark, sha256]
                for stamp, sha256 in zip(self._stamps, index.digests, strict=True)
            ],
            "marks": index.marks.T.tolist(),
            "checksums": index.checksums.tolist(),
        }
        folder.write_note(DATA_INDEX, sealed(told))


def index_data(data: Data, size: int) -> IndexedData:
    """Read a data set through, once."""
    before = _stamps(data)
    index, first = read_through(data, size)
    for place, (then, now) in enumerate(zip(before, _stamps(data), strict=True)):
        if isinstance(data, FileData) and not _may_be_same(then, now):
            path = str(data.files[place].path)
            raise RunError(f"{path!r} was changed while it was read; start again")
    return IndexedData(data, index, before, first)


def reopen(folder: Folder, manifest: Manifest, data: Data) -> IndexedData:
    """The data of a run with its index, from the run's folder if it is there.

    Files that are not the run's are refused before a record of them is read. Of other data the
    fingerprint is that of the data as it is now; whether it is the run's is for the caller.
    """
    stored = _load(folder, manifest)
    if not isinstance(data, FileData):
        if stored is not None and data.quick_fingerprint() == stored[0].fingerprint:
            return IndexedData(data, stored[0], [], saved=True)
        return index_data(data, manifest.options.block_size)
    now = _stamps(data)
    if stored is not None and len(stored[1]) != len(now):
        stored = None
    unchanged: dict[int, str] = {}
    if stored is not None:
        index, then = stored
        for place, (before, after) in enumerate(zip(then, now, strict=True)):
            if before.mark is not None and before == after:
                unchanged[place] = index.digests[place]
    digests = [
        unchanged[place] if place in unchanged else digest(file.path)
        for place, file in enumerate(data.files)
    ]
    refuse(folder, changes(manifest, {"data": {"fingerprint": data.fingerprint_of(digests)}}))
    if stored is None:
        return index_data(data, manifest.options.block_size)
    return IndexedData(data, index, now, saved=now == then)


def _may_be_same(then: Stamp, now: Stamp) -> bool:
    """Whether nothing speaks for a change; a file that is new has no time that could tell."""
    return now.size == then.size and (now.mark == then.mark or None in (now.mark, then.mark))


def _stamp(file: DataFile) -> Stamp:
    try:
        return local_stamp(os.stat(file.path))
    except OSError as error:
        raise unreadable(file.path, error) from error


def _stamps(data: Data) -> list[Stamp]:
    return [_stamp(file) for file in data.files] if isinstance(data, FileData) else []


def _load(folder: Folder, manifest: Manifest) -> tuple[Index, list[Stamp]] | None:
    """Read the index and the stamps of its files; None if it is damaged or of other data."""
    contents = folder.read(DATA_INDEX)
    try:
        body = unsealed(contents or b"")
        if (body["format"], body["version"]) != (FORMAT, VERSION):
            return None
        index = Index(
            fingerprint=body["fingerprint"],
            sequences=body["sequences"],
            size=body["size"],
            digests=tuple(str(file[2]) for file in body["files"]),
            marks=np.array(body["marks"], dtype=np.int64).T.reshape(-1, 4),
            checksums=np.array(body["checksums"], dtype=np.int64),
        )
        stamps = [Stamp(int(file[0]), file[1]) for file in body["files"]]
    except (ValueError, KeyError, TypeError, IndexError, OverflowError):
        return None
    told = (index.fingerprint, index.sequences, index.size)
    asked = (manifest.data["fingerprint"], manifest.sequences, manifest.options.block_size)
    fits = told == asked and len(index.marks) == len(index.checksums) == manifest.blocks
    files = max(1, len(stamps))
    return (index, stamps) if fits and _are_marks(index.marks, files) else None


def _are_marks(marks: NDArray[np.int64], files: int) -> bool:
    """Whether marks lie in the files that there are; whoever forges others gets them refused."""
    return bool((marks >= 0).all() and (marks[:, 0] < files).all())
