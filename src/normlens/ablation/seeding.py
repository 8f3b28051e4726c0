"""Seeded draws that depend on what they are for, and on nothing else."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def draws(count: int, *purpose: object) -> NDArray[np.uint64]:
    """The first `count` numbers of the random stream of this purpose.

    NumPy promises the raw stream of a bit generator for good. A longer draw begins with the shorter
    one, so the number at a position does not depend on a sequence's padding.
    """
    digest = hashlib.sha256("\n".join(map(str, purpose)).encode()).digest()
    generator = np.random.PCG64(int.from_bytes(digest, "big"))
    return np.asarray(generator.random_raw(count), dtype=np.uint64)


def chosen(count: int, pool: int, *purpose: object) -> NDArray[np.intp]:
    """`count` different numbers below `pool`, in ascending order."""
    return np.sort(np.argsort(draws(pool, *purpose), kind="stable")[:count])
