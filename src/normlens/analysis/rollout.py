"""Maps of single layers multiplied into one map through all of them (rollout)."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.analysis.amplification import normalise as normalised
from normlens.errors import InputError


def rollout(
    maps: NDArray[Any], *, residual: float = 0.0, normalise: bool = True
) -> NDArray[np.float64]:
    """``R_ℓ = Â_ℓ R_{ℓ−1}`` with ``Â = (1 − r) A + r I``; (layer, i, j) → (layer, i, j).

    Each row of A first sums to 1, unless `normalise` says no; a row of zeros stays as it is. The
    residual's share r is ½ for attention weights (Abnar & Zuidema 2020) and 0 for maps
    that have the residual connection in them. In float64: a product of many layers that are not
    normalised may leave the range of float32.
    """
    a = np.asarray(maps, dtype=np.float64)
    if a.ndim != 3 or a.shape[1] != a.shape[2] or not a.shape[0]:
        raise InputError(f"a rollout takes maps [layer, target, source], not of shape {a.shape}")
    if not 0 <= residual < 1:
        raise InputError(f"the residual's share of a rollout is from 0 to below 1, not {residual}")
    if normalise:
        a = normalised(a, "target")
    if residual:
        a = (1 - residual) * a + residual * np.eye(a.shape[-1])
    return np.stack(list(accumulate(a, lambda below, layer: layer @ below)))


def reachable(allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which sources of the first layer each target of a layer may draw on, [layer, target, source].

    A layer's own token always passes, by the residual connection.
    """
    steps = (allowed | np.eye(allowed.shape[-1], dtype=bool)).astype(np.float64)
    return np.stack(list(accumulate(steps, lambda below, layer: (layer @ below > 0) * 1.0))) > 0
