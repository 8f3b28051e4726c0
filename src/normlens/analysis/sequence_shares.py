"""How much of a score each of two sequences supplies."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def share_of_sums(source: NDArray[np.floating], prefix: NDArray[np.floating]) -> float:
    """``|Σ source| / (|Σ source| + |Σ prefix|)``: what is left of each after its tokens cancel."""
    sums = [abs(float(part.sum(dtype=np.float64))) for part in (source, prefix)]
    return _share(*sums)


def share_of_sizes(source: NDArray[np.floating], prefix: NDArray[np.floating]) -> float:
    """``Σ|source| / (Σ|source| + Σ|prefix|)``: whatever the signs of the tokens."""
    sizes = [float(np.abs(part).sum(dtype=np.float64)) for part in (source, prefix)]
    return _share(*sizes)


def _share(one: float, other: float) -> float:
    return one / (one + other) if one + other > 0 else math.nan
