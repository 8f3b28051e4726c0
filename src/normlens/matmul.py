"""Products of vectors with weights, whose precision may be lower than the vectors'.

A weight in bfloat16 is exact, so nothing is gained by making it float32. On a GPU the vectors are
split instead, into a bfloat16 number and the bfloat16 number that it misses: two products at the
speed of bfloat16 have 16 digits of the vectors' 24, where one in TF32, which takes as long, has 11.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

#: Products of bfloat16 with a float32 result came with this version.
_AVAILABLE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)
_HAS_TRITON = importlib.util.find_spec("triton") is not None


def splits(weights: Tensor) -> bool:
    """Whether products with these weights are split."""
    return _AVAILABLE and weights.device.type == "cuda" and weights.dtype == torch.bfloat16


def times(v: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor:
    """``v W``, or ``(v ⊙ scale) W``, of vectors (…, d) and a weight (d, e).

    The weight has the same precision, or is bfloat16; `scale` has the last axes of v.
    """
    if v.dtype == weight.dtype:
        return (v if scale is None else v * scale) @ weight
    high, low = (half.flatten(0, -2) for half in _halves(v, scale))
    product = torch.mm(high, weight, out_dtype=v.dtype)
    product += torch.mm(low, weight, out_dtype=v.dtype)
    return product.unflatten(0, v.shape[:-1])


def weighted(alpha: Tensor, v: Tensor) -> Tensor:
    """``Σ_j α_ij v_j`` of α (b, h, i, j) and vectors (…, b, h, j, e), of the same precisions."""
    if v.dtype == alpha.dtype:
        return alpha @ v
    if v.dim() > 4:
        return torch.stack([weighted(alpha, each) for each in v])
    high, low = _halves(v.flatten(0, 1))
    flat = alpha.flatten(0, 1)
    product = torch.bmm(flat, high, out_dtype=v.dtype)
    product += torch.bmm(flat, low, out_dtype=v.dtype)
    return product.unflatten(0, v.shape[:2])


def _halves(v: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """v, or v ⊙ scale, as a bfloat16 number and what it misses."""
    if _HAS_TRITON:
        from normlens.halving import halves  # Triton is slow to import, and optional

        return halves(v, scale)
    v = v if scale is None else v * scale
    high = v.bfloat16()
    return high, (v - high).bfloat16()
