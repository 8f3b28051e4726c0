"""The feed-forward stage pair by pair: hidden rows that are stored, multiplied by W_down.

A block of rows holds the pairs of one source or of several. The kernel keeps the same sums as the
one that mixes rows itself (`by_source`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from normlens.decomposition.fused.kernels.pieces import (
    dot,
    keep_behind_block,
    keep_behind_bypass,
    pair_weights,
    split,
    split_dot,
)


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
