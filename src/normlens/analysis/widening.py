"""Numbers in half precision, before anything is computed with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """The array in float32 where it is in float16, in which sums soon overflow or stand still."""
    return array.astype(np.float32) if array.dtype == np.float16 else array
