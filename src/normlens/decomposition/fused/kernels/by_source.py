"""The feed-forward stage source by source: the method for most inputs.

For one source, a block of targets and of dimensions, the kernel mixes the source's H rows, scales
them by the targets' slopes, multiplies by W_down, and keeps sums of the resulting parts v:

    v = Σ_k ((Â_ij Q^k_j) ⊙ r^k_i) W_down
"""

from __future__ import annotations

import triton
import triton.language as tl

from normlens.decomposition.fused.kernels.hidden_rows import hidden_rows
from normlens.decomposition.fused.kernels.pieces import (
    is_void,
    keep_behind_block,
    keep_behind_bypass,
    keep_nothing,
    pair_weights,
    split,
    split_dot,
)


@triton.jit(do_not_specialize=["first", "batch"])
def feed_forward_sums(
    sums,  # as `pieces` leaves them
    weights,  # A (b, j, i, h) float32
    rows_high,  # Q (j, h, m) of the first projection, from the token `first` on
    rows_low,  # the rounding error of Q; None where operands are not split
    gated_high,  # the same of the second projection
    gated_low,
    slopes,  # r (b·i, m)
    gated_slopes,
    down_high,  # W_down (m, d)
    down_low,
    scale,  # s (b, i); then the sizes that the operands were divided by
    slope_sizes,
    source_sizes,
    weight_size,
    down_size,
    values,  # U (j, h, d) of the bypassed parts, as the rows; its strides, and scale (b, i)
    token_stride,
    head_stride,
    bypass_scale,
    inverse_deviation,  # (b, i) of a norm that stands before the bypass is added
    gamma,  # (d,)
    ordinary,  # (d,) 1 where a dimension is ordinary, else 0
    lengths,  # (b,) int32
    first,
    batch,
    n,
    back,
    ahead,
    M: tl.constexpr,
    D: tl.constexpr,
    H: tl.constexpr,
    H_BLOCK: tl.constexpr,
    GATED: tl.constexpr,
    SPLIT: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
    BYPASS: tl.constexpr,
    NORM_FIRST: tl.constexpr,
    SLOTS: tl.constexpr,
    ORDINARY: tl.constexpr,
    NORMED: tl.constexpr,
    NORMED_MEAN: tl.constexpr,
    NORMED_CROSS: tl.constexpr,
    ADDED: tl.constexpr,
    ADDED_CROSS: tl.constexpr,
    TARGETS: tl.constexpr,
    NEURONS: tl.constexpr,
    CHUNK: tl.constexpr,
    DIMS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The sums of one source's parts, for a block of targets and dimensions."""
    program = tl.program_id(0)
    d_blocks = tl.cdiv(D, DIMS)
    i_blocks = tl.cdiv(n, TARGETS)
    d_start = program % d_blocks * DIMS
    start = (program // d_blocks % i_blocks) * TARGETS
    source = program // d_blocks // i_blocks  # among the rows
    token = (first + source).to(tl.int64)  # in the batch
    j = (token % n).to(tl.int32)
    b = (token // n).to(tl.int32)
    length = tl.load(lengths + b)

    i = start + tl.arange(0, TARGETS)
    slot_stride = tl.cast(batch, tl.int64) * n * n
    place = (program % d_blocks).to(tl.int64) * SLOTS * slot_stride + token * n + i
    inside = i < n
    if is_void(j, start, length, back, ahead, TARGETS):
        keep_nothing(sums, place, slot_stride, inside, SLOTS)
        return

    real = i < length
    a, largest = pair_weights(weights, token * n + i, real, H, H_BLOCK)
    a_high, a_low = split(a, tl.float16)
    row = b * n + start
    v = tl.zeros((TARGETS, DIMS), tl.float32)
    for chunk in tl.range(0, M, CHUNK, num_stages=1):
        total = tl.zeros((TARGETS, DIMS), tl.float32)
        for k in tl.range(chunk, chunk + CHUNK, NEURONS, num_stages=STAGES):
            hidden = hidden_rows(
                a_high,
                a_low,
                rows_high,
                rows_low,
                gated_high,
                gated_low,
                slopes,
                gated_slopes,
                source,
                row,
                k,
                GATED,
                SPLIT,
                PLAIN,
            )
            x_high, x_low = split(hidden, OPERAND)
            w = down_high.load([k, d_start])
            w_low = w
            if SPLIT:
                w_low = down_low.load([k, d_start])
            total = split_dot(x_high, x_low, w, w_low, total, SPLIT, PLAIN)
        # The matrix units round their running sum towards zero; short sums keep that small.
        v = total if CHUNK >= M else v + total

    target = b.to(tl.int64) * n + tl.minimum(i, n - 1)
    dims = d_start + tl.arange(0, DIMS)
    units = (scale, slope_sizes, source_sizes, weight_size, down_size)
    v = keep_behind_block(
        v, largest, sums, place, slot_stride, inside, real, target, token, dims, units,
        inverse_deviation, gamma, ordinary,
        D, NORM_FIRST, ORDINARY, NORMED, NORMED_MEAN, NORMED_CROSS,
    )  # fmt: skip
    if BYPASS:
        # Two bfloat16 numbers in every precision: they cost nothing here, and need no scaling.
        h = tl.arange(0, H_BLOCK)
        u = tl.load(
            values
            + source.to(tl.int64) * token_stride
            + h.to(tl.int64)[:, None] * head_stride
            + dims[None, :],
            mask=(h < H)[:, None] & (dims < D)[None, :],
            other=0.0,
        )
        u_high, u_low = split(u, tl.bfloat16)
        a_high, a_low = split(a * tl.load(bypass_scale + target)[:, None], tl.bfloat16)
        v = split_dot(a_high, a_low, u_high, u_low, v, True, PLAIN)
    keep_behind_bypass(
        v, sums, place, slot_stride, inside, real, dims, gamma,
        D, NORM_FIRST, NORMED, NORMED_MEAN, NORMED_CROSS, ADDED, ADDED_CROSS,
    )  # fmt: skip
