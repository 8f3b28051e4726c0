"""The grid of a picture's patches in files: three numbers in the header, the picture as an array.

A file may come from anywhere. What is wrong is raised as a ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from normlens.results.header_fields import Fields, is_index
from normlens.results.patches import LARGEST_PICTURE, PatchGrid

#: The names of the field in a header and of the array beside it.
GRID, PICTURE = "grid", "picture"
_SIZES = ("rows", "columns", "first")


def _is_grid(value: Any) -> bool:
    return (
        isinstance(value, dict) and set(value) == set(_SIZES) and all(map(is_index, value.values()))
    )


#: The field as those of a header are described.
FIELD: Fields = {GRID: (_is_grid, "an object with rows, columns and the first patch")}


def saved_grid(grid: PatchGrid | None) -> dict[str, Any]:
    """The header's field, if there is a grid."""
    return {} if grid is None else {GRID: {name: getattr(grid, name) for name in _SIZES}}


def saved_picture(grid: PatchGrid | None) -> dict[str, NDArray[Any]]:
    """The array, if there is a picture."""
    return {} if grid is None or grid.picture is None else {PICTURE: grid.picture}


def check_grid(meta: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
    """Raise a ValueError unless the checked field fits the tokens, and the picture the field."""
    sizes, picture = meta.get(GRID), tensors.get(PICTURE)
    if sizes is None:
        if picture is not None:
            raise ValueError("'picture' is there without a grid")
        return
    patches, n = sizes["rows"] * sizes["columns"], len(meta["tokens"])
    if not patches or sizes["first"] + patches > n:
        raise ValueError(f"'grid' has {patches} patches from token {sizes['first']} on, of {n}")
    if picture is None:
        return
    shape = picture.shape
    if str(picture.dtype) != "uint8" or len(shape) != 3 or shape[2] != 3 or 0 in shape:
        raise ValueError(f"'picture' has shape {shape} of {picture.dtype} values")
    if max(shape) > LARGEST_PICTURE:
        raise ValueError(f"'picture' has shape {shape}, and no side is above {LARGEST_PICTURE}")


def read_grid(meta: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> PatchGrid | None:
    """The grid of a checked file."""
    sizes = meta.get(GRID)
    return None if sizes is None else PatchGrid(**sizes, picture=tensors.get(PICTURE))
