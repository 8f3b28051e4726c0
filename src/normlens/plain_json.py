"""Conversion of any value to one that strict JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """A value for strict JSON: no NumPy, None for NaN and infinity, text for the rest."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain_array(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, type(None))) else str(value)


def _plain_array(array: np.ndarray) -> Any:
    """An array as nested lists; arrays of numbers without a Python call per number."""
    if array.dtype.kind not in "fiub":
        return plain(array.tolist())
    values = array.astype(object)
    values[~np.isfinite(array)] = None
    return values.tolist()
