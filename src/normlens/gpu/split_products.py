"""Float32 products at the speed of float16 units: numbers split into two halves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from normlens.gpu.pieces import INTERPRETED, described, launch
from normlens.gpu.sizes import PROCESSORS

# Numbers split into two of half the precision, in one pass over them.


SPLIT_BLOCK = 1024


@triton.jit(do_not_specialize=["count"])
def halve(
    high,  # bfloat16, and low alike
    low,
    values,  # float32
    scale,  # float32, or anything if not SCALED
    count,
    period,  # of the scale, which is repeated
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write numbers, or products of two, as a bfloat16 number and what it misses."""
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = k < count
    v = tl.load(values + k, mask=inside, other=0.0)
    if SCALED:
        v *= tl.load(scale + k % period, mask=inside, other=0.0)
    upper = v.to(tl.bfloat16)
    tl.store(high + k, upper, mask=inside)
    tl.store(low + k, (v - upper.to(tl.float32)).to(tl.bfloat16), mask=inside)


def halves(v: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """v, or v ⊙ scale whose last axes it has, as a bfloat16 number and what it misses."""
    v = v.contiguous()
    other = v if scale is None else scale.contiguous()
    high = torch.empty_like(v, dtype=torch.bfloat16)
    low = torch.empty_like(high)
    launch(
        halve,
        triton.cdiv(v.numel(), SPLIT_BLOCK),
        high,
        low,
        v,
        other,
        v.numel(),
        other.numel(),
        SCALED=scale is not None,
        BLOCK=SPLIT_BLOCK,
    )
    return high, low


# Float32 products at the speed of a GPU's float16 units.
#
# Each row of a factor is divided by its size, a power of two, and written as float16 numbers and
# what these miss, which together have 22 digits. A product of two such numbers is the sum of
# three, ``h h' + h l' + l h'``. Sums stay short: the units that multiply cut off what they add, so
# a few terms at a time are added up there, and the rest in float32.
#
# Weights that a model has in half precision miss nothing; the product with what they miss is left
# out, which changes no digit.


BLOCK = 1024  # numbers that are split at a time
HEADROOM = tl.constexpr(12)  # the largest number of a row is between 2¹² and 2¹³
GROUP = 8  # blocks of rows whose programs run one after the other, to share what they read


@dataclass(frozen=True)
class SplitRows:
    """The rows of a matrix (rows, inner) in two float16 numbers each, and their sizes."""

    high: Tensor
    low: Tensor
    sizes: Tensor  # (rows,)
    missed: Tensor  # (rows,) the largest number of `low`

    @classmethod
    def of(cls, given: Tensor) -> SplitRows:
        if given.stride(1) != 1:
            given = given.contiguous()
        high = torch.empty(given.shape, dtype=torch.float16, device=given.device)
        sizes, missed = given.new_empty((2, len(given)), dtype=torch.float32)
        split = cls(high, torch.empty_like(high), sizes, missed)
        launch(
            split_rows,
            len(given),
            split.high,
            split.low,
            split.sizes,
            split.missed,
            given,
            given.stride(0),
            K=given.shape[1],
            BLOCK=min(BLOCK, triton.next_power_of_2(given.shape[1])),
        )
        return split


def multiply(
    v: Tensor, weight: SplitRows, bias: Tensor | None = None, *, digits: int = 22, heads: int = 1
) -> Tensor:
    """``v W``, or ``v W + b``, of vectors (rows, in); `weight` has the rows of Wᵀ.

    With 11 `digits` only the larger numbers are multiplied. With several `heads` the vectors, the
    weight's rows and the columns of the product are those of one head after the other.
    """
    inner, columns = weight.high.shape[1], len(weight.high) // heads
    left, rows = SplitRows.of(v.reshape(-1, inner)), len(v)
    made = torch.empty((rows, heads * columns), dtype=torch.float32, device=v.device)
    tile = 128 if triton.cdiv(rows, 128) * triton.cdiv(columns, 128) >= PROCESSORS // 2 else 64
    of_rows = [half.view(rows, heads * inner) for half in (left.high, left.low)]
    left_rows, right_rows = (
        [described(half, [tile, 64]) for half in both]
        for both in (of_rows, (weight.high, weight.low))
    )
    programs = triton.cdiv(rows, tile) * triton.cdiv(columns, tile)
    launch(
        multiply_rows,
        (programs, heads),
        made,
        *left_rows,
        *right_rows,
        left.sizes,
        weight.sizes,
        weight.missed,
        made if bias is None else bias,
        rows,
        columns,
        K=inner,
        HEADS=heads,
        SPLIT=digits > 11,
        BIASED=bias is not None,
        TILE=tile,
        INNER=64,
        GROUP=GROUP,
        PLAIN=INTERPRETED,
        num_warps=8 if tile == 128 else 4,
        num_stages=3,
    )
    return made


@triton.jit
def split_rows(
    high,  # (rows, K) float16, and low alike
    low,
    sizes,  # (rows,) float32, and missed alike
    missed,
    given,  # (rows, K)
    row_stride,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Divide a row by a power of two near its largest number and write it as two numbers each."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, K, BLOCK):
        place = start + tl.arange(0, BLOCK)
        v = tl.load(given + row * row_stride + place, mask=place < K, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(v))
    exponent = (tl.max(largest, 0).to(tl.int32, bitcast=True) >> 23) - 127
    shift = tl.minimum(tl.maximum(exponent, -100), 110) - HEADROOM  # both sizes are normal numbers
    tl.store(sizes + row, ((shift + 127) << 23).to(tl.float32, bitcast=True))
    inverse = ((shift * -1 + 127) << 23).to(tl.float32, bitcast=True)
    largest = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, K, BLOCK):
        place = start + tl.arange(0, BLOCK)
        v = tl.load(given + row * row_stride + place, mask=place < K, other=0.0).to(tl.float32)
        upper = (v * inverse).to(tl.float16)
        tl.store(high + row * K + place, upper, mask=place < K)
        lower = (v * inverse - upper.to(tl.float32)).to(tl.float16)
        tl.store(low + row * K + place, lower, mask=place < K)
        largest = tl.maximum(largest, tl.abs(lower).to(tl.float32))
    tl.store(missed + row, tl.max(largest, 0))


@triton.jit
def _dot(x, y, PLAIN: tl.constexpr, total=None):
    """``x yᵀ``, added to a total if there is one; `PLAIN` is for the interpreter."""
    if PLAIN:
        product = tl.dot(x.to(tl.float32), tl.trans(y).to(tl.float32), input_precision="ieee")
        return product if total is None else total + product
    return tl.dot(x, tl.trans(y), total)


@triton.jit(do_not_specialize=["rows"])
def multiply_rows(
    product,  # (rows, HEADS · columns) float32
    x_high,  # descriptors of (rows, HEADS · K) and (HEADS · columns, K)
    x_low,
    y_high,
    y_low,
    x_sizes,
    y_sizes,
    y_missed,
    bias,  # (columns,), or anything if not BIASED
    rows,
    columns,
    K: tl.constexpr,
    HEADS: tl.constexpr,
    SPLIT: tl.constexpr,
    BIASED: tl.constexpr,
    TILE: tl.constexpr,
    INNER: tl.constexpr,
    GROUP: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """``x yᵀ`` of split rows, with their sizes multiplied back and a bias added."""
    program, head = tl.program_id(0), tl.program_id(1)
    row_tiles, column_tiles = tl.cdiv(rows, TILE), tl.cdiv(columns, TILE)
    first = program // (GROUP * column_tiles) * GROUP
    group = tl.minimum(row_tiles - first, GROUP)
    inside = program % (GROUP * column_tiles)
    i = (first + inside % group) * TILE
    j = inside // group * TILE
    row, column = i + tl.arange(0, TILE), j + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), tl.float32)
    x_first, y_row = head * K, head * columns + j
    # Behind the last of K numbers come another head's; those of y are zeros there.
    if SPLIT:
        missed = tl.load(y_missed + head * columns + column, mask=column < columns, other=0.0)
        if tl.max(missed, 0) > 0:
            for k in range(0, K, INNER):
                x, y = x_high.load([i, x_first + k]), y_high.load([y_row, k])
                part = _dot(x_low.load([i, x_first + k]), y, PLAIN)  # the small products first
                part = _dot(x, y_low.load([y_row, k]), PLAIN, part)
                total += _dot(x, y, PLAIN, part)
        else:
            for k in range(0, K, INNER):
                x, y = x_high.load([i, x_first + k]), y_high.load([y_row, k])
                part = _dot(x_low.load([i, x_first + k]), y, PLAIN)
                total += _dot(x, y, PLAIN, part)
    else:
        for k in range(0, K, INNER):
            x, y = x_high.load([i, x_first + k]), y_high.load([y_row, k])
            total = _dot(x, y, PLAIN, total)
    x_size = tl.load(x_sizes + row * HEADS + head, mask=row < rows, other=0.0)
    total *= x_size[:, None]
    y_size = tl.load(y_sizes + head * columns + column, mask=column < columns, other=0.0)
    total *= y_size[None, :]
    if BIASED:
        total += tl.load(bias + column, mask=column < columns, other=0.0)[None, :]
    place = (row.to(tl.int64)[:, None] * HEADS + head) * columns + column[None, :]
    tl.store(product + place, total, mask=(row < rows)[:, None] & (column < columns)[None, :])
