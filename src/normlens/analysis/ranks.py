"""Spearman's ρ of many maps at once: each is ranked once, however many it is compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def centred_ranks(values: NDArray) -> NDArray[np.float64]:
    """``2 · rank − (p + 1)``, ties by average rank; (p,) → (p,), NaN if there is one among them.

    Twice a centred average rank is a whole number, so that sums of products are exact in float64
    (up to p ≈ 300,000) and do not depend on the order of summation.
    """
    size = len(values)
    order = np.argsort(values)
    ordered = values[order]
    if size and np.isnan(ordered[-1]):  # NaN sorts last
        return np.full(size, np.nan)
    # Equal values are runs from one edge to the next, [s, e): their average rank is (s + e + 1)/2.
    edges = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, [size]])
    ranks = np.empty(size)
    ranks[order] = np.repeat(edges[1:] + edges[:-1] - size, np.diff(edges))
    return ranks


def spearman_matrix(values: NDArray) -> NDArray[np.float64]:
    """Spearman's ρ between all rows, (s, p) → (s, s); NaN where a row is constant.

    ρ is the correlation of the average ranks; Kobayashi et al. 2024, section 4.
    """
    ranks = np.stack([centred_ranks(row) for row in values])
    products = ranks @ ranks.T
    squares = np.diagonal(products)
    squares = np.where(squares > 0, squares, np.nan)
    return np.clip(products / np.sqrt(squares[:, None] * squares), -1, 1)
