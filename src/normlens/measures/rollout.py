"""Maps of single layers multiplied into one map through all of them (rollout)."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.measures.maps import normalise as normalised


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


def pair_rollout(
    maps: NDArray[Any], other: NDArray[np.bool_], encoder: NDArray[Any]
) -> NDArray[np.float64]:
    """``R_ℓ = C_ℓ [E 0] + D_ℓ R_{ℓ−1}``, ``R_{−1} = [0 I]``; (layer, i, j) → (layer, i, j).

    Each row of a decoder's map sums to 1 over both sequences: C are its columns of the `other` one
    (j), D those of the targets. E (k, k) is the rollout of the encoder's layers, up to the last.
    """
    a = normalised(np.asarray(maps, dtype=np.float64), "target")
    return _through_both(a[:, :, other], a[:, :, ~other], other, np.asarray(encoder, np.float64))


def pair_reachable(
    allowed: NDArray[np.bool_], other: NDArray[np.bool_], encoder: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which inputs of either sequence each target of a decoder's layer may draw on."""
    steps = allowed.astype(np.float64)
    own = steps[:, :, ~other] + np.eye(allowed.shape[1])
    return _through_both(steps[:, :, other], own, other, encoder.astype(np.float64)) > 0


def _through_both(
    c: NDArray[Any], d: NDArray[Any], other: NDArray[np.bool_], encoder: NDArray[Any]
) -> NDArray[np.float64]:
    n, rolled = d.shape[1], []
    if d.shape[2] != n or encoder.shape != (other.sum(), other.sum()):
        raise InputError(
            f"a rollout of two sequences needs a column for each of {n} targets and a square map "
            f"of {other.sum()} sources, not {d.shape[2]} columns and a map of {encoder.shape}"
        )
    below = np.zeros((n, len(other)))
    below[:, ~other] = np.eye(n)
    for of_other, own in zip(c, d, strict=True):
        here = own @ below
        here[:, other] += of_other @ encoder
        rolled.append(here)
        below = here
    return np.stack(rolled)
