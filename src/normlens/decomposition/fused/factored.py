"""Norms of factored parts, before the feed-forward block, by one kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normlens.decomposition.costs.kernel_memory import CHUNK_BYTES, at_once, value_bytes
from normlens.decomposition.fused.kernels.factored import norms_of_factors
from normlens.decomposition.fused.launching import launch, reaches, strided
from normlens.decomposition.fused.tiling import block_of_heads, power_of_two
from normlens.decomposition.parts import Factors
from normlens.device_constants import on_device

TARGETS, DIMS, STAGES = 128, 64, 2


def fused_factored_norms(factors: Factors, lengths: Sequence[int]) -> Tensor:
    """``‖F_i(x_j)‖`` (b, i, j), 0 where i = j or the mask forbids it."""
    b, n = factors.scale.shape
    heads = factors.weights.shape[-1]
    targets = min(TARGETS, max(16, power_of_two(n)))
    out = torch.empty((b, n, n), dtype=torch.float32, device=factors.scale.device)
    weights, scale = factors.weights.contiguous(), factors.scale.contiguous()
    step = at_once(CHUNK_BYTES, value_bytes(heads, factors.basis.shape[-1]))
    for first in range(0, b * n, step):
        count = min(step, b * n - first)
        launch(
            norms_of_factors,
            count * -(-n // targets),
            out,
            weights,
            scale,
            *strided(factors.values_of(first, first + count)),
            on_device(tuple(lengths), out.device, torch.int32),
            first,
            n,
            *reaches(factors.reach),
            operand=torch.float16,
            D=factors.basis.shape[-1],
            H=heads,
            H_BLOCK=block_of_heads(heads),
            TARGETS=targets,
            DIMS=DIMS,
            STAGES=STAGES,
            num_warps=4,
        )
    return out
