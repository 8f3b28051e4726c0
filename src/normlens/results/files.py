"""Safetensors files with checksums: arrays that are checked on use, or written as they come."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

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


class CheckedOnUse(Mapping[str, NDArray[Any]]):
    """Arrays that stay in their file, each checked when it is first asked for."""

    def __init__(self, arrays: Arrays, check: Check, prefix: str):
        self._arrays = arrays
        self._check = check
        self._prefix = prefix  # of their names in the file
        self._checked: set[str] = set()

    def __getitem__(self, name: str) -> NDArray[Any]:
        array = self._arrays[name]
        if name not in self._checked:
            self._check(self._prefix + name)
            self._checked.add(name)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays  # Mapping's would check the array

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # to another process or in a copy: plain arrays

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all arrays, which needs none of their numbers."""
        return shapes_of(self._arrays)


def shapes_of(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    """The shape of each array; of arrays in a file without reading them."""
    if isinstance(arrays, CheckedOnUse):
        return arrays.shapes
    return {name: array.shape for name, array in arrays.items()}


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


class _Region(NamedTuple):
    """Where the file has kept room for an array."""

    start: int  # behind the header
    size: int
    array: NDArray[Any]


class GrowingFile:
    """A file at `path`, with `room` bytes for what its header will say."""

    def __init__(self, path: str, room: int):
        self._path = path
        self._header = room + -room % 8  # arrays behind it lie where processors like them
        self._regions: dict[str, _Region] = {}
        self._end = 0  # of the arrays, behind the header

    def place(self, name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
        """An array of zeros in the file; what is written to it stands in the file."""
        start = SIZE + self._header + self._end
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        with open(self._path, "r+b") as file:
            file.truncate(start + size)
            if hasattr(os, "posix_fallocate") and size:
                # A full disk would otherwise end the process at the first write.
                os.posix_fallocate(file.fileno(), start, size)
        array = mapped(self._path, start, shape, kind, mode="r+")
        self._regions[name] = _Region(self._end, size, array)
        self._end += size
        return array

    def under(self, prefix: str) -> Place:
        """`place`, for names that begin with `prefix`."""

        def place(name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
            return self.place(prefix + name, shape, kind)

        return place

    def finish(self, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
        """Write the header and every array that has no place yet.

        An array may have fewer entries along its first axis than there was room for.
        """
        with open(self._path, "r+b") as file:
            places = dict(self._packed(tensors, file))
            file.seek(SIZE + self._header + self._end)
            for name, array in tensors.items():
                if name not in places:
                    places[name] = self._end, self._end + array.nbytes
                    file.write(np.ascontiguousarray(array).data)
                    self._end += array.nbytes
            file.truncate(SIZE + self._header + self._end)
            header = json.dumps(
                {"__metadata__": dict(metadata)}
                | {name: _entry(tensors[name], place) for name, place in places.items()},
                ensure_ascii=False,
            ).encode()
            if len(header) > self._header:
                raise OutputError(
                    f"the header of the maps takes {len(header)} bytes and has room for "
                    f"{self._header}; save the maps without `out` and report this, please"
                )
            file.seek(0)
            file.write(self._header.to_bytes(SIZE, "little"))
            file.write(header.ljust(self._header))

    def _packed(
        self, tensors: Mapping[str, NDArray[Any]], file: BinaryIO
    ) -> Iterator[tuple[str, tuple[int, int]]]:
        """Move arrays to where those before them end, and yield their first and last bytes."""
        end = 0
        moved = False
        for name, region in self._regions.items():
            if end != region.start and not moved:
                for each in self._regions.values():
                    _flush(each.array)
                moved = True
            size = tensors[name].nbytes
            if size > region.size:
                raise ValueError(f"{name!r} is larger than its place in the file")
            if end != region.start:
                self._move(file, region.start, end, size)
            yield name, (end, end + size)
            end += size
        self._end = end

    def _move(self, file: BinaryIO, start: int, end: int, size: int) -> None:
        """Move bytes towards the beginning, some at a time."""
        begin = SIZE + self._header
        for offset in range(0, size, _MOVED):
            file.seek(begin + start + offset)
            some = file.read(min(_MOVED, size - offset))
            file.seek(begin + end + offset)
            file.write(some)


def mapped(
    path: str | os.PathLike[str],
    start: int,
    shape: tuple[int, ...],
    kind: np.dtype[Any],
    mode: Any = "c",
) -> NDArray[Any]:
    """An array that stays in its file until it is read; with mode "c" it may be written to, which
    leaves the file as it is.
    """
    if 0 in shape:
        return np.zeros(shape, dtype=kind)  # nothing can be mapped
    return np.memmap(path, dtype=kind, mode=mode, offset=start, shape=shape).view(np.ndarray)


def _flush(array: NDArray[Any]) -> None:
    if isinstance(array.base, np.memmap):
        array.base.flush()


def _entry(array: NDArray[Any], place: tuple[int, int]) -> dict[str, Any]:
    return {"dtype": _NAMES[array.dtype], "shape": array.shape, "data_offsets": place}


def mapped_arrays(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file that has been checked, each in the file until it is read."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(SIZE), "little")
        header = json.loads(file.read(size))
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start = SIZE + size + entry["data_offsets"][0]
            array = mapped(path, start, tuple(entry["shape"]), TYPES[entry["dtype"]])
            arrays[name] = array if array.flags.aligned else array.copy()
    return arrays
