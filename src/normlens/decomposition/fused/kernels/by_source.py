"""The feed-forward stage source by source: the way for most inputs.

For one source, a block of targets and of dimensions, the kernel mixes the source's H rows, scales
them by the targets' slopes, multiplies by W_down, and keeps sums of what comes of it:

    v = Σ_k ((Â_ij Q^k_j) ⊙ r^k_i) W_down
"""

from __future__ import annotations

import triton
import triton.language as tl

from normlens.decomposition.fused.kernels.pieces import (
    dot,
    is_void,
    keep_behind_block,
    keep_behind_bypass,
    keep_nothing,
    pair_weights,
    split,
    split_dot,
)


@triton.jit
def _mix(a_high, a_low, rows_high, rows_low, local, k, SPLIT: tl.constexpr, PLAIN: tl.constexpr):
    """``Σ_h Â_ijh Q_jh`` for a block of neurons, (i, m)."""
    H_BLOCK: tl.constexpr = rows_high.block_shape[1]
    NEURONS: tl.constexpr = rows_high.block_shape[2]
    q = rows_high.load([local, 0, k]).reshape(H_BLOCK, NEURONS)
    q_low = q
    if SPLIT:
        q_low = rows_low.load([local, 0, k]).reshape(H_BLOCK, NEURONS)
    mixed = tl.zeros((a_high.shape[0], NEURONS), tl.float32)
    return split_dot(a_high, a_low, q, q_low, mixed, SPLIT, PLAIN)


@triton.jit
def _hidden(
    a_high,
    a_low,
    rows_high,
    rows_low,
    gated_high,
    gated_low,
    slopes,
    gated_slopes,
    local,
    row,
    k,
    GATED: tl.constexpr,
    SPLIT: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """``Σ_k (Â_ij Q^k_j) ⊙ r^k_i`` for a block of neurons, (i, m)."""
    hidden = _mix(a_high, a_low, rows_high, rows_low, local, k, SPLIT, PLAIN)
    hidden *= slopes.load([row, k]).to(tl.float32)
    if GATED:
        more = _mix(a_high, a_low, gated_high, gated_low, local, k, SPLIT, PLAIN)
        hidden += more * gated_slopes.load([row, k]).to(tl.float32)
    return hidden


@triton.jit
def _multiply(
    total,
    left,
    right,
    local,
    start,
    d_start,
    chunk,
    CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """``total + hidden W_down`` over a chunk of the neurons."""
    TARGETS: tl.constexpr = left.block_shape[1]
    NEURONS: tl.constexpr = left.block_shape[2]
    for k in tl.range(chunk, chunk + CHUNK, NEURONS, num_stages=STAGES):
        x = left.load([local, start, k]).reshape(TARGETS, NEURONS)
        total = dot(x, right.load([k, d_start]), total, PLAIN)
    return total


@triton.jit(do_not_specialize=["first", "offset", "batch"])
def feed_forward_sums(
    sums,  # as `pieces` leaves them
    weights,  # A (b, j, i, h) float32
    rows_high,  # Q (j, h, m) of the first projection; source `first` is at its place `offset`
    rows_low,  # what rounding took from it; None where there is no such operand
    gated_high,  # the same of the second projection
    gated_low,
    slopes,  # r (b·i, m)
    gated_slopes,
    hidden_high,  # (j, i, m) what `store_hidden` made of all these, if `STORED`
    hidden_low,
    down_high,  # W_down (m, d)
    down_low,
    scale,  # s (b, i), and what the operands were divided by
    slope_sizes,
    source_sizes,
    weight_size,
    down_size,
    values,  # U (b, j, h, d) of the bypassed parts, strides of its tokens and heads, scale (b, i)
    token_stride,
    head_stride,
    bypass_scale,
    inverse_deviation,  # (b, i) of a norm that stands before the bypass is added
    gamma,  # (d,)
    ordinary,  # (d,) 1 where a dimension is ordinary, else 0
    lengths,  # (b,) int32
    first,
    offset,
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
    STORED: tl.constexpr,
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
    program = tl.program_id(0)
    d_blocks = tl.cdiv(D, DIMS)
    i_blocks = tl.cdiv(n, TARGETS)
    d_start = program % d_blocks * DIMS
    start = (program // d_blocks % i_blocks) * TARGETS
    local = program // d_blocks // i_blocks  # the source's place in this launch
    source = offset + local  # among the rows
    token = (first + local).to(tl.int64)  # in the batch
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
        if STORED:
            # The small products first: a running sum that is still small rounds less.
            if SPLIT:
                total = _multiply(
                    total, hidden_low, down_high, local, start, d_start, chunk, CHUNK, STAGES, PLAIN
                )
                total = _multiply(
                    total, hidden_high, down_low, local, start, d_start, chunk, CHUNK, STAGES, PLAIN
                )
            total = _multiply(
                total, hidden_high, down_high, local, start, d_start, chunk, CHUNK, STAGES, PLAIN
            )
        else:
            for k in tl.range(chunk, chunk + CHUNK, NEURONS, num_stages=STAGES):
                hidden = _hidden(
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
            values + token * token_stride + h.to(tl.int64)[:, None] * head_stride + dims[None, :],
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


@triton.jit(do_not_specialize=["first", "offset"])
def store_hidden(
    hidden_high,  # (j, i, m) from source `first` on
    hidden_low,
    weights,
    rows_high,
    rows_low,
    gated_high,
    gated_low,
    slopes,
    gated_slopes,
    lengths,
    first,
    offset,
    n,
    back,
    ahead,
    M: tl.constexpr,
    H: tl.constexpr,
    H_BLOCK: tl.constexpr,
    GATED: tl.constexpr,
    SPLIT: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
    TARGETS: tl.constexpr,
    NEURONS: tl.constexpr,
    RUN: tl.constexpr,  # neurons of one program
    STAGES: tl.constexpr,
):
    """The hidden rows of one source and a block of targets, for `feed_forward_sums` to multiply.

    With many dimensions every row would be mixed anew for each block of them; storing it costs
    less from some size on, and both kernels run at the same time.
    """
    program = tl.program_id(0)
    runs = tl.cdiv(M, RUN)
    i_blocks = tl.cdiv(n, TARGETS)
    start = (program // runs % i_blocks) * TARGETS
    local = program // runs // i_blocks
    token = (first + local).to(tl.int64)
    b = (token // n).to(tl.int32)
    length = tl.load(lengths + b)
    if is_void((token % n).to(tl.int32), start, length, back, ahead, TARGETS):
        return
    i = start + tl.arange(0, TARGETS)
    a, _ = pair_weights(weights, token * n + i, i < length, H, H_BLOCK)
    a_high, a_low = split(a, tl.float16)
    begin = program % runs * RUN
    for step in tl.range(0, RUN, NEURONS, num_stages=STAGES):
        k = begin + step
        hidden = _hidden(
            a_high,
            a_low,
            rows_high,
            rows_low,
            gated_high,
            gated_low,
            slopes,
            gated_slopes,
            offset + local,
            b * n + start,
            k,
            GATED,
            SPLIT,
            PLAIN,
        )
        high, low = split(hidden, OPERAND)
        hidden_high.store([local, start, k], high.reshape(1, TARGETS, NEURONS))
        if SPLIT:
            hidden_low.store([local, start, k], low.reshape(1, TARGETS, NEURONS))
