"""Products of vectors with weights, whose precision may be lower than the vectors'.

A weight in bfloat16 is exact, so nothing is gained by making it float32. On a GPU the vectors are
split instead, into a bfloat16 number and the bfloat16 number that it misses: two products at the
speed of bfloat16 have 16 digits of the vectors' 24, where one in TF32, which takes as long, has 11.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Products of bfloat16 with a float32 result came with this version.
_AVAILABLE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)


def splits(weights: Tensor) -> bool:
    """Whether products with these weights are split."""
    return _AVAILABLE and weights.device.type == "cuda" and weights.dtype == torch.bfloat16


def times(v: Tensor, weight: Tensor) -> Tensor:
    """``v W`` of vectors (…, d) and a weight (d, e) of the same precision, or bfloat16."""
    if v.dtype == weight.dtype:
        return v @ weight
    high, low = _halves(v.reshape(-1, v.shape[-1]), weight.dtype)
    product = torch.mm(high, weight, out_dtype=v.dtype)
    product += torch.mm(low, weight, out_dtype=v.dtype)
    return product.unflatten(0, v.shape[:-1])


def weighted(alpha: Tensor, v: Tensor) -> Tensor:
    """``Σ_j α_ij v_j`` of α (b, h, i, j) and vectors (…, b, h, j, e), of the same precisions."""
    if v.dtype == alpha.dtype:
        return alpha @ v
    if v.dim() > 4:
        return torch.stack([weighted(alpha, each) for each in v])
    high, low = _halves(v.flatten(0, 1), alpha.dtype)
    flat = alpha.flatten(0, 1)
    product = torch.bmm(flat, high, out_dtype=v.dtype)
    product += torch.bmm(flat, low, out_dtype=v.dtype)
    return product.unflatten(0, v.shape[:2])


def _halves(v: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A number of the lower precision, and what it misses."""
    high = v.to(dtype)
    return high, (v - high).to(dtype)
