"""Norms of factored parts, before the feed-forward block."""

from __future__ import annotations

import triton
import triton.language as tl

from normlens.decomposition.fused.kernels.pieces import is_void, pair_weights, split, split_dot


@triton.jit(do_not_specialize=["first"])
def norms_of_factors(
    out,  # (b, i, j)
    weights,  # A (b, j, i, h)
    scale,  # s (b, i)
    values,  # U (j, h, D) of the sources from `first` on, with the strides of tokens and heads
    token_stride,
    head_stride,
    lengths,
    first,
    n,
    back,
    ahead,
    D: tl.constexpr,
    H: tl.constexpr,
    H_BLOCK: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
    TARGETS: tl.constexpr,
    DIMS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``‖s_i Σ_h A_ijh U_jh‖`` of one source and a block of targets, 0 where the mask forbids it.

    The parts themselves are formed, block by block of dimensions, with split products: their norm
    cancels nothing, as the quadratic form of a Gram matrix would.
    """
    program = tl.program_id(0)
    blocks = tl.cdiv(n, TARGETS)
    start = program % blocks * TARGETS
    local = (program // blocks).to(tl.int64)
    token = first + local
    j = (token % n).to(tl.int32)
    b = token // n
    length = tl.load(lengths + b)
    i = start + tl.arange(0, TARGETS)
    place = (b * n + i) * n + j
    if is_void(j, start, length, back, ahead, TARGETS):
        tl.store(out + place, tl.zeros((TARGETS,), tl.float32), mask=i < n)
        return
    h = tl.arange(0, H_BLOCK)
    rows = values + local * token_stride + h.to(tl.int64)[:, None] * head_stride
    largest_value = tl.zeros((H_BLOCK, DIMS), tl.float32)
    for step in tl.range(0, D, DIMS, num_stages=STAGES):
        dims = step + tl.arange(0, DIMS)
        u = tl.load(rows + dims[None, :], mask=(h < H)[:, None] & (dims < D)[None, :], other=0.0)
        largest_value = tl.maximum(largest_value, tl.abs(u))
    size = tl.max(tl.max(largest_value, 1), 0)
    over = tl.where(size == 0, 1.0, 1 / size)
    a, largest = pair_weights(weights, token * n + i, i < length, H, H_BLOCK)
    a_high, a_low = split(a, OPERAND)
    squares = tl.zeros((TARGETS, DIMS), tl.float32)
    for step in tl.range(0, D, DIMS, num_stages=STAGES):
        dims = step + tl.arange(0, DIMS)
        u = tl.load(rows + dims[None, :], mask=(h < H)[:, None] & (dims < D)[None, :], other=0.0)
        high, low = split(u * over, OPERAND)
        parts = tl.zeros((TARGETS, DIMS), tl.float32)
        parts = split_dot(a_high, a_low, high, low, parts, True, PLAIN)
        squares += parts * parts
    unit = tl.load(scale + b * n + tl.minimum(i, n - 1)) * size * largest
    norms = tl.sqrt(tl.sum(squares, 1)) * unit
    tl.store(out + place, tl.where(i < length, norms, 0.0), mask=i < n)
