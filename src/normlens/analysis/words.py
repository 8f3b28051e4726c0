"""Maps of words from maps of subwords."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def merge_words(maps: NDArray[Any], groups: Sequence[Sequence[int]]) -> NDArray[Any]:
    """Merge tokens into words: columns of a word summed, rows averaged; (…, i, j) → (…, w, w)."""
    membership = np.zeros((len(groups), maps.shape[-1]), dtype=maps.dtype)
    for index, group in enumerate(groups):
        membership[index, list(group)] = 1
    mean = membership / membership.sum(axis=1, keepdims=True)
    return mean @ maps @ membership.T
