"""Numbers split into two of half the precision, in one pass over them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit(do_not_specialize=["count"])
def halve(
    high,  # bfloat16, and low alike
    low,
    values,  # float32
    scale,  # float32, or anything if not SCALED
    count,
    period,  # of the scale, which is repeated
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write numbers, or products of two, as a bfloat16 number and what it misses."""
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = k < count
    v = tl.load(values + k, mask=inside, other=0.0)
    if SCALED:
        v *= tl.load(scale + k % period, mask=inside, other=0.0)
    upper = v.to(tl.bfloat16)
    tl.store(high + k, upper, mask=inside)
    tl.store(low + k, (v - upper.to(tl.float32)).to(tl.bfloat16), mask=inside)


def halves(v: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """v, or v ⊙ scale whose last axes it has, as a bfloat16 number and what it misses."""
    v = v.contiguous()
    other = v if scale is None else scale.contiguous()
    high = torch.empty_like(v, dtype=torch.bfloat16)
    low = torch.empty_like(high)
    halve[(triton.cdiv(v.numel(), BLOCK),)](
        high,
        low,
        v,
        other,
        v.numel(),
        other.numel(),
        SCALED=scale is not None,
        BLOCK=BLOCK,
    )
    return high, low
