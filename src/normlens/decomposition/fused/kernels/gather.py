"""Hidden rows of active neurons alone, for `by_target` to multiply."""

from __future__ import annotations

import triton
import triton.language as tl

from normlens.decomposition.fused.kernels.pieces import inverse, sees_none, split, target_of


@triton.jit
def list_active(
    active,  # (b·i, M) int32: each target's active neurons; the rest is undefined
    counts,  # (b·i,) int32
    slopes,  # (b·i, M)
    gated_slopes,
    lengths,
    n,
    M: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """List the neurons whose slopes are not 0 for a target."""
    row = tl.program_id(0).to(tl.int64)
    count = 0
    if row % n < tl.load(lengths + row // n):
        for start in range(0, M, BLOCK):
            k = start + tl.arange(0, BLOCK)
            passes = tl.load(slopes + row * M + k, mask=k < M, other=0.0) != 0
            if GATED:
                passes |= tl.load(gated_slopes + row * M + k, mask=k < M, other=0.0) != 0
            ones = passes.to(tl.int32)
            tl.store(active + row * M + count + tl.cumsum(ones, 0) - 1, k, mask=passes)
            count += tl.sum(ones, 0)
    tl.store(counts + row, count)


@triton.jit
def _gather_mix(
    rows,
    neuron,
    column,
    inside,
    columns,
    weights,
    n,
    real,
    over,
    M: tl.constexpr,
    H: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``Σ_h Â_ijh Q_jh`` of some neurons and sources, (m, j)."""
    mixed = tl.zeros((neuron.shape[0], column.shape[0]), tl.float32)
    at = neuron.to(tl.int64)[:, None] * columns + column[None, :]
    for h in tl.range(0, H, num_stages=STAGES):
        a = tl.load(weights + h * n, mask=real, other=0.0) * over
        mixed += tl.load(rows + at, mask=inside, other=0.0).to(tl.float32) * a[None, :]
        at += tl.cast(columns, tl.int64) * M
    return mixed


@triton.jit(do_not_specialize=["batch_first", "first_tile", "source_first", "targets"])
def gather_hidden(
    hidden_high,  # (j, c, capacity)
    hidden_low,
    active,
    counts,
    weights,  # A (b, i, h, j)
    rows,  # Q (h, M, columns): sequences from `batch_first` on, `sources` columns of each
    gated,
    slopes,  # (b·i, M)
    gated_slopes,
    lengths,
    first_tile,
    tiles,
    targets,
    capacity,
    batch_first,
    source_first,
    sources,
    columns,
    n,
    back,
    ahead,
    M: tl.constexpr,
    H: tl.constexpr,
    GATED: tl.constexpr,
    SPLIT: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
    TILE: tl.constexpr,
    SOURCES: tl.constexpr,
    NEURONS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``Σ_k (Â_ij Q^k_j) ⊙ r^k_i`` of some active neurons of a target, for a block of sources.

    Columns beyond the last active neuron are zero, as far as the product reads.
    """
    program = tl.program_id(0)
    # Programs of one block of sources run together: their rows stay in the cache.
    c = program % targets
    blocks = tl.cdiv(capacity, NEURONS)
    first = program // targets % blocks * NEURONS
    first_source = program // targets // blocks * SOURCES
    b, i = target_of(c, first_tile, tiles, TILE)
    start = source_first + first_source
    length = tl.load(lengths + b)
    row = b.to(tl.int64) * n + i
    count = tl.load(counts + row)
    none = sees_none(i, start, source_first + sources, length, back, ahead)
    if none | (first >= count):
        return
    local = first_source + tl.arange(0, SOURCES)
    j = source_first + local
    real = (j < length) & (local < sources)
    target_weights = weights + row * n * H + j
    largest = tl.zeros((SOURCES,), tl.float32)
    for h in range(0, H):
        largest = tl.maximum(largest, tl.abs(tl.load(target_weights + h * n, mask=real, other=0.0)))
    over = inverse(largest)
    column = (b - batch_first) * sources + local
    k = first + tl.arange(0, NEURONS)
    neuron = tl.load(active + row * M + k, mask=k < count, other=0)
    inside = (k < count)[:, None] & (local < sources)[None, :]
    mixed = _gather_mix(
        rows, neuron, column, inside, columns, target_weights, n, real, over, M, H, STAGES
    )
    slope = tl.load(slopes + row * M + neuron, mask=k < count, other=0.0)
    hidden = mixed * slope.to(tl.float32)[:, None]
    if GATED:
        mixed = _gather_mix(
            gated, neuron, column, inside, columns, target_weights, n, real, over, M, H, STAGES
        )
        slope = tl.load(gated_slopes + row * M + neuron, mask=k < count, other=0.0)
        hidden += mixed * slope.to(tl.float32)[:, None]
    high, low = split(tl.trans(hidden), OPERAND)
    at = (local.to(tl.int64) * targets + c)[:, None] * capacity + k[None, :]
    tl.store(hidden_high + at, high, mask=(local < sources)[:, None])
    if SPLIT:
        tl.store(hidden_low + at, low, mask=(local < sources)[:, None])
