"""Maps of words from maps of subwords."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.analysis.widening import widened


def merge_words(
    maps: NDArray[Any],
    targets: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None = None,
) -> NDArray[Any]:
    """Merge tokens into words: columns of a word summed, rows averaged; (…, i, j) → (…, w, v).

    `targets` and `sources` (by default the same) are the places of each word's tokens.
    """
    maps = widened(maps)
    rows = _membership(targets, maps.shape[-2], maps.dtype)
    columns = rows if sources is None else _membership(sources, maps.shape[-1], maps.dtype)
    mean = rows / rows.sum(axis=1, keepdims=True)
    return mean @ maps @ columns.T


def sum_words(array: NDArray[Any], groups: Sequence[Sequence[int]], axes: int = 1) -> NDArray[Any]:
    """Sum the tokens of each word along the last one or two axes, (…, j) → (…, w)."""
    membership = _membership(groups, array.shape[-1], array.dtype)
    array = array @ membership.T
    return membership @ array if axes == 2 else array


def _membership(groups: Sequence[Sequence[int]], n: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Whether each token belongs to each word, (w, i), as 1 and 0."""
    membership = np.zeros((len(groups), n), dtype=dtype)
    for index, group in enumerate(groups):
        membership[index, list(group)] = 1
    return membership
