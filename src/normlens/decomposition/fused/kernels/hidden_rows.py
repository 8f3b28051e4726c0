"""Hidden rows: a source's H rows, mixed and scaled by the slopes of a block of targets.

Σ_k (Â_ij Q^k_j) ⊙ r^k_i
"""

from __future__ import annotations

import triton
import triton.language as tl

from normlens.decomposition.fused.kernels.pieces import is_void, pair_weights, split, split_dot


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

    Without it a row is mixed again for each block of dimensions. With many of them, storing the
    row costs less, and both kernels run at the same time.
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
        hidden = hidden_rows(
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
