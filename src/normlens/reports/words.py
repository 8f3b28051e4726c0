"""Numbers in sentences."""

from __future__ import annotations

#: Layers as the papers count them; the label of every axis and column of layers in a report.
LAYER = "layer (counted from 1)"


def number(value: float, digits: int = 2) -> str:
    """Write a number with a true minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")
