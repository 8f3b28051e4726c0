"""Operands for the products: scaled, projected and rounded.

Each of these passes is short. With those of `norms` they would be some sixty launches as single
operations of PyTorch, and take as long as the products of a short text.
"""

from __future__ import annotations

import triton
import triton.language as tl

from normlens.decomposition.fused.kernels.pieces import split, split_dot


@triton.jit
def _divisor(size):
    """A size to divide by: 1 in place of 0."""
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
    """Divide each target's slopes by the largest of them, in the type of `scaled`."""
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
def scale_matrix(
    high,  # (PADDED_ROWS, PADDED_COLUMNS), and low alike
    low,
    given,  # (ROWS, COLUMNS) with these strides
    row_stride,
    column_stride,
    size,  # one number
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDED_ROWS: tl.constexpr,
    PADDED_COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Divide a matrix by a size and round it to an operand, with zeros around it."""
    blocks = tl.cdiv(PADDED_COLUMNS, BLOCK)
    row = tl.program_id(0) // blocks * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    place = row.to(tl.int64)[:, None] * row_stride + column.to(tl.int64)[None, :] * column_stride
    inside = (row < ROWS)[:, None] & (column < COLUMNS)[None, :]
    values = tl.load(given + place, mask=inside, other=0.0)
    upper, missed = split(tl.div_rn(values, tl.load(size)), high.dtype.element_ty)
    place = row.to(tl.int64)[:, None] * PADDED_COLUMNS + column[None, :]
    inside = (row < PADDED_ROWS)[:, None] & (column < PADDED_COLUMNS)[None, :]
    tl.store(high + place, upper, mask=inside)
    if SPLIT:
        tl.store(low + place, missed, mask=inside)


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
    out_high,  # (rows, GROUPS, COLUMNS)
    out_low,
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
            vectors = tl.load(
                x + (row * GROUPS + group)[:, None] * E + e[None, :],
                mask=(row < rows)[:, None] & (e < E)[None, :],
                other=0.0,
            )
            high, low = split(vectors / size[:, None], OPERAND)
            place = (group * E + e).to(tl.int64)[:, None] * COLUMNS + column[None, :]
            inside = (e < E)[:, None] & (column < COLUMNS)[None, :]
            w = tl.load(w_high + place, mask=inside, other=0.0)
            low_w = w
            if SPLIT:
                low_w = tl.load(w_low + place, mask=inside, other=0.0)
            part = split_dot(high, low, w, low_w, part, SPLIT, PLAIN)
        total += part  # short sums round less
    place = (row * GROUPS + group)[:, None] * COLUMNS + column[None, :]
    inside = (row < rows)[:, None] & (column < COLUMNS)[None, :]
    high, low = split(total, OPERAND)
    tl.store(out_high + place, high, mask=inside)
    if SPLIT:
        tl.store(out_low + place, low, mask=inside)
