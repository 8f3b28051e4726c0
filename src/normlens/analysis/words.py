"""From subwords to words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def merge_words(maps: NDArray[Any], groups: Sequence[Sequence[int]]) -> NDArray[Any]:
    """Merge tokens into words: columns of a word summed, rows averaged; (…, i, j) → (…, w, w)."""
    membership = _membership(groups, maps)
    mean = membership / membership.sum(axis=1, keepdims=True)
    return mean @ maps @ membership.T


def sum_words(array: NDArray[Any], groups: Sequence[Sequence[int]], axes: int = 1) -> NDArray[Any]:
    """Sum the tokens of each word along the last one or two axes, (…, j) → (…, w)."""
    membership = _membership(groups, array)
    array = array @ membership.T
    return membership @ array if axes == 2 else array


def _membership(groups: Sequence[Sequence[int]], like: NDArray[Any]) -> NDArray[Any]:
    """Which tokens belong to which word, (w, j)."""
    membership = np.zeros((len(groups), like.shape[-1]), dtype=like.dtype)
    for index, group in enumerate(groups):
        membership[index, list(group)] = 1
    return membership
