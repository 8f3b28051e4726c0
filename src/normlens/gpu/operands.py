"""Operands of the kernels: scaled to order 1, in the type that a precision asks for.

A part is a product of five factors, and each is divided by a size before it is rounded:

    A_ij by its largest weight (in the kernel) · Q_j by the source's size · r_i by its largest
    slope · the input projections and W_down by one number each

so that no factor leaves the range of float16, and a source, target or pair with small numbers keeps
as many digits as any other. The sizes are multiplied back in float32.

Each of these passes is short. With those of `rows` they would be some sixty launches as single
operations of PyTorch, and take as long as the products of a short text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from normlens.gpu.pieces import described, launch, split, split_dot, strided
from normlens.gpu.sizes import SOURCE_BLOCK, Precision, aligned, power_of_two


@dataclass(frozen=True)
class Operand:
    """A tensor in the operand type; `low` is the rounding error, or `high` itself if not kept."""

    high: Tensor
    low: Tensor

    @classmethod
    def empty(
        cls,
        like: Tensor,
        shape: Sequence[int],
        precision: Precision,
        dtype: torch.dtype | None = None,
    ) -> Operand:
        """Memory for an operand of this shape; without a `dtype` in that of the second product."""
        kind = dtype or precision.operand
        count = 2 if precision.split else 1
        made = [torch.empty(tuple(shape), dtype=kind, device=like.device) for _ in range(count)]
        return cls(made[0], made[-1])

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        return self.high, self.low

    @property
    def split(self) -> bool:
        return self.low is not self.high

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Operand:
        """The same with both tensors changed."""
        high = change(self.high)
        return Operand(high, change(self.low) if self.split else high)

    def described(self, block: list[int]) -> list[Any]:
        """High and low tensor, described for a kernel; None for one that is not kept."""
        return [described(self.high, block), described(self.low, block) if self.split else None]

    @property
    def nbytes(self) -> int:
        return self.high.nbytes + (self.low.nbytes if self.split else 0)


# Weights, divided by one number.


TILE = 64  # rows and columns that are scaled at a time


@dataclass(frozen=True)
class ScaledWeights:
    """Weights divided by one common size, so that parts through them can be added."""

    weights: tuple[Operand, ...]
    size: Tensor

    @classmethod
    def of(cls, given: Sequence[Tensor], precision: Precision) -> ScaledWeights:
        """Input projections over their largest column, each (h, e, m), padded.

        h is 1 where all heads share it.
        """
        columns = [torch.linalg.vector_norm(w, dim=-2).amax() for w in given]
        size = _nonzero(torch.stack(columns).amax())
        e, m = given[0].shape[-2], aligned(given[0].shape[-1])
        rows = [w.flatten(0, -2) for w in given]
        made = [_scaled(w, size, (len(w), m), precision, torch.float16) for w in rows]
        return cls(tuple(w.mapped(lambda x: x.view(-1, e, m)) for w in made), size)

    @classmethod
    def of_down(cls, weight: Tensor, precision: Precision) -> ScaledWeights:
        """W_down over its largest element, padded."""
        size = _nonzero(torch.linalg.vector_norm(weight, torch.inf))
        shape = [aligned(axis) for axis in weight.shape]
        return cls((_scaled(weight, size, shape, precision),), size)

    @property
    def nbytes(self) -> int:
        return sum(w.nbytes for w in self.weights)


def _nonzero(size: Tensor) -> Tensor:
    """A size to divide by: 1 in place of 0."""
    return torch.where(size > 0, size, torch.ones_like(size))


def _scaled(
    x: Tensor,
    size: Tensor,
    shape: Sequence[int],
    precision: Precision,
    dtype: torch.dtype | None = None,
) -> Operand:
    """A matrix divided by one number, as an operand of this shape with zeros around it."""
    made = Operand.empty(x, shape, precision, dtype)
    rows, columns = shape
    launch(
        scale_matrix,
        -(-rows // TILE) * -(-columns // TILE),
        *made.both,
        x,
        *x.stride(),
        size,
        ROWS=x.shape[0],
        COLUMNS=x.shape[1],
        PADDED_ROWS=rows,
        PADDED_COLUMNS=columns,
        SPLIT=precision.split,
        BLOCK=TILE,
    )
    return made


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


# Slopes, divided by the target's largest.


def scaled_slopes(given: Sequence[Tensor], precision: Precision) -> tuple[list[Tensor], Tensor]:
    """Each r^k (b, i, m) divided by the target's largest slope, (b·i, m), and that slope (b·i,)."""
    given = [r.flatten(0, 1).contiguous() for r in given]
    rows, m = given[0].shape
    dtype = torch.float32 if precision.split else torch.float16
    scaled = [torch.empty((rows, aligned(m)), dtype=dtype, device=r.device) for r in given]
    sizes = torch.empty(rows, dtype=torch.float32, device=given[0].device)
    launch(
        scale_slopes,
        rows,
        scaled[0],
        scaled[-1],
        sizes,
        given[0],
        given[-1],
        M=m,
        PADDED=aligned(m),
        GATED=len(given) > 1,
        BLOCK=min(1024, power_of_two(m)),
    )
    return scaled, sizes


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


# The rows that are mixed into hidden rows, ``Q^k_jh``, formed for some sources at a time.


COLUMNS, INNER = 128, 64  # of a block of projected rows
LONGEST_ROW_SUM = 1024


def source_sizes(x: Tensor) -> Tensor:
    """The size of each source: the largest norm of its vectors x (b, j, h, e), as (b·j,)."""
    b, n, h, e = x.shape
    sizes = torch.empty(b * n, dtype=torch.float32, device=x.device)
    heads, block = power_of_two(h), min(64, power_of_two(e))
    launch(measure_sources, b * n, sizes, *strided(x), H=h, E=e, H_BLOCK=heads, BLOCK=block)
    return sizes


class SourceRows:
    """Rows ``Q^k_jh = x_jh P^k_h`` of any sources of the batch, divided by their sizes.

    x is a head's value vector v_jh and P its head product B_h W_k, or x is U_jh and P is W_k.
    """

    def __init__(self, x: Tensor, scaled: ScaledWeights, precision: Precision):
        self._given, self._precision = x, precision  # (b, j, h, e)
        self.heads, self.weights, self.weight_size = x.shape[2], scaled.weights, scaled.size
        self.neurons = self.weights[0].high.shape[-1]
        self.source_sizes = source_sizes(x)
        #: Memory of one source's rows.
        self.bytes_per_source = len(self.weights) * self.heads * self.neurons * precision.itemsize

    @cached_property
    def _x(self) -> Tensor:
        return self._given.contiguous().flatten(0, 1)

    def take(self, first: int, last: int) -> list[Operand]:
        """Each projection's rows (j, h, m) of the tokens in [first, last)."""
        shape = (last - first, self.heads, self.neurons)
        made = []
        for weight in self.weights:
            out = Operand.empty(self._x, shape, self._precision, torch.float16)
            self._project(weight, self._x[first:last], self.source_sizes[first:last], out)
            made.append(out)
        return made

    def _project(self, weight: Operand, x: Tensor, sizes: Tensor, out: Operand) -> None:
        """Write ``x P`` into `out`."""
        groups, e, m = weight.high.shape
        # Where heads share a weight, every head of a token is a separate row.
        per_token = self.heads if groups < self.heads else 1
        rows = len(x) * per_token
        columns, inner = min(COLUMNS, power_of_two(m)), max(16, min(INNER, power_of_two(e)))
        launch(
            project_rows,
            -(-m // columns) * groups * -(-rows // SOURCE_BLOCK),
            *out.both,
            x,
            sizes,
            *weight.both,
            rows,
            operand=torch.float16,
            GROUPS=groups,
            E=e,
            COLUMNS=m,
            PER_SIZE=per_token,
            SPLIT=self._precision.split,
            ROWS=SOURCE_BLOCK,
            BLOCK=columns,
            INNER=inner,
            CHUNK=LONGEST_ROW_SUM,
            num_warps=8,
        )


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
