"""Slopes of gated blocks in one pass, where PyTorch would take many."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from normlens.decomposition.fused.kernels.gated_slopes import slopes_from_zero
from normlens.decomposition.fused.launching import launch

BLOCK = 1024


def gated_slopes(
    a: Tensor, u: Tensor, table: Tensor, cells: int, bound: float, *, tanh: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """r^a, r^u and h of a gated block at its arguments a and u, on the path from 0."""
    a, u = a.contiguous(), u.contiguous()
    made = torch.empty_like(a), torch.empty_like(a), torch.empty_like(a)
    launch(
        slopes_from_zero,
        triton.cdiv(a.numel(), BLOCK),
        *made,
        a,
        u,
        table,
        a.numel(),
        CELLS=cells,
        BOUND=int(bound),
        TANH=tanh,
        BLOCK=BLOCK,
    )
    return made
