"""Safetensors files with checksums: arrays that are checked on use, or written as they come."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import UserDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import MapsFileError, OutputError, parse_json

# SHA-256 of results files: of the header and of each array, in the file's metadata.
#
# The header's covers the metadata, the names, types and shapes of all arrays and their checksums,
# so that an array can be checked when it is first used, without the others.


#: Where the metadata hold the checksums.
KEY = "sha256"

Arrays = Mapping[str, NDArray[Any]]
#: Raises unless the array of this name is as it was written.
Check = Callable[[str], None]


def sealed(arrays: Arrays, metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a file with the checksums of its arrays and of its header."""
    each = {name: _of_array(arrays[name]) for name in sorted(arrays)}
    sums = {"header": _of_header(metadata, arrays, each), "arrays": each}
    return {**metadata, KEY: json.dumps(sums)}


def check_header(path: Path, metadata: Mapping[str, str], arrays: Arrays) -> Check:
    """Raise unless a file's header is as it was written; return what checks an array by its name.

    A ValueError or a LookupError says that the checksums themselves cannot be read.
    """
    sums = parse_json(metadata[KEY])
    each = dict(sums["arrays"])
    if set(each) != set(arrays):
        raise ValueError("its checksums are not those of its arrays")
    if _of_header(metadata, arrays, each) != sums["header"]:
        raise _changed(path, "its header")

    def check(name: str) -> None:
        if _of_array(arrays[name]) != each[name]:
            raise _changed(path, f"the array {name!r}")

    return check


def _changed(path: Path, what: str) -> MapsFileError:
    return MapsFileError(
        f"{str(path)!r} is damaged: {what} does not match its checksum; copy the file again or "
        "make it anew (normlens.open(…, verify=False) opens it as it is)"
    )


def _of_array(array: NDArray[Any]) -> str:
    # As bytes in one dimension, which arrays without entries have as well.
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _of_header(metadata: Mapping[str, str], arrays: Arrays, each: Mapping[str, str]) -> str:
    kinds = {name: (str(array.dtype), array.shape) for name, array in arrays.items()}
    rest = {key: value for key, value in metadata.items() if key != KEY}
    return hashlib.sha256(json.dumps([rest, kinds, each], sort_keys=True).encode()).hexdigest()


class CheckedOnUse(UserDict[str, NDArray[Any]]):
    """Arrays that stay in their file, each checked when it is first asked for.

    `data` has them unchecked: shapes and types need no check of the numbers.
    """

    def __init__(self, arrays: Arrays, check: Check, prefix: str):
        super().__init__(arrays)
        self._check = check
        self._prefix = prefix  # of their names in the file
        self._unchecked = set(arrays)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name in self._unchecked:
            self._check(self._prefix + name)
            self._unchecked.discard(name)
        return self.data[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # to another process or in a copy: plain arrays


# A safetensors file whose large arrays are written while they are computed, layer by layer.
#
# A safetensors file begins with a header that names every array, its place and its size. Here room
# is kept for it, the arrays follow as they come, and the header is written when all of them are
# there.


#: What safetensors calls the types of arrays.
TYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "I64": np.dtype(np.int64),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {kind: name for name, kind in TYPES.items()}
#: Bytes of the number at the beginning that says how long the header is.
SIZE = 8
#: Bytes that are moved at a time.
_MOVED = 1 << 24

#: Gives an array in the file by its name, shape and type, to be written to.
Place = Callable[[str, tuple[int, ...], np.dtype[Any]], NDArray[Any]]


class GrowingFile:
    """A file at `path`, with `room` bytes for what its header will say."""

    def __init__(self, path: str, room: int):
        self._path = path
        self._room = room + -room % 8  # arrays behind it lie where processors like them
        self._places: dict[str, tuple[int, int]] = {}  # start, behind the header, and bytes
        self._end = 0  # of the arrays, behind the header

    def place(self, name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
        """An array of zeros in the file; what is written to it stands in the file."""
        start = SIZE + self._room + self._end
        size = math.prod(shape) * kind.itemsize
        with open(self._path, "r+b") as file:
            file.truncate(start + size)
            if hasattr(os, "posix_fallocate") and size:
                # A full disk would otherwise end the process at the first write.
                os.posix_fallocate(file.fileno(), start, size)
        self._places[name] = self._end, size
        self._end += size
        if not size:
            return np.zeros(shape, dtype=kind)  # nothing can be mapped
        return np.memmap(self._path, kind, "r+", start, shape).view(np.ndarray)

    def under(self, prefix: str) -> Place:
        """`place`, for names that begin with `prefix`."""
        return lambda name, shape, kind: self.place(prefix + name, shape, kind)

    def finish(self, tensors: Arrays, metadata: Mapping[str, str]) -> None:
        """Write the header and every array that has no place yet.

        An array may have fewer entries along its first axis than there was room for: those behind
        it move to where it ends.
        """
        entries: dict[str, Any] = {"__metadata__": dict(metadata)}
        begin, end = SIZE + self._room, 0
        with open(self._path, "r+b") as file:
            for name in [*self._places, *(name for name in tensors if name not in self._places)]:
                array = tensors[name]
                start, room = self._places.get(name, (-1, array.nbytes))
                if array.nbytes > room:
                    raise ValueError(f"{name!r} is larger than its place in the file")
                entries[name] = {
                    "dtype": _NAMES[array.dtype],
                    "shape": array.shape,
                    "data_offsets": (end, end + array.nbytes),
                }
                if start != end:
                    # What it is read from may be a later place in the same file.
                    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                    file.seek(begin + end)
                    for offset in range(0, array.nbytes, _MOVED):
                        file.write(data[offset : offset + _MOVED].tobytes())
                end += array.nbytes
            file.truncate(begin + end)
            header = json.dumps(entries, ensure_ascii=False).encode()
            if len(header) > self._room:
                raise OutputError(
                    f"the header of the maps takes {len(header)} bytes and has room for "
                    f"{self._room}; save the maps without `out` and report this, please"
                )
            file.seek(0)
            file.write(self._room.to_bytes(SIZE, "little"))
            file.write(header.ljust(self._room))


def mapped_arrays(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file that has been checked, each in the file until it is read.

    They may be written to, which leaves the file as it is.
    """
    whole = np.memmap(path, np.uint8, "c").view(np.ndarray)
    begin = SIZE + int.from_bytes(whole[:SIZE].tobytes(), "little")
    header = json.loads(whole[SIZE:begin].tobytes())
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        if entry["dtype"] not in TYPES:
            raise ValueError(f"{name!r} holds values of type {entry['dtype']}")
        start, end = entry["data_offsets"]
        array = whole[begin + start : begin + end].view(TYPES[entry["dtype"]])
        array = array.reshape(entry["shape"])
        arrays[name] = array if array.flags.aligned else array.copy()
    return arrays
