"""Numbers in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

#: Layers as the papers count them; the label of every axis and column of layers in their report.
LAYER = "layer (counted from 1)"


def number(value: float, digits: int = 2) -> str:
    """A number with a true minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")


def listed(items: Sequence[str]) -> str:
    """a, b and c"""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def layers(numbers: Iterable[int]) -> str:
    """``layer 4``, ``layers 3–7 and 9``"""
    wanted = sorted(set(numbers))
    runs = []
    for _, run in groupby(enumerate(wanted), key=lambda pair: pair[1] - pair[0]):
        ends = [layer for _, layer in run]
        runs.append(str(ends[0]) if len(ends) == 1 else f"{ends[0]}–{ends[-1]}")
    return f"layer{'s' * (len(wanted) > 1)} {listed(runs)}"
