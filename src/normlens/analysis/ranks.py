"""Spearman's ρ of many maps at once: each is ranked once, however many it is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def centred_ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """``2 · rank − (p + 1)`` of each row (…, p), ties by average rank; NaN in a row that has one.

    Twice a centred average rank is a whole number, so that sums of products are exact in float64
    (up to p ≈ 300,000) and do not depend on the order of summation.
    """
    size = values.shape[-1]
    if not values.size:
        return np.empty(values.shape)
    rows = values.reshape(-1, size)
    # Row behind row in one flat array; equal values are runs [s, e), their average rank (s+e+1)/2.
    order = np.argsort(rows, axis=1) + size * np.arange(len(rows))[:, None]
    ordered = rows.ravel()[order]
    new = np.ones(rows.shape, dtype=bool)
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=new[:, 1:])
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], rows.size)
    middles = starts + ends - 2 * size * (starts // size) - size
    ranks = np.empty(rows.shape)
    ranks.ravel()[order.ravel()] = np.repeat(middles, ends - starts)
    ranks[np.isnan(ordered[:, -1])] = np.nan  # NaN sorts last
    return ranks.reshape(values.shape)


def average_ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """The rank of each value of a row (…, p), from 1; ties get their average, and NaN spreads.

    `scipy.stats` has the same, and takes a second to import.
    """
    return (centred_ranks(values) + values.shape[-1] + 1) / 2


def spearman_matrix(values: NDArray[Any]) -> NDArray[np.float64]:
    """Spearman's ρ between all rows, (…, s, p) → (…, s, s); NaN where a row is constant.

    ρ is the correlation of the average ranks; Kobayashi et al. 2024, section 4.
    """
    ranks = centred_ranks(values)
    products = ranks @ ranks.swapaxes(-1, -2)
    squares = np.diagonal(products, axis1=-2, axis2=-1)
    squares = np.where(squares > 0, squares, np.nan)
    return np.clip(products / np.sqrt(squares[..., :, None] * squares[..., None, :]), -1, 1)
