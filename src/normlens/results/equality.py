"""Equality of results: bit for bit in their arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def same(a: Any, b: Any) -> bool:
    """Whether two fields of results are equal, bit for bit in their arrays."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        floats = np.issubdtype(a.dtype, np.inexact) and np.issubdtype(b.dtype, np.inexact)
        return np.array_equal(a, b, equal_nan=floats)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return False
    if isinstance(a, float) and isinstance(b, float) and np.isnan(a):
        return bool(np.isnan(b))
    return bool(a == b)
