"""SHA-256 of results files: of the header and of each array, in the file's metadata.

The header's covers the metadata, the names, types and shapes of all arrays and their checksums, so
that an array can be checked when it is first used, without the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import MapsFileError
from normlens.json_text import parse_json

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
