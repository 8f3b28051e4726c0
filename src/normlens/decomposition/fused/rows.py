"""Launches of the kernels that take one pass over rows of vectors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normlens.components import Norm
from normlens.decomposition.fused.kernels.rows import measure_rows, normalise_rows
from normlens.decomposition.fused.launching import launch
from normlens.decomposition.fused.tiling import power_of_two
from normlens.decomposition.parts import Parts
from normlens.device_constants import on_device

BLOCK = 1024  # dimensions that are measured at a time


def normalised(v: Tensor, norm: Norm, inverse_deviation: Tensor, beta: Tensor | None) -> Tensor:
    """``(v − mean v)/σ_i ⊙ γ + β`` of vectors (…, b, i, d)."""
    v, deviation = v.contiguous(), inverse_deviation.contiguous()
    made, d = torch.empty_like(v), v.shape[-1]
    block = power_of_two(d)
    launch(
        normalise_rows,
        v.numel() // d,
        made,
        v,
        deviation,
        deviation if norm.gamma is None else norm.gamma.contiguous(),
        deviation if beta is None else beta.contiguous(),
        deviation.numel(),
        D=d,
        CENTRED=norm.centred,
        STRETCHED=norm.gamma is not None,
        SHIFTED=beta is not None,
        BLOCK=block,
        num_warps=min(16, max(1, block // 256)),
    )
    return made


def measured(
    parts: Parts, real: Tensor | None, lengths: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The norms of own parts and of the others' sums, and the errors against `real`, (b, i)."""
    assert parts.mixed is not None
    own, mixed, bias = parts.own.contiguous(), parts.mixed.contiguous(), parts.bias
    b, n, d = own.shape
    norms = [torch.empty((b, n), dtype=torch.float32, device=own.device) for _ in range(3)]
    launch(
        measure_rows,
        b * n,
        *norms,
        own,
        mixed,
        bias.coefficients.contiguous(),
        bias.rows.contiguous(),
        own if bias.rest is None else bias.rest.contiguous(),
        own if real is None else real.contiguous(),
        on_device(tuple(lengths), own.device, torch.int32),
        n,
        D=d,
        K=bias.coefficients.shape[-1],
        RESTED=bias.rest is not None,
        COMPARED=real is not None,
        BLOCK=min(BLOCK, power_of_two(d)),
    )
    of_own, of_mixed, errors = norms
    return of_own, of_mixed, None if real is None else errors
