"""The projections of each target, scaled by its slopes: one factor of the matrices M_i.

M_i = (Σ_k W_k diag(r^k_i)) W_down
"""

from __future__ import annotations

import triton
import triton.language as tl

from normlens.decomposition.fused.kernels.pieces import split


@triton.jit(do_not_specialize=["first"])
def scale_projections(
    out,  # (c, D, REPEATS · M): low, high and high again, or high alone
    up_high,  # W_k (D, M) of each projection
    up_low,
    gated_high,
    gated_low,
    slopes,  # (b·i, M)
    gated_slopes,
    targets,  # (c,) int64
    first,
    D: tl.constexpr,
    M: tl.constexpr,
    GATED: tl.constexpr,
    SPLIT: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``Σ_k W_k diag(r^k_i)`` of one target, for one row and a block of neurons."""
    program = tl.program_id(0)
    blocks = tl.cdiv(M, BLOCK)
    k = program % blocks * BLOCK + tl.arange(0, BLOCK)
    row = program // blocks % D
    c = (program // blocks // D).to(tl.int64)
    target = tl.load(targets + first + c)
    inside = k < M
    x = tl.load(up_high + row * M + k, mask=inside, other=0.0).to(tl.float32)
    if SPLIT:
        x += tl.load(up_low + row * M + k, mask=inside, other=0.0).to(tl.float32)
    x *= tl.load(slopes + target * M + k, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        more = tl.load(gated_high + row * M + k, mask=inside, other=0.0).to(tl.float32)
        if SPLIT:
            more += tl.load(gated_low + row * M + k, mask=inside, other=0.0).to(tl.float32)
        x += more * tl.load(gated_slopes + target * M + k, mask=inside, other=0.0).to(tl.float32)
    high, low = split(x, OPERAND)
    REPEATS: tl.constexpr = 3 if SPLIT else 1
    at = (c * D + row) * (REPEATS * M) + k
    if SPLIT:
        tl.store(out + at, low, mask=inside)
        tl.store(out + M + at, high, mask=inside)
        tl.store(out + 2 * M + at, high, mask=inside)
    else:
        tl.store(out + at, high, mask=inside)
