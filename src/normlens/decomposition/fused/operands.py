"""What the kernels multiply: operands scaled to order 1, in the type that a precision asks for.

A part is a product of five factors, and each is divided by a size before it is rounded:

    A_ij by its largest weight (in the kernel) · Q_j by the source's size · r_i by its largest
    slope · the input projections and W_down by one number each

so that no factor leaves the range of float16, and a source, target or pair with small numbers
keeps as many digits as any other. The sizes are multiplied back in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normlens.decomposition.costs.kernel_memory import source_row_bytes
from normlens.decomposition.fused.kernels import preparation
from normlens.decomposition.fused.launching import described, launch, strided
from normlens.decomposition.fused.precision import Precision
from normlens.decomposition.fused.tiling import aligned, power_of_two

#: Whether torch multiplies short operands into float32 numbers.
WIDE = torch.__version__ >= "2.8"
ROWS, COLUMNS, INNER = 128, 128, 64  # of a block of projected rows
LONGEST_ROW_SUM = 1024


@dataclass(frozen=True)
class Operand:
    """A tensor in the operand type; `low` is what rounding took from it, if that is kept."""

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

    @property
    def nbytes(self) -> int:
        return self.high.nbytes + (self.low.nbytes if self.split else 0)


def rounded(x: Tensor, dtype: torch.dtype, split: bool) -> Operand:
    """`x` as an operand of a kernel."""
    high = x.to(dtype)
    return Operand(high, (x - high).to(dtype) if split else high)


def described_both(operand: Operand | None, block: list[int]) -> list[Any]:
    """An operand's high and low numbers as a kernel takes them; None for what there is not."""
    if operand is None:
        return [None, None]
    low = described(operand.low, block) if operand.split else None
    return [described(operand.high, block), low]


def wide_product(x: Tensor, w: Tensor) -> Tensor:
    """``x w`` of two operands, in float32."""
    if x.is_cuda and WIDE:
        return torch.mm(x, w, out_dtype=torch.float32)
    return x.float() @ w.float()


def padded(x: Tensor, *sizes: int) -> Tensor:
    """`x` with its last axes enlarged by zeros to `sizes`, contiguous."""
    missing = [size - own for size, own in zip(sizes, x.shape[-len(sizes) :], strict=True)]
    if not any(missing):
        return x.contiguous()
    return F.pad(x, [place for more in reversed(missing) for place in (0, more)]).contiguous()


def nonzero(size: Tensor) -> Tensor:
    """A size to divide by; 1 where there is nothing to divide."""
    return torch.where(size > 0, size, torch.ones_like(size))


def slopes(given: Sequence[Tensor], precision: Precision) -> tuple[list[Tensor], Tensor]:
    """Each r^k (b, i, m) over the target's largest slope, as (b·i, m), and that slope (b·i,)."""
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
    """W_down over its largest element, padded, and that element."""
    size = nonzero(weight.abs().amax())
    m, d = weight.shape
    scaled = padded(weight / size, aligned(m), aligned(d))
    return rounded(scaled, precision.operand, precision.split), size


@dataclass(frozen=True)
class ScaledWeights:
    """Input projections over one size for all of them, so that parts through them can be added."""

    weights: tuple[Operand, ...]  # each (h, e, m), padded; h = 1 where all heads share it
    size: Tensor

    @classmethod
    def of(cls, given: Sequence[Tensor], precision: Precision) -> ScaledWeights:
        columns = [torch.linalg.vector_norm(w, dim=-2).amax() for w in given]
        size = nonzero(torch.stack(columns).amax())
        m = aligned(given[0].shape[-1])
        whole = [padded(w / size, m).view(-1, w.shape[-2], m) for w in given]
        return cls(tuple(rounded(w, torch.float16, precision.split) for w in whole), size)

    @property
    def nbytes(self) -> int:
        return sum(w.nbytes for w in self.weights)


def source_sizes(x: Tensor) -> Tensor:
    """The largest norm of each token's vectors x (b, j, h, e), (b·j,)."""
    b, n, h, e = x.shape
    sizes = torch.empty(b * n, dtype=torch.float32, device=x.device)
    launch(
        preparation.measure_sources,
        b * n,
        sizes,
        *strided(x),
        H=h,
        E=e,
        H_BLOCK=power_of_two(h),
        BLOCK=min(64, power_of_two(e)),
    )
    return sizes


class SourceRows:
    """``Q^k_jh = x_jh P^k_h`` for any sources of the batch, over its sizes.

    x is a head's value vector and P its path to the neurons, or x is U_jh and P is W_k itself.
    """

    def __init__(self, x: Tensor, scaled: ScaledWeights, precision: Precision):
        self.split = precision.split
        self._given = x  # (b, j, h, e)
        self.heads, self.weights, self.weight_size = x.shape[2], scaled.weights, scaled.size
        self.source_sizes = source_sizes(x)

    @cached_property
    def x(self) -> Tensor:
        return self._given.contiguous()

    @property
    def neurons(self) -> int:
        return self.weights[0].high.shape[-1]

    @property
    def bytes_per_source(self) -> int:
        """Memory of one source's rows."""
        item = 4 if self.split else 2
        return source_row_bytes(self.heads, self.neurons, len(self.weights), item)

    def take(self, first: int, last: int) -> list[Operand]:
        """Each projection's rows (j, h, m) of the tokens in [first, last)."""
        h, m = self.heads, self.neurons
        x = self.x.flatten(0, 1)[first:last]
        sizes = self.source_sizes[first:last]
        made = []
        for weight in self.weights:
            out = Operand.empty(x, (last - first, h, m), torch.float16, self.split)
            self._project(weight, x, sizes, out, (h * m, m, 1))
            made.append(out)
        return made

    def take_columns(self, sequences: slice, sources: slice) -> list[Tensor]:
        """Each projection's rows as (h, m, b·j), of some sources of some sequences."""
        x = self.x[sequences, sources]
        sizes = self.source_sizes.view(self.x.shape[:2])[sequences, sources]
        x, sizes = x.contiguous().flatten(0, 1), sizes.contiguous()
        h, m, columns = self.heads, self.neurons, len(x)
        assert self.weights[0].high.shape[0] == h, "columns need each head's own path"
        dtype = torch.float32 if self.split else torch.float16
        made = []
        for weight in self.weights:
            out = Operand.empty(x, (h, m, columns), dtype, split=False)
            self._project(weight, x, sizes, out, (1, m * columns, columns))
            made.append(out.high)
        return made

    def _project(
        self,
        weight: Operand,
        x: Tensor,
        sizes: Tensor,
        out: Operand,
        strides: tuple[int, int, int],
    ) -> None:
        """``x P`` with the strides of tokens, heads and neurons in the result."""
        groups, e, m = weight.high.shape
        shared = groups < self.heads  # then every head of a token is a row of its own
        rows = len(x) * (self.heads if shared else 1)
        by_row, by_head, by_neuron = strides
        columns, inner = min(COLUMNS, power_of_two(m)), max(16, min(INNER, power_of_two(e)))
        launch(
            preparation.project_rows,
            -(-m // columns) * groups * -(-rows // ROWS),
            *out.both,
            by_head if shared else by_row,
            by_head,
            by_neuron,
            x,
            sizes,
            *weight.both,
            rows,
            operand=torch.float16,
            GROUPS=groups,
            E=e,
            COLUMNS=m,
            PER_SIZE=self.heads if shared else 1,
            SPLIT=self.split,
            OUT_SPLIT=out.split,
            TURNED=by_row == 1,
            ROWS=ROWS,
            BLOCK=columns,
            INNER=inner,
            CHUNK=LONGEST_ROW_SUM,
            num_warps=8,
        )
