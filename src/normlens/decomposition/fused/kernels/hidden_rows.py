"""Hidden rows: a source's H rows, mixed and scaled by the slopes of a block of targets.

Σ_k (Â_ij Q^k_j) ⊙ r^k_i
"""

from __future__ import annotations

import triton
import triton.language as tl

from normlens.decomposition.fused.kernels.pieces import pair_weights, split, split_dot


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
