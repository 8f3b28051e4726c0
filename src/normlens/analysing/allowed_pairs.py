"""The pairs of tokens that attention allows, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from normlens.components import Reach

#: Tokens up to which masks are kept for the next text of the same length.
KEPT = 512

#: A layer's reach, and whether it reads tokens of another sequence.
Reading = tuple[Reach, bool]


def allowed_pairs(readings: Sequence[Reading], n: int, others: int = 0) -> NDArray[np.bool_]:
    """[layer, target, source], for n tokens; columns of `others` of another sequence come first."""
    if len(set(readings)) == 1 and n > KEPT:  # one mask for all layers, in memory once
        mask = np.empty((1, n, others + n), dtype=bool)
        write_allowed(mask, readings[:1], n, others)
        return np.broadcast_to(mask, (len(readings), n, others + n))
    if others or n > KEPT:
        masks = np.empty((len(readings), n, others + n), dtype=bool)
        write_allowed(masks, readings, n, others)
        return masks
    return _masks(tuple(reach for reach, _ in readings), n).copy()


def write_allowed(
    masks: NDArray[np.bool_], readings: Sequence[Reading], n: int, others: int = 0
) -> None:
    """Write the same into an array, one layer after the other."""
    of_reach = {
        reach: reach.array(n) if n > KEPT else _mask(reach, n)
        for reach in {reach for reach, _ in readings}
    }
    for mask, (reach, reads) in zip(masks, readings, strict=True):
        mask[:, :others] = reads
        mask[:, others:] = of_reach[reach]


@lru_cache(maxsize=256)
def _mask(reach: Reach, n: int) -> NDArray[np.bool_]:
    return reach.array(n)


@lru_cache(maxsize=64)
def _masks(reaches: tuple[Reach, ...], n: int) -> NDArray[np.bool_]:
    return np.stack([_mask(reach, n) for reach in reaches])
