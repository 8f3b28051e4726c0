"""How much one scope strengthens or weakens each pair beside another."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normlens.analysis.widening import widened
from normlens.errors import valid_choice

AXES = ("source", "target", "none")


def normalise(maps: NDArray[Any], axis: str = "source") -> NDArray[Any]:
    """Scale maps (…, i, j) so that each source's column, or each target's row, sums to 1."""
    valid_choice(axis, AXES, "axis")
    maps = widened(maps)
    if axis == "none":
        return maps
    sums = maps.sum(axis=-2 if axis == "source" else -1, keepdims=True)
    return np.divide(maps, sums, out=np.zeros_like(maps), where=sums > 0)


def amplification(before: NDArray[Any], after: NDArray[Any], axis: str = "source") -> NDArray[Any]:
    """``after − before``, both normalised; FF-amp of Kobayashi et al. 2024 (section 5, footnote 6).

    Each column (one source j) sums to 1 before the difference is taken. (…, i, j) → (…, i, j).
    """
    return normalise(after, axis) - normalise(before, axis)


class Pair(NamedTuple):
    """A target and a source (positions from 0), and how much their pair was amplified."""

    target: int
    source: int
    value: float


def strongest_pairs(
    difference: NDArray[Any],
    allowed: NDArray[Any],
    top: int = 5,
    same_token: NDArray[Any] | None = None,
) -> tuple[list[Pair], list[Pair]]:
    """The `top` most strengthened and most weakened pairs of one layer, (i, j) × 2, with i ≠ j.

    `same_token` (i, j) says which pairs are of a token with itself; by default the diagonal.
    """
    if same_token is None:
        if allowed.shape[0] != allowed.shape[1]:
            raise ValueError("a map that is not square has no diagonal; give `same_token`")
        same_token = np.eye(len(allowed), dtype=bool)
    targets, sources = np.nonzero(allowed & ~same_token)
    values = difference[targets, sources]
    order = np.argsort(values, kind="stable")

    def pairs(ranked: NDArray[Any]) -> list[Pair]:
        return [Pair(int(targets[k]), int(sources[k]), float(values[k])) for k in ranked[:top]]

    strengthened = [pair for pair in pairs(order[::-1]) if pair.value > 0]
    return strengthened, [pair for pair in pairs(order) if pair.value < 0]
