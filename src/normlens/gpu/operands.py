"""Operands of the kernels, and launches of the kernels that form them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from normlens.frozen.parts import Factors, Parts
from normlens.gpu.kernels import operands
from normlens.gpu.kernels.operands import measure_rows, normalise_rows, slopes_from_zero
from normlens.gpu.kernels.pieces import norms_of_factors
from normlens.gpu.matmul import on_device
from normlens.gpu.sizes import SOURCE_BLOCK, Precision, aligned, block_of_heads, power_of_two
from normlens.layers import Norm, Reach
from normlens.plan.costs import CHUNK_BYTES, at_once, source_row_bytes, value_bytes

# Calls of the kernels: arguments in the form that Triton takes.


EVERYWHERE = 1 << 29  # a reach without limit, in tokens
#: Whether Triton's interpreter runs the kernels, on a CPU.
INTERPRETED = bool(triton.knobs.runtime.interpret)


def described(tensor: Tensor, block: list[int]) -> TensorDescriptor:
    """Describe a tensor for the GPU's copy engine, which reads zeros beyond its edges."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)


def launch(
    kernel: Any, programs: int, *arguments: Any, operand: torch.dtype | None = None, **options: Any
) -> None:
    """Run a kernel as so many programs.

    A kernel with an `operand` type is also told whether Triton's interpreter runs it.
    """
    if operand is not None:
        options["OPERAND"] = tl.bfloat16 if operand == torch.bfloat16 else tl.float16
        options["PLAIN"] = INTERPRETED
    kernel[(programs,)](*arguments, **options)


def strided(values: Tensor) -> tuple[Tensor, int, int]:
    """U (j, h, d) or (b, j, h, d), whatever its memory layout, and its token and head strides."""
    if values.stride(-1) != 1:
        values = values.contiguous()
    # a copy where sequences are not adjacent in memory
    flat = values.flatten(0, 1) if values.dim() == 4 else values
    return flat, flat.stride(0), flat.stride(1)


def reaches(reach: Reach) -> tuple[int, int]:
    """How many tokens back and ahead a target sees, as integers."""
    back, ahead = (EVERYWHERE if far is None else far for far in (reach.back, reach.ahead))
    return back, ahead


# The kernels' operands: scaled to order 1, in the type that a precision asks for.
#
# A part is a product of five factors, and each is divided by a size before it is rounded:
#
#     A_ij by its largest weight (in the kernel) · Q_j by the source's size · r_i by its largest
#     slope · the input projections and W_down by one number each
#
# so that no factor leaves the range of float16, and a source, target or pair with small numbers
# keeps as many digits as any other. The sizes are multiplied back in float32.


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
        operands.scale_matrix,
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
        operands.scale_slopes,
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


# The rows that are mixed into hidden rows, ``Q^k_jh``, formed for some sources at a time.


COLUMNS, INNER = 128, 64  # of a block of projected rows
LONGEST_ROW_SUM = 1024


def source_sizes(x: Tensor) -> Tensor:
    """The size of each source: the largest norm of its vectors x (b, j, h, e), as (b·j,)."""
    b, n, h, e = x.shape
    sizes = torch.empty(b * n, dtype=torch.float32, device=x.device)
    launch(
        operands.measure_sources,
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
    """Rows ``Q^k_jh = x_jh P^k_h`` of any sources of the batch, divided by their sizes.

    x is a head's value vector v_jh and P its head product B_h W_k, or x is U_jh and P is W_k.
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
            self._project(weight, x, sizes, out)
            made.append(out)
        return made

    def _project(self, weight: Operand, x: Tensor, sizes: Tensor, out: Operand) -> None:
        """Write ``x P`` into `out`."""
        groups, e, m = weight.high.shape
        shared = groups < self.heads  # then every head of a token is a separate row
        rows = len(x) * (self.heads if shared else 1)
        columns, inner = min(COLUMNS, power_of_two(m)), max(16, min(INNER, power_of_two(e)))
        launch(
            operands.project_rows,
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
            PER_SIZE=self.heads if shared else 1,
            SPLIT=self.split,
            ROWS=SOURCE_BLOCK,
            BLOCK=columns,
            INNER=inner,
            CHUNK=LONGEST_ROW_SUM,
            num_warps=8,
        )


# Launches of the kernels that take one pass over rows of vectors.


ROW_BLOCK = 1024  # dimensions that are measured at a time


def normalised(v: Tensor, norm: Norm, inverse_deviation: Tensor, beta: Tensor | None) -> Tensor:
    """``(v − mean v)/σ_i ⊙ γ + β`` of vectors (…, b, i, d)."""
    v, deviation = v.contiguous(), inverse_deviation.contiguous()
    made, d = torch.empty_like(v), v.shape[-1]
    block = power_of_two(d)
    launch(
        normalise_rows,
        v.numel() // d,
        made,
        v,
        deviation,
        deviation if norm.gamma is None else norm.gamma.contiguous(),
        deviation if beta is None else beta.contiguous(),
        deviation.numel(),
        D=d,
        CENTRED=norm.centred,
        STRETCHED=norm.gamma is not None,
        SHIFTED=beta is not None,
        BLOCK=block,
        num_warps=min(16, max(1, block // 256)),
    )
    return made


def measured(
    parts: Parts, real: Tensor | None, lengths: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The norms of own parts and of the others' sums, and the errors against `real`, (b, i)."""
    assert parts.mixed is not None
    own, mixed, bias = parts.own.contiguous(), parts.mixed.contiguous(), parts.bias
    b, n, d = own.shape
    norms = [torch.empty((b, n), dtype=torch.float32, device=own.device) for _ in range(3)]
    launch(
        measure_rows,
        b * n,
        *norms,
        own,
        mixed,
        bias.coefficients.contiguous(),
        bias.rows.contiguous(),
        own if bias.rest is None else bias.rest.contiguous(),
        own if real is None else real.contiguous(),
        on_device(tuple(lengths), own.device, torch.int32),
        n,
        D=d,
        K=bias.coefficients.shape[-1],
        RESTED=bias.rest is not None,
        COMPARED=real is not None,
        BLOCK=min(ROW_BLOCK, power_of_two(d)),
    )
    of_own, of_mixed, errors = norms
    return of_own, of_mixed, None if real is None else errors


# Norms of factored parts, before the feed-forward block, by one kernel.


TARGETS, DIMS, STAGES = 128, 64, 2


def fused_factored_norms(factors: Factors, lengths: Sequence[int]) -> Tensor:
    """``‖F_i(x_j)‖`` (b, i, j), 0 where i = j or the mask forbids it."""
    b, n = factors.scale.shape
    heads = factors.weights.shape[-1]
    targets = min(TARGETS, max(16, power_of_two(n)))
    out = torch.empty((b, n, n), dtype=torch.float32, device=factors.scale.device)
    weights, scale = factors.weights.contiguous(), factors.scale.contiguous()
    step = at_once(CHUNK_BYTES, value_bytes(heads, factors.basis.shape[-1]))
    for first in range(0, b * n, step):
        count = min(step, b * n - first)
        launch(
            norms_of_factors,
            count * -(-n // targets),
            out,
            weights,
            scale,
            *strided(factors.values_of(first, first + count)),
            on_device(tuple(lengths), out.device, torch.int32),
            first,
            n,
            *reaches(factors.reach),
            operand=torch.float16,
            D=factors.basis.shape[-1],
            H=heads,
            H_BLOCK=block_of_heads(heads),
            TARGETS=targets,
            DIMS=DIMS,
            STAGES=STAGES,
            num_warps=4,
        )
    return out


# Slopes of gated blocks in one pass, where PyTorch would take many.


SLOPE_BLOCK = 1024


def gated_slopes(
    a: Tensor, u: Tensor, table: Tensor, cells: int, bound: float, *, tanh: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """r^a, r^u and h of a gated block at its arguments a and u, on the path from 0."""
    a, u = a.contiguous(), u.contiguous()
    made = torch.empty_like(a), torch.empty_like(a), torch.empty_like(a)
    launch(
        slopes_from_zero,
        triton.cdiv(a.numel(), SLOPE_BLOCK),
        *made,
        a,
        u,
        table,
        a.numel(),
        CELLS=cells,
        BOUND=int(bound),
        TANH=tanh,
        BLOCK=SLOPE_BLOCK,
    )
    return made
