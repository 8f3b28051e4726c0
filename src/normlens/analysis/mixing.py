"""How much of a vector other tokens supplied (Kobayashi et al. 2021, section 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Array = TypeVar("Array", NDArray[np.floating], "Tensor")


def mixing_ratio(others: Array, own: Array) -> Array:
    """``‖Σ_{j≠i} F_i(x_j)‖ / (‖Σ_{j≠i} F_i(x_j)‖ + ‖F_i(x_i)‖)``: the norm of the others' *sum*.

    `others` and `own` are these two norms; for attention weights the others' mass and one's own.
    """
    return others / (others + own)
