"""The kernels' operands: scaled to order 1, in the type that a precision asks for.

A part is a product of five factors, and each is divided by a size before it is rounded:

    A_ij by its largest weight (in the kernel) · Q_j by the source's size · r_i by its largest
    slope · the input projections and W_down by one number each

so that no factor leaves the range of float16, and a source, target or pair with small numbers
keeps as many digits as any other. The sizes are multiplied back in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normlens.decomposition.fused.kernels import preparation
from normlens.decomposition.fused.launching import described, launch
from normlens.decomposition.fused.precision import Precision
from normlens.decomposition.fused.tiling import aligned, power_of_two

TILE = 64  # rows and columns that are scaled at a time
#: Whether torch multiplies short operands into float32 numbers.
WIDE = torch.__version__ >= "2.8"


@dataclass(frozen=True)
class Operand:
    """A tensor in the operand type; `low` is the rounding error, or `high` itself if not kept."""

    high: Tensor
    low: Tensor

    @classmethod
    def empty(cls, like: Tensor, shape: Sequence[int], dtype: torch.dtype, split: bool) -> Operand:
        high = torch.empty(tuple(shape), dtype=dtype, device=like.device)
        return cls(
            high, torch.empty(high.shape, dtype=dtype, device=like.device) if split else high
        )

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

    @property
    def nbytes(self) -> int:
        return self.high.nbytes + (self.low.nbytes if self.split else 0)


def rounded(x: Tensor, dtype: torch.dtype, split: bool) -> Operand:
    """Round `x` to an operand; `split` keeps the rounding error as well."""
    high = x.to(dtype)
    return Operand(high, (x - high).to(dtype) if split else high)


def scaled(
    x: Tensor, size: Tensor, shape: Sequence[int], dtype: torch.dtype, split: bool
) -> Operand:
    """A matrix divided by one number, as an operand of this shape with zeros around it."""
    made = Operand.empty(x, shape, dtype, split)
    rows, columns = shape
    launch(
        preparation.scale_matrix,
        -(-rows // TILE) * -(-columns // TILE),
        *made.both,
        x,
        *x.stride(),
        size,
        ROWS=x.shape[0],
        COLUMNS=x.shape[1],
        PADDED_ROWS=rows,
        PADDED_COLUMNS=columns,
        SPLIT=split,
        BLOCK=TILE,
    )
    return made


def described_both(operand: Operand | None, block: list[int]) -> list[Any]:
    """Describe an operand's high and low tensors for a kernel; None for a missing one."""
    if operand is None:
        return [None, None]
    low = described(operand.low, block) if operand.split else None
    return [described(operand.high, block), low]


def wide_product(x: Tensor, w: Tensor) -> Tensor:
    """``x w`` of two operands, in float32."""
    if x.is_cuda and WIDE:
        return torch.mm(x, w, out_dtype=torch.float32)
    return x.float() @ w.float()


def nonzero(size: Tensor) -> Tensor:
    """A size to divide by: 1 in place of 0."""
    return torch.where(size > 0, size, torch.ones_like(size))


def slopes(given: Sequence[Tensor], precision: Precision) -> tuple[list[Tensor], Tensor]:
    """Each r^k (b, i, m) divided by the target's largest slope, (b·i, m), and that slope (b·i,)."""
    given = [r.flatten(0, 1).contiguous() for r in given]
    rows, m = given[0].shape
    dtype = torch.float32 if precision.split else torch.float16
    scaled = [torch.empty((rows, aligned(m)), dtype=dtype, device=r.device) for r in given]
    sizes = torch.empty(rows, dtype=torch.float32, device=given[0].device)
    launch(
        preparation.scale_slopes,
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


def down(weight: Tensor, precision: Precision) -> tuple[Operand, Tensor]:
    """W_down divided by its largest element, padded, and that element."""
    size = nonzero(torch.linalg.vector_norm(weight, torch.inf))
    shape = [aligned(axis) for axis in weight.shape]
    return scaled(weight, size, shape, precision.operand, precision.split), size


@dataclass(frozen=True)
class ScaledWeights:
    """Input projections divided by one common size, so that parts through them can be added."""

    weights: tuple[Operand, ...]  # each (h, e, m), padded; h = 1 where all heads share it
    size: Tensor

    @classmethod
    def of(cls, given: Sequence[Tensor], precision: Precision) -> ScaledWeights:
        columns = [torch.linalg.vector_norm(w, dim=-2).amax() for w in given]
        size = nonzero(torch.stack(columns).amax())
        e, m = given[0].shape[-2], aligned(given[0].shape[-1])
        rows = [w.flatten(0, -2) for w in given]
        made = [scaled(w, size, (len(w), m), torch.float16, precision.split) for w in rows]
        return cls(tuple(w.mapped(lambda x: x.view(-1, e, m)) for w in made), size)

    @property
    def nbytes(self) -> int:
        return sum(w.nbytes for w in self.weights)
