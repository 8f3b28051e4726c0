"""Orders of tokens by their scores; equal scores are put in an order that a seed decides."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Which tokens go first.
MOST, LEAST = "most", "least"


def seeded_numbers(seed: int, ids: Sequence[int], purpose: str, count: int) -> NDArray[np.uint64]:
    """Numbers of 64 random bits that depend on the seed, the text and their purpose alone."""
    digest = hashlib.sha256(json.dumps([purpose, seed, *map(int, ids)]).encode()).digest()
    # Raw bits are the same in every version of NumPy; its permutations need not be.
    return np.random.PCG64(int.from_bytes(digest[:16], "big")).random_raw(count)


def ordered(scores: NDArray[np.float64], ties: NDArray[np.uint64], first: str) -> NDArray[np.intp]:
    """The places of scores, the most or the least important first.

    Of equal scores the one with the lower number in `ties` goes first, in both directions: a score
    that is the same for all tokens says as little as a random order, wherever the tokens stand.
    """
    return np.lexsort((ties, -scores if first == MOST else scores))
