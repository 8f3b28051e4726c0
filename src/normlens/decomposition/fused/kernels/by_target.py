"""The feed-forward stage target by target: for silent neurons, and for long inputs.

What a target multiplies its parts by is smaller, or cheaper for many sources, than W_down:

    gather     only the rows of W_down whose neurons are active for the target (ReLU)
    matrices   M_i = Σ_k W_k diag(r^k_i) W_down, d × d, once per target

Targets come in tiles of `TILE` that never leave their sequence; target c of a launch is the place
``c % TILE`` of tile ``first_tile + c // TILE``. The launch's sources are the positions from
`source_first` on in the sequences of its targets. What is multiplied is stored as (j, c, ·), the
parts as (c, j, d).
"""

from __future__ import annotations

import triton
import triton.language as tl

from normlens.decomposition.fused.kernels.pieces import (
    inverse,
    is_void,
    keep_nothing,
    keep_sums,
    pair_weights,
    split,
    split_dot,
)


@triton.jit
def _target(c, first_tile, tiles, TILE: tl.constexpr):
    """Sequence and position of a launch's target."""
    tile = first_tile + c // TILE
    return tile // tiles, tile % tiles * TILE + c % TILE


@triton.jit
def _sees_none(i, start, stop, length, back, ahead):
    """Whether target i sees no source in [start, stop)."""
    stop = tl.minimum(stop, length)
    return (i >= length) | (start >= stop) | (start > i + ahead) | (stop - 1 < i - back)


@triton.jit
def list_active(
    active,  # (b·i, M) int32: each target's active neurons, then whatever
    counts,  # (b·i,) int32
    slopes,  # (b·i, M)
    gated_slopes,
    lengths,
    n,
    M: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The neurons that a target's slopes let through."""
    row = tl.program_id(0).to(tl.int64)
    found = 0
    if row % n < tl.load(lengths + row // n):
        for start in range(0, M, BLOCK):
            k = start + tl.arange(0, BLOCK)
            passes = tl.load(slopes + row * M + k, mask=k < M, other=0.0) != 0
            if GATED:
                passes |= tl.load(gated_slopes + row * M + k, mask=k < M, other=0.0) != 0
            ones = passes.to(tl.int32)
            tl.store(active + row * M + found + tl.cumsum(ones, 0) - 1, k, mask=passes)
            found += tl.sum(ones, 0)
    tl.store(counts + row, found)


@triton.jit
def _gather_mix(
    rows_high,
    rows_low,
    neuron,
    column,
    known,
    columns,
    weights,
    n,
    real,
    over,
    M: tl.constexpr,
    H: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``Σ_h Â_ijh Q_jh`` of some neurons and sources, (m, j)."""
    mixed = tl.zeros((neuron.shape[0], column.shape[0]), tl.float32)
    at = neuron.to(tl.int64)[:, None] * columns + column[None, :]
    for h in tl.range(0, H, num_stages=STAGES):
        a = tl.load(weights + h * n, mask=real, other=0.0) * over
        q = tl.load(rows_high + at, mask=known, other=0.0).to(tl.float32)
        if SPLIT:
            q += tl.load(rows_low + at, mask=known, other=0.0).to(tl.float32)
        mixed += q * a[None, :]
        at += tl.cast(columns, tl.int64) * M
    return mixed


@triton.jit(do_not_specialize=["batch_first", "first_tile", "source_first", "targets"])
def gather_hidden(
    hidden_high,  # (j, c, capacity)
    hidden_low,
    active,
    counts,
    weights,  # A (b, i, h, j)
    rows_high,  # Q (h, M, columns): sequences from `batch_first` on, `sources` columns of each
    rows_low,
    gated_high,
    gated_low,
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
    MULTIPLE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``Σ_k (Â_ij Q^k_j) ⊙ r^k_i`` of a target's active neurons, for a block of sources."""
    program = tl.program_id(0)
    blocks = tl.cdiv(sources, SOURCES)
    c = program // blocks
    local = program % blocks * SOURCES + tl.arange(0, SOURCES)
    b, i = _target(c, first_tile, tiles, TILE)
    start = source_first + program % blocks * SOURCES
    length = tl.load(lengths + b)
    if _sees_none(i, start, source_first + sources, length, back, ahead):
        return
    j = source_first + local
    real = (j < length) & (local < sources)
    own = weights + (b.to(tl.int64) * n + i) * n * H + j
    largest = tl.zeros((SOURCES,), tl.float32)
    for h in range(0, H):
        largest = tl.maximum(largest, tl.abs(tl.load(own + h * n, mask=real, other=0.0)))
    over = inverse(largest)
    column = (b - batch_first) * sources + local
    row = b.to(tl.int64) * n + i
    count = tl.load(counts + row)
    # What is beyond the last neuron counts as zero, up to where the product reads.
    for first in range(0, tl.cdiv(count, MULTIPLE) * MULTIPLE, NEURONS):
        k = first + tl.arange(0, NEURONS)
        neuron = tl.load(active + row * M + k, mask=k < count, other=0)
        known = (k < count)[:, None] & (local < sources)[None, :]
        mixed = _gather_mix(
            rows_high, rows_low, neuron, column, known, columns, own, n, real, over,
            M, H, SPLIT, STAGES,
        )  # fmt: skip
        slope = tl.load(slopes + row * M + neuron, mask=k < count, other=0.0)
        hidden = mixed * slope.to(tl.float32)[:, None]
        if GATED:
            mixed = _gather_mix(
                gated_high, gated_low, neuron, column, known, columns, own, n, real, over,
                M, H, SPLIT, STAGES,
            )  # fmt: skip
            slope = tl.load(gated_slopes + row * M + neuron, mask=k < count, other=0.0)
            hidden += mixed * slope.to(tl.float32)[:, None]
        high, low = split(tl.trans(hidden), OPERAND)
        at = (local.to(tl.int64) * targets + c)[:, None] * capacity + k[None, :]
        kept = (local < sources)[:, None] & (k < capacity)[None, :]
        tl.store(hidden_high + at, high, mask=kept)
        if SPLIT:
            tl.store(hidden_low + at, low, mask=kept)


@triton.jit(do_not_specialize=["first_tile", "source_first", "targets"])
def mix_parts(
    parts_high,  # (j, c, capacity)
    parts_low,
    weights,
    values,  # U (b, j, h, D) float32, with the strides of tokens and heads
    token_stride,
    head_stride,
    source_sizes,
    lengths,
    first_tile,
    tiles,
    targets,
    capacity,
    source_first,
    sources,
    n,
    back,
    ahead,
    D: tl.constexpr,
    H: tl.constexpr,
    H_BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
    TILE: tl.constexpr,
    DIMS: tl.constexpr,
):
    """``Σ_h Â_ijh U_jh``, the parts at the block's input, of one source and a tile of targets."""
    program = tl.program_id(0)
    local = program % sources
    tile = program // sources
    b, begin = _target(tile * TILE, first_tile, tiles, TILE)
    j = source_first + local
    length = tl.load(lengths + b)
    if is_void(j, begin, length, back, ahead, TILE):
        return
    token = b.to(tl.int64) * n + j
    a, _ = pair_weights(weights, token, begin + tl.arange(0, TILE), n, length, H, H_BLOCK)
    a_high, a_low = split(a, tl.float16)
    size = tl.load(source_sizes + token)
    h = tl.arange(0, H_BLOCK)
    c = tile * TILE + tl.arange(0, TILE)
    at = (local.to(tl.int64) * targets + c)[:, None] * capacity
    for start in range(0, capacity, DIMS):
        dims = start + tl.arange(0, DIMS)
        u = tl.load(
            values + token * token_stride + h.to(tl.int64)[:, None] * head_stride + dims[None, :],
            mask=(h < H)[:, None] & (dims < D)[None, :],
            other=0.0,
        )
        u_high, u_low = split(u / size, tl.float16)
        mixed = tl.zeros((TILE, DIMS), tl.float32)
        high, low = split(split_dot(a_high, a_low, u_high, u_low, mixed, SPLIT, PLAIN), OPERAND)
        tl.store(parts_high + at + dims[None, :], high, mask=(dims < capacity)[None, :])
        if SPLIT:
            tl.store(parts_low + at + dims[None, :], low, mask=(dims < capacity)[None, :])


@triton.jit(do_not_specialize=["first_tile"])
def target_matrices(
    matrices_high,  # (c, capacity, width)
    matrices_low,
    up_high,  # W_k (D, M) of each projection
    up_low,
    gated_high,
    gated_low,
    slopes,  # (b·i, M)
    gated_slopes,
    down_high,  # W_down (M, width)
    down_low,
    lengths,
    first_tile,
    tiles,
    capacity,
    width,
    n,
    M: tl.constexpr,
    GATED: tl.constexpr,
    SPLIT: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    NEURONS: tl.constexpr,
    CHUNK: tl.constexpr,
    DIMS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``M_i = Σ_k W_k diag(r^k_i) W_down`` of one target, for a block of rows and columns."""
    program = tl.program_id(0)
    d_blocks = tl.cdiv(width, DIMS)
    row_blocks = tl.cdiv(capacity, ROWS)
    d_start = program % d_blocks * DIMS
    start = program // d_blocks % row_blocks * ROWS
    c = program // d_blocks // row_blocks
    b, i = _target(c, first_tile, tiles, TILE)
    if i >= tl.load(lengths + b):
        return
    target = b.to(tl.int64) * n + i
    matrix = tl.zeros((ROWS, DIMS), tl.float32)
    for chunk in tl.range(0, M, CHUNK, num_stages=1):
        total = tl.zeros((ROWS, DIMS), tl.float32)
        for k in tl.range(chunk, chunk + CHUNK, NEURONS, num_stages=STAGES):
            neurons = k + tl.arange(0, NEURONS)
            slope = tl.load(slopes + target * M + neurons, mask=neurons < M, other=0.0)
            x = up_high.load([start, k]).to(tl.float32)
            if SPLIT:
                x += up_low.load([start, k]).to(tl.float32)
            x *= slope.to(tl.float32)[None, :]
            if GATED:
                slope = tl.load(gated_slopes + target * M + neurons, mask=neurons < M, other=0.0)
                more = gated_high.load([start, k]).to(tl.float32)
                if SPLIT:
                    more += gated_low.load([start, k]).to(tl.float32)
                x += more * slope.to(tl.float32)[None, :]
            high, low = split(x, OPERAND)
            w = down_high.load([k, d_start])
            w_low = w
            if SPLIT:
                w_low = down_low.load([k, d_start])
            total = split_dot(high, low, w, w_low, total, SPLIT, PLAIN)
        matrix = total if CHUNK >= M else matrix + total
    rows = start + tl.arange(0, ROWS)
    dims = d_start + tl.arange(0, DIMS)
    at = (c.to(tl.int64) * capacity + rows)[:, None] * width + dims[None, :]
    known = (rows < capacity)[:, None] & (dims < width)[None, :]
    high, low = split(matrix, OPERAND)
    tl.store(matrices_high + at, high, mask=known)
    if SPLIT:
        tl.store(matrices_low + at, low, mask=known)


@triton.jit
def _factor(right, c, rows, known, k, start, width, GATHER: tl.constexpr, DIMS: tl.constexpr):
    """A block of what the target multiplies by: rows of W_down, or of M_i."""
    if GATHER:
        dims = start + tl.arange(0, DIMS)
        at = rows.to(tl.int64)[:, None] * width + dims[None, :]
        return tl.load(right + at, mask=known[:, None] & (dims < width)[None, :], other=0.0)
    else:
        return right.load([c, k, start]).reshape(right.block_shape[1], DIMS)


@triton.jit(do_not_specialize=["first_tile", "source_first"])
def multiply_parts(
    parts,  # (c, j, width) float32
    left_high,  # (j, c, capacity)
    left_low,
    right_high,  # W_down (M, width), or M_i (c, capacity, width)
    right_low,
    active,
    counts,
    lengths,
    first_tile,
    tiles,
    capacity,
    source_first,
    sources,
    width,
    n,
    back,
    ahead,
    M: tl.constexpr,
    GATHER: tl.constexpr,
    SPLIT: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
    TILE: tl.constexpr,
    SOURCES: tl.constexpr,
    NEURONS: tl.constexpr,
    DIMS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The parts of one target behind the block, for a block of sources and dimensions."""
    program = tl.program_id(0)
    d_blocks = tl.cdiv(width, DIMS)
    j_blocks = tl.cdiv(sources, SOURCES)
    d_start = program % d_blocks * DIMS
    first = program // d_blocks % j_blocks * SOURCES
    c = program // d_blocks // j_blocks
    b, i = _target(c, first_tile, tiles, TILE)
    start = source_first + first
    if _sees_none(i, start, source_first + sources, tl.load(lengths + b), back, ahead):
        return
    target = b.to(tl.int64) * n + i
    count = capacity
    if GATHER:
        count = tl.load(counts + target)
    total = tl.zeros((SOURCES, DIMS), tl.float32)
    for step in tl.range(0, tl.cdiv(count, NEURONS) * NEURONS, NEURONS, num_stages=STAGES):
        k = step + tl.arange(0, NEURONS)
        rows = k
        if GATHER:
            rows = tl.load(active + target * M + k, mask=k < count, other=0)
        x = left_high.load([first, c, step]).reshape(SOURCES, NEURONS)
        w = _factor(right_high, c, rows, k < count, step, d_start, width, GATHER, DIMS)
        x_low = x
        w_low = w
        if SPLIT:
            x_low = left_low.load([first, c, step]).reshape(SOURCES, NEURONS)
            w_low = _factor(right_low, c, rows, k < count, step, d_start, width, GATHER, DIMS)
        total = split_dot(x, x_low, w, w_low, total, SPLIT, PLAIN)
    local = first + tl.arange(0, SOURCES)
    dims = d_start + tl.arange(0, DIMS)
    at = (c.to(tl.int64) * sources + local)[:, None] * width + dims[None, :]
    tl.store(parts + at, total, mask=(local < sources)[:, None] & (dims < width)[None, :])


@triton.jit(do_not_specialize=["batch", "first_tile", "source_first"])
def sums_of_parts(
    sums,  # as `keep_sums` leaves them
    weights,
    parts,  # (c, j, width)
    scale,
    slope_sizes,
    source_sizes,
    weight_size,
    down_size,
    values,
    token_stride,
    head_stride,
    bypass_scale,
    inverse_deviation,
    gamma,
    ordinary,
    lengths,
    first_tile,
    tiles,
    source_first,
    sources,
    width,
    batch,
    n,
    back,
    ahead,
    D: tl.constexpr,
    H: tl.constexpr,
    H_BLOCK: tl.constexpr,
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
    TILE: tl.constexpr,
    DIMS: tl.constexpr,
):
    """What `feed_forward_sums` keeps, of parts that lie in memory."""
    program = tl.program_id(0)
    d_blocks = tl.cdiv(width, DIMS)
    d_start = program % d_blocks * DIMS
    local = program // d_blocks % sources
    tile = program // d_blocks // sources
    b, begin = _target(tile * TILE, first_tile, tiles, TILE)
    j = source_first + local
    token = b.to(tl.int64) * n + j
    i = begin + tl.arange(0, TILE)
    length = tl.load(lengths + b)
    slot_stride = tl.cast(batch, tl.int64) * n * n
    place = (program % d_blocks).to(tl.int64) * SLOTS * slot_stride + token * n + i
    inside = i < n
    if is_void(j, begin, length, back, ahead, TILE):
        keep_nothing(sums, place, slot_stride, inside, SLOTS)
        return
    dims = d_start + tl.arange(0, DIMS)
    seen = (i < length) & (j <= i + ahead) & (j >= i - back)
    c = (tile * TILE + tl.arange(0, TILE)).to(tl.int64)
    v = tl.load(
        parts + (c * sources + local)[:, None] * width + dims[None, :],
        mask=seen[:, None] & (dims < width)[None, :],
        other=0.0,
    )
    a, largest = pair_weights(weights, token, i, n, length, H, H_BLOCK)
    keep_sums(
        v,
        a,
        largest,
        sums,
        place,
        slot_stride,
        inside,
        i < length,
        b.to(tl.int64) * n + tl.minimum(i, n - 1),
        token,
        dims,
        (scale, slope_sizes, source_sizes, weight_size, down_size),
        (values, token_stride, head_stride, bypass_scale, inverse_deviation, gamma, ordinary),
        D,
        H,
        H_BLOCK,
        PLAIN,
        BYPASS,
        NORM_FIRST,
        ORDINARY,
        NORMED,
        NORMED_MEAN,
        NORMED_CROSS,
        ADDED,
        ADDED_CROSS,
    )
