"""The container of the viewer's payloads: a JSON header, then compressed arrays.

What the header says is up to the payload: maps (`payload`), explanations (`explanation_payload`) or
cosines (`cosine_payload`). The format is described in ``viewer/CONTRACT.md``.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError

MAGIC = b"NLVIEW01"
_LEVEL = 6
_SIGN = 1 << 15  # of a signed code; alone it stands for NaN


class Blobs:
    """Compressed arrays behind each other, each at a multiple of three bytes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, array: NDArray[Any], coding: str, **more: Any) -> dict[str, Any]:
        """Store an array; the header finds it by what is returned."""
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        planes = little.reshape(-1).view(np.uint8).reshape(-1, little.itemsize).T.tobytes()
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
        data = packer.compress(planes) + packer.flush()
        blob = {"at": self.size, "length": len(data), "coding": coding, **more}
        data += bytes(-len(data) % 3)
        self.parts.append(data)
        self.size += len(data)
        return blob

    def add_floats(self, array: NDArray[Any]) -> dict[str, Any]:
        """Store numbers as float32."""
        return self.add(np.asarray(array, dtype=np.float32), "f32")

    def add_signed(self, array: NDArray[Any], precision: int) -> dict[str, Any]:
        """Store numbers of both signs, as float32 or as a sign and a logarithm in 16 bits.

        The relative error is then at most 0.03 %; numbers below 2⁻³⁰ of the largest become 0.
        """
        if precision == 32:
            return self.add_floats(array)
        values = np.asarray(array, dtype=np.float64)
        sizes = np.abs(values)
        finite = np.isfinite(values)
        top = float(sizes[finite].max(initial=0.0))
        low = math.log(top) - 30 * math.log(2) if top > 0 else 0.0
        step = 30 * math.log(2) / (_SIGN - 2)
        kept = finite & (sizes > 0) & (sizes >= math.exp(low))
        codes = np.zeros(values.shape, dtype=np.uint16)
        codes[kept] = 1 + np.rint((np.log(sizes[kept]) - low) / step)
        codes[kept & (values < 0)] += _SIGN
        codes[~finite] = _SIGN
        return self.add(codes, "signed16", low=low, step=step)


def joined(format: str, version: int, items: Sequence[dict[str, Any]], blobs: Blobs) -> bytes:
    """Join header and arrays into one payload."""
    header = json.dumps(
        {"format": format, "version": version, "items": items},
        allow_nan=False,
        separators=(",", ":"),
    ).encode("ascii")
    start = len(MAGIC) + 4 + len(header)
    header += b" " * (-start % 3)
    return b"".join([MAGIC, len(header).to_bytes(4, "little"), header, *blobs.parts])


def check_precision(precision: int, bits: Sequence[int]) -> None:
    """Raise unless values can be kept in so many bits."""
    if precision not in bits:
        listed = ", ".join(map(str, bits))
        raise InputError(f"precision is a number of bits, one of {listed}, not {precision!r}")
