"""What the kernel multiplies: operands scaled to order 1, in the type that a precision asks for.

A part is a product of five factors, and each is divided by a size before it is rounded:

    A_ij by its largest weight (in the kernel) · Q_j by the source's size · r_i by its largest
    slope · the input projections and W_down by one number each

so that no factor leaves the range of float16, and a source, target or pair with small numbers
keeps as many digits as any other. The sizes are multiplied back in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

ALIGNMENT = 16  # elements; rows that the copy engine reads start at multiples of 16 bytes


@dataclass(frozen=True)
class Precision:
    """How the kernel's products are formed. They are summed in float32 in every case."""

    name: str
    operand: torch.dtype  # of the second product; rows are mixed in float16 before it
    split: bool = False  # an operand is the sum of two, a product of three


#: "tf32" has the significand of that type, 11 bits. Scaled float16 operands have the same one and
#: are multiplied twice as fast. Two of them have the 22 bits that "float32" needs, where two
#: bfloat16 numbers have 16.
PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("float32", torch.float16, split=True),
        Precision("tf32", torch.float16),
        Precision("bfloat16", torch.bfloat16),
    )
}


@dataclass(frozen=True)
class Operand:
    """A tensor in the operand type; `low` is what rounding took from it, if that is kept."""

    high: Tensor
    low: Tensor


def rounded(x: Tensor, dtype: torch.dtype, split: bool) -> Operand:
    """`x` as an operand of the kernel."""
    high = x.to(dtype)
    return Operand(high, (x - high).to(dtype) if split else high)


def padded(x: Tensor, *sizes: int) -> Tensor:
    """`x` with its last axes enlarged by zeros to `sizes`, contiguous."""
    missing = [size - own for size, own in zip(sizes, x.shape[-len(sizes) :], strict=True)]
    if not any(missing):
        return x.contiguous()
    return F.pad(x, [place for more in reversed(missing) for place in (0, more)]).contiguous()


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def nonzero(size: Tensor) -> Tensor:
    """A size to divide by; 1 where there is nothing to divide."""
    return torch.where(size > 0, size, torch.ones_like(size))


def slopes(given: Sequence[Tensor], precision: Precision) -> tuple[list[Tensor], Tensor]:
    """Each r^k (b, i, m) over the target's largest slope, as (b·i, m), and that slope (b, i)."""
    largest = [torch.linalg.vector_norm(r, ord=torch.inf, dim=-1) for r in given]
    size = nonzero(torch.stack(largest).amax(0))
    dtype = torch.float32 if precision.split else torch.float16
    m = aligned(given[0].shape[-1])
    scaled = [padded((r / size[..., None]).to(dtype), m).flatten(0, 1) for r in given]
    return scaled, size


def down(weight: Tensor, precision: Precision) -> tuple[Operand, Tensor]:
    """W_down over its largest element, padded, and that element."""
    size = nonzero(weight.abs().amax())
    m, d = weight.shape
    scaled = padded(weight / size, aligned(m), aligned(d))
    return rounded(scaled, precision.operand, precision.split), size


@dataclass(frozen=True)
class ScaledWeights:
    """Input projections over one size for all of them, so that parts through them can be added."""

    weights: tuple[Tensor, ...]  # each (e, m) or (h, e, m), padded
    size: Tensor

    @classmethod
    def of(cls, given: Sequence[Tensor], precision: Precision) -> ScaledWeights:
        columns = [torch.linalg.vector_norm(w, dim=-2).amax() for w in given]
        size = nonzero(torch.stack(columns).amax())
        dtype = torch.float32 if precision.split else torch.float16
        m = aligned(given[0].shape[-1])
        return cls(tuple(padded((w / size).to(dtype), m) for w in given), size)

    @property
    def nbytes(self) -> int:
        return sum(w.nbytes for w in self.weights)


class SourceRows:
    """``Q^k_jh = x_jh P^k_h`` for any run of sources of the batch, over its sizes.

    x is a head's value vector and P its path to the neurons, or x is U_jh and P is W_k itself.
    """

    def __init__(self, x: Tensor, scaled: ScaledWeights, precision: Precision):
        self.split = precision.split
        self.x = x.flatten(0, 1)  # (b·j, h, e)
        self.weights, self.weight_size = scaled.weights, scaled.size
        self.source_sizes = nonzero(torch.linalg.vector_norm(self.x, dim=-1).amax(-1))  # (b·j,)

    @property
    def bytes_per_source(self) -> int:
        """Memory of one source's rows while they are made; splitting them takes a float32 copy."""
        elements = len(self.weights) * self.x.shape[1] * self.weights[0].shape[-1]
        return elements * (12 if self.split else 2)

    def take(self, first: int, last: int) -> list[Operand]:
        """Each projection's rows (j, h, m) of the sources in [first, last)."""
        x = self.x[first:last] / self.source_sizes[first:last, None, None]
        x = x.to(self.weights[0].dtype)
        found = []
        for w in self.weights:
            if w.dim() == 2:
                q = torch.mm(x.flatten(0, 1), w).view(*x.shape[:2], -1)
            else:
                q = torch.bmm(x.transpose(0, 1), w).transpose(0, 1)
            found.append(rounded(q, torch.float16, self.split))
        return found
