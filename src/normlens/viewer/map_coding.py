"""One map as a blob: the pairs that attention allows, as float32 or as rounded logarithms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.viewer.container import Blobs

#: Of single heads in 8 bits, what is below this share of a map's largest value becomes 0: else a
#: few weights near 0 would cost all others their digits.
_SMALLEST = 2.0**-20


def encode_map(
    array: NDArray[Any], allowed: NDArray[np.bool_], blobs: Blobs, precision: int
) -> dict[str, Any]:
    """Store a map (i, j)."""
    full = bool(np.any(array[~allowed] != 0))  # only in maps that a user made
    values = np.asarray(array if full else array[allowed], dtype=np.float64).reshape(-1)
    more: dict[str, Any] = {"full": True} if full else {}
    positive = values[np.isfinite(values) & (values > 0)]
    if precision == 32 or np.any(values < 0):
        return blobs.add(values.astype(np.float32), "f32", **more)
    top = 2**precision - 2
    low, high = (
        (math.log(positive.min()), math.log(positive.max())) if positive.size else (0.0, 0.0)
    )
    step = (high - low) / (top - 1)
    codes = np.zeros(values.shape, dtype=np.uint16 if precision == 16 else np.uint8)
    logs = np.log(values, out=np.full(values.shape, low), where=values > 0)
    scaled = np.rint((logs - low) / step) if step > 0 else np.zeros_like(logs)
    finite = np.isfinite(values)
    codes[finite & (values > 0)] = (1 + scaled[finite & (values > 0)]).astype(codes.dtype)
    codes[~finite] = top + 1
    return blobs.add(codes, f"log{precision}", low=low, step=step, **more)


def encode_head(
    array: NDArray[Any], allowed: NDArray[np.bool_], blobs: Blobs, precision: int
) -> dict[str, Any]:
    """Store the map (i, j) of a single head."""
    if precision == 8:
        finite = np.where(np.isfinite(array), array, 0.0)
        small = np.abs(finite) < _SMALLEST * finite.max(initial=0.0)
        array = np.where(small & np.isfinite(array), 0.0, array)
    return encode_map(array, allowed, blobs, precision)


def relative_error(blob: Mapping[str, Any]) -> float:
    """Bound the rounding error: at most half a step of the logarithm."""
    return math.expm1(blob["step"] / 2) if "step" in blob else float(np.finfo(np.float32).eps) / 2
