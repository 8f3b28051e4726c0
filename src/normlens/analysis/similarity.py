"""The similarity of two maps: Spearman's ρ."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.analysis.ranks import average_ranks


def spearman(a: NDArray[Any], b: NDArray[Any], allowed: NDArray[Any]) -> NDArray[np.float64]:
    """Spearman's ρ of two maps, per layer: (layer, i, j) × 2 → (layer,).

    Ties get their average rank. Only pairs that attention allows count: zeros that both maps share
    by construction would inflate ρ. It is NaN where one of the maps is constant.
    Kobayashi et al. 2024, section 4.
    """
    return np.array([_spearman(x[mask], y[mask]) for x, y, mask in zip(a, b, allowed, strict=True)])


def _spearman(x: NDArray[Any], y: NDArray[Any]) -> float:
    ranks = [average_ranks(values) for values in (x, y)]
    centred = [rank - rank.mean() for rank in ranks]
    sizes = [np.sqrt(np.square(c).sum()) for c in centred]
    if min(sizes) == 0:
        return float("nan")
    return float((centred[0] * centred[1]).sum() / (sizes[0] * sizes[1]))
