"""Numbers in sentences."""

from __future__ import annotations

import math

#: Layers as the papers count them; the label of every axis and column of layers in a report.
LAYER = "layer (counted from 1)"
DASH = "–"


def fixed(value: float | None, digits: int = 2) -> str:
    """Write a number with so many decimals and a true minus."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value:.{digits}f}".replace("-", "−")
