"""Kernels that prepare operands, take norms of rows and form slopes of gated blocks."""

from __future__ import annotations

import triton
import triton.language as tl

from normlens.gpu.kernels.pieces import split, split_dot

# Operands for the products: scaled, projected and rounded.
#
# Each of these passes is short. With those of `norms` they would be some sixty launches as single
# operations of PyTorch, and take as long as the products of a short text.


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


# Steps of the algebra that take one pass over rows of vectors, where PyTorch takes several.


#: The smallest size that an error is divided by: the least normal number of float32.
TINY = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def normalise_rows(
    out,  # (rows, D)
    v,  # (rows, D)
    inverse_deviation,  # (targets,); row r belongs to target r % targets
    gamma,  # (D,), or anything if not STRETCHED
    beta,  # (D,), or anything if not SHIFTED
    targets,
    D: tl.constexpr,
    CENTRED: tl.constexpr,
    STRETCHED: tl.constexpr,
    SHIFTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``(v − mean v)/σ ⊙ γ + β`` of one row."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < D
    x = tl.load(v + row * D + k, mask=inside, other=0.0)
    if CENTRED:
        x -= tl.sum(x, 0) / D
    if STRETCHED:
        x *= tl.load(gamma + k, mask=inside, other=0.0).to(tl.float32)
    x *= tl.load(inverse_deviation + row % targets)
    if SHIFTED:
        x += tl.load(beta + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * D + k, x, mask=inside)


@triton.jit
def measure_rows(
    own_norms,  # (b·i,) each
    mixed_norms,
    errors,
    own,  # (b·i, D), and mixed, rest and real alike
    mixed,
    coefficients,  # (b·i, K)
    bias_rows,  # (K, D)
    rest,  # anything if not RESTED
    real,  # anything if not COMPARED
    lengths,  # (b,) int32
    n,
    D: tl.constexpr,
    K: tl.constexpr,
    RESTED: tl.constexpr,
    COMPARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The norms of a target's own part and of the others' sum, and the error of completeness."""
    row = tl.program_id(0).to(tl.int64)
    own_square = tl.zeros((BLOCK,), tl.float32)
    mixed_square = tl.zeros((BLOCK,), tl.float32)
    real_square = tl.zeros((BLOCK,), tl.float32)
    missed_square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, D, BLOCK):
        k = start + tl.arange(0, BLOCK)
        inside = k < D
        x = tl.load(own + row * D + k, mask=inside, other=0.0)
        m = tl.load(mixed + row * D + k, mask=inside, other=0.0)
        own_square += x * x
        mixed_square += m * m
        if COMPARED:
            bias = tl.zeros((BLOCK,), tl.float32)
            for place in range(K):
                c = tl.load(coefficients + row * K + place)
                bias += c * tl.load(bias_rows + place * D + k, mask=inside, other=0.0)
            if RESTED:
                bias += tl.load(rest + row * D + k, mask=inside, other=0.0)
            y = tl.load(real + row * D + k, mask=inside, other=0.0).to(tl.float32)
            missed = x + bias + m - y
            real_square += y * y
            missed_square += missed * missed
    tl.store(own_norms + row, tl.sqrt(tl.sum(own_square, 0)))
    tl.store(mixed_norms + row, tl.sqrt(tl.sum(mixed_square, 0)))
    if COMPARED:
        is_token = row % n < tl.load(lengths + row // n)
        size = tl.maximum(tl.sqrt(tl.sum(real_square, 0)), TINY)
        error = tl.sqrt(tl.sum(missed_square, 0)) / size
        tl.store(errors + row, tl.where(is_token, error, 0.0))


# Slopes of a gated block on the path from 0, in one pass over its neurons.


@triton.jit(do_not_specialize=["count"])
def slopes_from_zero(
    gate_slopes,  # r^a, and the three below: as many numbers as there are neurons
    up_slopes,  # r^u
    hidden,  # h
    gate,  # a
    up,  # u
    table,  # (4, cells): cubics of J
    count,
    CELLS: tl.constexpr,  # of one unit of a
    BOUND: tl.constexpr,  # where the table ends
    TANH: tl.constexpr,  # the slope is tanh GELU's, not SiLU's
    BLOCK: tl.constexpr,
):
    """``r^a = u (r(a) − J)``, ``r^u = a J`` and ``h = a r(a) u`` (`normlens…rules`)."""
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = k < count
    a = tl.load(gate + k, mask=inside, other=0.0)
    u = tl.load(up + k, mask=inside, other=0.0)
    first = BOUND * CELLS
    place = tl.minimum(tl.maximum(a, -BOUND), BOUND) * CELLS
    cell = tl.minimum(tl.maximum(tl.floor(place), -first), first - 1)
    part = place - cell
    # NaN is carried by the slope; no index may be NaN.
    index = tl.where(a == a, cell, 0.0).to(tl.int32) + first
    width = 2 * first
    c = tl.load(table + 2 * width + index)
    d = tl.load(table + 3 * width + index)
    mean = c + part * d
    mean = tl.load(table + width + index) + part * mean
    mean = tl.load(table + index) + part * mean
    if TANH:
        slope = tl.sigmoid(2 * 0.7978845608028654 * a * (1 + 0.044715 * a * a))
    else:
        slope = tl.sigmoid(a)
    # Beyond the bound the activation is a line through 0 on each side.
    share = BOUND / tl.maximum(tl.abs(a), BOUND)
    mean = share * share * mean + 0.5 * (1 - share * share) * slope
    tl.store(gate_slopes + k, u * (slope - mean), mask=inside)
    tl.store(up_slopes + k, a * mean, mask=inside)
    tl.store(hidden + k, a * slope * u, mask=inside)
