"""Kernels of the feed-forward stage source by source; hidden rows are mixed or stored."""

from __future__ import annotations

import triton
import triton.language as tl

from normlens.gpu.pieces import (
    dot,
    is_void,
    keep_behind_block,
    keep_behind_bypass,
    keep_nothing,
    pair_weights,
    split,
    split_dot,
)

# Hidden rows: a source's H rows, mixed and scaled by the slopes of a block of targets.
#
# Σ_k (Â_ij Q^k_j) ⊙ r^k_i


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
def hidden_rows(
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


@triton.jit(do_not_specialize=["start", "begin", "end", "first", "i_blocks"])
def store_hidden(
    hidden_high,  # (pairs, M) from pair `begin` on
    hidden_low,
    weights,  # A (b, j, i, h) float32
    rows_high,  # Q (j, h, m) from the token `first` on
    rows_low,
    gated_high,
    gated_low,
    slopes,
    gated_slopes,
    tokens,  # of a `PairList`
    lows,
    begins,
    start,  # the first source
    begin,  # the pairs to store
    end,
    first,
    i_blocks,
    n,
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
    """The hidden rows of one source and a block of targets, for `pair_sums` to multiply.

    Without it a row is mixed again for each block of dimensions. With many of them, storing the
    row costs less.
    """
    program = tl.program_id(0)
    runs = tl.cdiv(M, RUN)
    source = start + program // runs // i_blocks
    skipped = program // runs % i_blocks * TARGETS
    place = tl.load(begins + source) + skipped
    stop = tl.minimum(tl.load(begins + source + 1), end)
    if (place >= stop) | (place + TARGETS <= begin):
        return
    token = tl.load(tokens + source).to(tl.int64)
    target = tl.load(lows + source) + skipped
    rows = tl.arange(0, TARGETS)
    real = place + rows < stop
    a, _ = pair_weights(weights, token * n + target + rows, real, H, H_BLOCK)
    a_high, a_low = split(a, tl.float16)
    local = (token - first).to(tl.int32)
    row = (token // n).to(tl.int32) * n + target
    run = program % runs * RUN
    out = (place - begin + rows)[:, None] * M
    kept = (real & (place + rows >= begin))[:, None]
    for step in tl.range(0, RUN, NEURONS, num_stages=STAGES):
        k = run + step
        hidden = hidden_rows(
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
            GATED,
            SPLIT,
            PLAIN,
        )
        high, low = split(hidden, OPERAND)
        neurons = (k + tl.arange(0, NEURONS))[None, :]
        tl.store(hidden_high + out + neurons, high, mask=kept & (neurons < M))
        if SPLIT:
            tl.store(hidden_low + out + neurons, low, mask=kept & (neurons < M))


# The feed-forward stage source by source: the method for most inputs.
#
# For one source, a block of targets and of dimensions, the kernel mixes the source's H rows,
# scales them by the targets' slopes, multiplies by W_down, and keeps sums of the resulting parts
# v:
#
#     v = Σ_k ((Â_ij Q^k_j) ⊙ r^k_i) W_down


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


# The feed-forward stage pair by pair: hidden rows that are stored, multiplied by W_down.
#
# A block of rows holds the pairs of one source or of several. The kernel keeps the same sums as
# the one that mixes rows itself (`by_source`).


@triton.jit
def _multiply(
    total,
    left,
    right,
    row,
    d_start,
    chunk,
    CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """``total + hidden W_down`` over a chunk of the neurons."""
    NEURONS: tl.constexpr = left.block_shape[1]
    for k in tl.range(chunk, chunk + CHUNK, NEURONS, num_stages=STAGES):
        total = dot(left.load([row, k]), right.load([k, d_start]), total, PLAIN)
    return total


@triton.jit(do_not_specialize=["begin", "end", "first", "batch"])
def pair_sums(
    sums,  # as `pieces` leaves them
    weights,  # A (b, j, i, h) float32
    hidden_high,  # (pairs, m) as `store_hidden` leaves them
    hidden_low,
    down_high,  # W_down (m, d)
    down_low,
    scale,  # s (b, i); then the sizes that the operands were divided by
    slope_sizes,
    source_sizes,
    weight_size,
    down_size,
    values,  # U (j, h, d) of the bypassed parts from the token `first` on; its strides
    token_stride,
    head_stride,
    bypass_scale,  # (b, i)
    inverse_deviation,  # (b, i) of a norm that stands before the bypass is added
    gamma,  # (d,)
    ordinary,  # (d,) 1 where a dimension is ordinary, else 0
    sources,  # of a `PairList`
    tokens,
    lows,
    begins,
    begin,  # the pairs of this launch
    end,
    first,
    batch,
    n,
    M: tl.constexpr,
    D: tl.constexpr,
    H: tl.constexpr,
    H_BLOCK: tl.constexpr,
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
    CHUNK: tl.constexpr,
    DIMS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The sums of a block of pairs, for a block of dimensions."""
    program = tl.program_id(0)
    d_blocks = tl.cdiv(D, DIMS)
    d_start = program % d_blocks * DIMS
    row = program // d_blocks * TARGETS
    v = tl.zeros((TARGETS, DIMS), tl.float32)
    for chunk in tl.range(0, M, CHUNK, num_stages=1):
        total = tl.zeros((TARGETS, DIMS), tl.float32)
        # The small products first: a running sum that is still small rounds less.
        if SPLIT:
            total = _multiply(
                total, hidden_low, down_high, row, d_start, chunk, CHUNK, STAGES, PLAIN
            )
            total = _multiply(
                total, hidden_high, down_low, row, d_start, chunk, CHUNK, STAGES, PLAIN
            )
        total = _multiply(total, hidden_high, down_high, row, d_start, chunk, CHUNK, STAGES, PLAIN)
        # The matrix units round their running sum towards zero; short sums keep that small.
        v = total if CHUNK >= M else v + total

    pair = tl.cast(begin, tl.int64) + row + tl.arange(0, TARGETS)
    inside = pair < end
    pair = tl.minimum(pair, end - 1)
    source = tl.load(sources + pair)
    token = tl.load(tokens + source).to(tl.int64)
    i = pair - tl.load(begins + source) + tl.load(lows + source)
    target = token // n * n + i
    a, largest = pair_weights(weights, token * n + i, inside, H, H_BLOCK)
    slot_stride = tl.cast(batch, tl.int64) * n * n
    place = (program % d_blocks).to(tl.int64) * SLOTS * slot_stride + token * n + i
    dims = d_start + tl.arange(0, DIMS)
    units = (scale, slope_sizes, source_sizes, weight_size, down_size)
    v = keep_behind_block(
        v, largest, sums, place, slot_stride, inside, inside, target, token, dims, units,
        inverse_deviation, gamma, ordinary,
        D, NORM_FIRST, ORDINARY, NORMED, NORMED_MEAN, NORMED_CROSS,
    )  # fmt: skip
    if BYPASS:
        # Two bfloat16 numbers in every precision: they cost nothing here, and need no scaling.
        h = tl.arange(0, H_BLOCK)
        a *= tl.load(bypass_scale + target)[:, None]
        last = tl.load(sources + tl.minimum(tl.cast(begin, tl.int64) + row + TARGETS, end) - 1)
        for number in range(tl.load(sources + begin + row), last + 1):
            place_of_values = (tl.load(tokens + number) - first).to(tl.int64) * token_stride
            u = tl.load(
                values + place_of_values + h.to(tl.int64)[:, None] * head_stride + dims[None, :],
                mask=(h < H)[:, None] & (dims < D)[None, :],
                other=0.0,
            )
            u_high, u_low = split(u, tl.bfloat16)
            a_high, a_low = split(tl.where((source == number)[:, None], a, 0.0), tl.bfloat16)
            v = split_dot(a_high, a_low, u_high, u_low, v, True, PLAIN)
    keep_behind_bypass(
        v, sums, place, slot_stride, inside, inside, dims, gamma,
        D, NORM_FIRST, NORMED, NORMED_MEAN, NORMED_CROSS, ADDED, ADDED_CROSS,
    )  # fmt: skip
