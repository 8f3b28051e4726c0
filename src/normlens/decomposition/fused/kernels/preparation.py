"""Kernels around the products: operands scaled and rounded before them, norms from sums after.

Each of these passes is short; as single operations of PyTorch they would be some sixty launches and
take as long as the products of a short text.
"""

from __future__ import annotations

import triton
import triton.language as tl

from normlens.decomposition.fused.kernels.pieces import split, split_dot


@triton.jit
def _divisor(size):
    """A size to divide by; 1 where there is nothing to divide."""
    return tl.where(size == 0, 1.0, size)


@triton.jit
def scale_slopes(
    scaled,  # (rows, PADDED) each
    gated_scaled,
    sizes,  # (rows,)
    given,  # (rows, M) each
    gated,
    M: tl.constexpr,
    PADDED: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each target's slopes over the largest of them, in the type of `scaled`."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, M, BLOCK):
        place = start + tl.arange(0, BLOCK)
        r = tl.load(given + row * M + place, mask=place < M, other=0.0)
        largest = tl.maximum(largest, tl.abs(r))
        if GATED:
            r = tl.load(gated + row * M + place, mask=place < M, other=0.0)
            largest = tl.maximum(largest, tl.abs(r))
    size = _divisor(tl.max(largest, 0))
    tl.store(sizes + row, size)
    for start in range(0, PADDED, BLOCK):
        place = start + tl.arange(0, BLOCK)
        r = tl.load(given + row * M + place, mask=place < M, other=0.0) / size
        kind = scaled.dtype.element_ty
        tl.store(scaled + row * PADDED + place, r.to(kind), mask=place < PADDED)
        if GATED:
            r = tl.load(gated + row * M + place, mask=place < M, other=0.0) / size
            tl.store(gated_scaled + row * PADDED + place, r.to(kind), mask=place < PADDED)


@triton.jit
def measure_sources(
    sizes,  # (tokens,)
    x,  # (tokens, H, E) with these strides of tokens and heads
    token_stride,
    head_stride,
    H: tl.constexpr,
    E: tl.constexpr,
    H_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest norm of a source's H vectors."""
    token = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, H_BLOCK)
    squares = tl.zeros((H_BLOCK,), tl.float32)
    for start in range(0, E, BLOCK):
        e = start + tl.arange(0, BLOCK)
        values = tl.load(
            x + token * token_stride + h.to(tl.int64)[:, None] * head_stride + e[None, :],
            mask=(h < H)[:, None] & (e < E)[None, :],
            other=0.0,
        )
        squares += tl.sum(values * values, 1)
    tl.store(sizes + token, _divisor(tl.sqrt(tl.max(squares, 0))))


@triton.jit(do_not_specialize=["rows"])
def project_rows(
    out_high,  # (rows, GROUPS, COLUMNS) with these strides
    out_low,
    row_stride,
    group_stride,
    column_stride,
    x,  # (rows, GROUPS, E) float32
    sizes,  # of each `PER_SIZE` rows
    w_high,  # (GROUPS, E, COLUMNS)
    w_low,
    rows,
    GROUPS: tl.constexpr,
    E: tl.constexpr,
    COLUMNS: tl.constexpr,
    PER_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    OUT_SPLIT: tl.constexpr,
    TURNED: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    INNER: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """``(x / size) W`` of each group, as operands."""
    program = tl.program_id(0)
    blocks = tl.cdiv(COLUMNS, BLOCK)
    column = program % blocks * BLOCK + tl.arange(0, BLOCK)
    group = program // blocks % GROUPS
    row = (program // blocks // GROUPS * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    size = tl.load(sizes + row // PER_SIZE, mask=row < rows, other=1.0)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for chunk in range(0, E, CHUNK):
        part = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(chunk, min(chunk + CHUNK, E), INNER):
            e = start + tl.arange(0, INNER)
            own = tl.load(
                x + (row * GROUPS + group)[:, None] * E + e[None, :],
                mask=(row < rows)[:, None] & (e < E)[None, :],
                other=0.0,
            )
            high, low = split(own / size[:, None], OPERAND)
            place = (group * E + e).to(tl.int64)[:, None] * COLUMNS + column[None, :]
            known = (e < E)[:, None] & (column < COLUMNS)[None, :]
            w = tl.load(w_high + place, mask=known, other=0.0)
            low_w = w
            if SPLIT:
                low_w = tl.load(w_low + place, mask=known, other=0.0)
            part = split_dot(high, low, w, low_w, part, SPLIT, PLAIN)
        total += part  # short sums round less
    if TURNED:
        # Written along the tokens, which lie side by side.
        total = tl.trans(total)
        place = column.to(tl.int64)[:, None] * column_stride + row[None, :] * row_stride
        known = (column < COLUMNS)[:, None] & (row < rows)[None, :]
    else:
        place = row[:, None] * row_stride + column.to(tl.int64)[None, :] * column_stride
        known = (row < rows)[:, None] & (column < COLUMNS)[None, :]
    place += group.to(tl.int64) * group_stride
    high, low = split(total, out_high.dtype.element_ty)
    tl.store(out_high + place, high, mask=known)
    if OUT_SPLIT:
        tl.store(out_low + place, low, mask=known)


@triton.jit
def _sum(sums, slot, stride, block_stride, place, inside, D_BLOCKS: tl.constexpr):
    """One slot, summed over the blocks of dimensions."""
    total = tl.load(sums + slot * stride + place, mask=inside, other=0.0)
    for block in tl.static_range(1, D_BLOCKS):
        total += tl.load(
            sums + block * block_stride + slot * stride + place, mask=inside, other=0.0
        )
    return total


@triton.jit
def _keep_norm(out, number, squares, largest, place, slot_stride, inside):
    """The norms of one scope, (j, i) written as (i, j)."""
    norms = tl.sqrt(tl.maximum(squares, 0.0)) * largest
    # The maximum above would hide a NaN.
    norms = tl.where(squares != squares, squares, norms)
    tl.store(out + number * slot_stride + place, norms, mask=inside)


@triton.jit(do_not_specialize=["batch"])
def norms_of_sums(
    out,  # (scopes, b, i, j): behind the block, its ordinary dimensions, LN, RES; as far as wanted
    totals,  # (j blocks, b, i) Σ over a block's sources and all dimensions of the parts
    sums,  # as `keep_sums` leaves them
    inverse_deviation,  # (b, i)
    gamma_square,  # Σ γ²
    source_stride,  # of the sums: (j, i) or (i, j)
    target_stride,
    batch,
    n,
    D: tl.constexpr,
    D_BLOCKS: tl.constexpr,
    SLOTS: tl.constexpr,
    ORDINARY: tl.constexpr,
    NORMED: tl.constexpr,
    NORMED_MEAN: tl.constexpr,
    NORMED_CROSS: tl.constexpr,
    ADDED: tl.constexpr,
    ADDED_CROSS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Every scope's norms of a block of pairs from the sums of their parts.

    With ``μ = Σv / d``: ``Σ (γv − γμ)² = Σ (γv)² − 2μ Σ γ²v + μ² Σ γ²``.
    """
    program = tl.program_id(0)
    blocks = tl.cdiv(n, BLOCK)
    j_block = program % blocks
    j = j_block * BLOCK + tl.arange(0, BLOCK)
    i = program // blocks % blocks * BLOCK + tl.arange(0, BLOCK)
    b = (program // blocks // blocks).to(tl.int64)
    stride = tl.cast(batch, tl.int64) * n * n
    block_stride = SLOTS * stride
    inside = (j < n)[:, None] & (i < n)[None, :]
    place = b * n * n + j.to(tl.int64)[:, None] * source_stride
    place += i.to(tl.int64)[None, :] * target_stride
    turned = b * n * n + i.to(tl.int64)[None, :] * n + j[:, None]

    largest = tl.load(sums + place, mask=inside, other=0.0)
    squares = _sum(sums, 1, stride, block_stride, place, inside, D_BLOCKS)
    _keep_norm(out, 0, squares, largest, turned, stride, inside)
    total = _sum(sums, 2, stride, block_stride, place, inside, D_BLOCKS) * largest
    tl.store(totals + (j_block * batch + b) * n + i, tl.sum(total, 0), mask=i < n)
    number = 1
    if ORDINARY >= 0:
        squares = _sum(sums, ORDINARY, stride, block_stride, place, inside, D_BLOCKS)
        _keep_norm(out, number, squares, largest, turned, stride, inside)
        number += 1
    g = tl.load(gamma_square)
    mean = tl.zeros_like(largest)
    known = inside
    if NORMED >= 0:
        inverse = tl.load(inverse_deviation + b * n + i, mask=i < n, other=0.0)[None, :]
        squares = _sum(sums, NORMED, stride, block_stride, place, known, D_BLOCKS)
        if NORMED_MEAN >= 0:
            mean = _sum(sums, NORMED_MEAN, stride, block_stride, place, known, D_BLOCKS) / D
            cross = _sum(sums, NORMED_CROSS, stride, block_stride, place, known, D_BLOCKS)
            squares += mean * (mean * g - 2 * cross)
        _keep_norm(out, number, squares * inverse * inverse, largest, turned, stride, inside)
        number += 1
        mean *= inverse
    if ADDED >= 0:
        squares = _sum(sums, ADDED, stride, block_stride, place, known, D_BLOCKS)
        if ADDED_CROSS >= 0:
            cross = _sum(sums, ADDED_CROSS, stride, block_stride, place, known, D_BLOCKS)
            squares += mean * (mean * g - 2 * cross)
        _keep_norm(out, number, squares, largest, turned, stride, inside)


@triton.jit(do_not_specialize=["batch", "blocks"])
def error_of_totals(
    errors,  # (b, i)
    totals,  # (j blocks, b·i)
    mixed,  # (b·i, D)
    output,
    lengths,
    batch,
    n,
    blocks,
    D: tl.constexpr,
    ROOT: tl.constexpr,  # √D
    BLOCK: tl.constexpr,
):
    """``|Σ_j Σ_d F_i(x_j) − Σ_d mixed_i| / (√d ‖output_i‖)`` of each token; NaN is ∞."""
    row = tl.program_id(0).to(tl.int64)
    if row % n >= tl.load(lengths + row // n):
        tl.store(errors + row, 0.0)
        return
    total = 0.0
    for block in range(0, blocks):
        total += tl.load(totals + block * (batch * n) + row)
    wanted = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, D, BLOCK):
        place = start + tl.arange(0, BLOCK)
        wanted += tl.load(mixed + row * D + place, mask=place < D, other=0.0)
        real = tl.load(output + row * D + place, mask=place < D, other=0.0)
        squares += real * real
    size = tl.maximum(tl.sqrt(tl.sum(squares, 0)) * ROOT, 1e-30)
    error = tl.abs(total - tl.sum(wanted, 0)) / size
    tl.store(errors + row, tl.where(error == error, error, float("inf")))
