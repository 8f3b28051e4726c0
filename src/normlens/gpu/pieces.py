"""The launcher of kernels, functions that kernels share, and norms from the sums they leave."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

# Calls of the kernels: arguments in the form that Triton takes.


#: Whether Triton's interpreter runs the kernels, on a CPU.
INTERPRETED = bool(triton.knobs.runtime.interpret)


def launch(
    kernel: Any,
    programs: int | tuple[int, int],
    *arguments: Any,
    operand: torch.dtype | None = None,
    **options: Any,
) -> None:
    """Run a kernel as so many programs.

    A kernel with an `operand` type is also told whether Triton's interpreter runs it.
    """
    if operand is not None:
        options["OPERAND"] = tl.bfloat16 if operand == torch.bfloat16 else tl.float16
        options["PLAIN"] = INTERPRETED
    grid = (programs,) if isinstance(programs, int) else programs
    kernel[grid](*arguments, **options)


def described(tensor: Tensor, block: list[int]) -> TensorDescriptor:
    """Describe a tensor for the GPU's copy engine, which reads zeros beyond its edges."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)


def strided(values: Tensor) -> tuple[Tensor, int, int]:
    """U (j, h, d) or (b, j, h, d), whatever its memory layout, and its token and head strides."""
    if values.stride(-1) != 1:
        values = values.contiguous()
    # a copy where sequences are not adjacent in memory
    flat = values.flatten(0, 1) if values.dim() == 4 else values
    return flat, flat.stride(0), flat.stride(1)


# Functions that the kernels share: products, weights of pairs, and the sums that they keep.
#
# A kernel has, for a block of targets (rows) and dimensions (columns), the parts v of one source
# just behind the block. The rest of the layer is walked in registers, and only sums over the
# dimensions leave the kernel. The norms follow from them:
#
#     u = v + bypass        Σ v², Σ v, Σ u², Σ γ²u², …
#
# Â_ij is the pair's row of H weights divided by its largest one, so that every sum is relative to
# that weight: a pair with tiny weights keeps all of its digits, in any operand type.
#
# In `SPLIT` mode an operand x is the sum of two float16 numbers, and a product is three of them:
# ``x y ≈ x_hi y_hi + x_hi y_lo + x_lo y_hi``, with a relative error near 2⁻²².


#: A smaller weight counts as 0: its inverse would overflow.
FAINTEST = tl.constexpr(1e-36)


@triton.jit
def split(x, operand: tl.constexpr):
    """`x` (float32) as the sum of two numbers of a shorter type."""
    high = x.to(operand)
    return high, (x - high.to(tl.float32)).to(operand)


@triton.jit
def dot(x, y, total, PLAIN: tl.constexpr):
    """``total + x y``; `PLAIN` is for the interpreter, which cannot multiply bfloat16."""
    if PLAIN:
        return total + tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="ieee")
    return tl.dot(x, y, total)


@triton.jit
def split_dot(x_high, x_low, y_high, y_low, total, SPLIT: tl.constexpr, PLAIN: tl.constexpr):
    """``total + x y`` of two operands, the small products first."""
    if SPLIT:
        total = dot(x_low, y_high, total, PLAIN)
        total = dot(x_high, y_low, total, PLAIN)
    return dot(x_high, y_high, total, PLAIN)


@triton.jit
def pair_weights(weights, pair, real, H: tl.constexpr, H_BLOCK: tl.constexpr):
    """Â (pair, h) of some pairs, and the largest weight of each; `pair` is its place in A."""
    h = tl.arange(0, H_BLOCK)
    a = tl.load(
        weights + pair[:, None] * H + h[None, :], mask=real[:, None] & (h < H)[None, :], other=0.0
    )
    largest = tl.max(tl.abs(a), 1)
    return a * inverse(largest)[:, None], largest


@triton.jit
def inverse(largest):
    """The inverse of a pair's largest weight; 0 where all its weights are 0."""
    return tl.where(largest > FAINTEST, 1 / tl.maximum(largest, FAINTEST), 0.0)


@triton.jit
def is_void(j, start, length, back, ahead, TARGETS: tl.constexpr):
    """Whether source j reaches none of the targets from `start` on."""
    last = tl.minimum(start + TARGETS, length) - 1
    seen = (j <= last + ahead) & (j >= start - back)
    return (j >= length) | (start >= length) | (seen == 0)


@triton.jit
def target_of(c, first_tile, tiles, TILE: tl.constexpr):
    """Sequence and position of a launch's target."""
    tile = first_tile + c // TILE
    return tile // tiles, tile % tiles * TILE + c % TILE


@triton.jit
def sees_none(i, start, stop, length, back, ahead):
    """Whether target i sees no source in [start, stop)."""
    stop = tl.minimum(stop, length)
    return (i >= length) | (start >= stop) | (start > i + ahead) | (stop - 1 < i - back)


@triton.jit
def keep_nothing(sums, place, slot_stride, inside, SLOTS: tl.constexpr):
    """Store zeros for pairs that the mask forbids."""
    for slot in tl.static_range(SLOTS):
        nothing = tl.zeros_like(place).to(tl.float32)
        tl.store(sums + slot * slot_stride + place, nothing, mask=inside)


@triton.jit
def _keep(sums, slot, stride, place, values, real, inside):
    """Store one sum over the block's dimensions for each pair; 0 for padding."""
    tl.store(sums + slot * stride + place, tl.where(real, tl.sum(values, 1), 0.0), mask=inside)


@triton.jit
def keep_behind_block(
    v,  # (pair, d) parts just behind the block, over the pair's largest weight and their units
    largest,  # (pair,)
    sums,  # (d blocks, slots, b, j, i) float32; 0: the pair's largest weight, 1: Σ v², 2: Σ v
    place,
    slot_stride,
    inside,
    real,
    target,  # (pair,) the target's token in the batch, and the source's
    source,
    dims,
    units,
    inverse_deviation,
    gamma,
    ordinary,
    D: tl.constexpr,
    NORM_FIRST: tl.constexpr,
    ORDINARY: tl.constexpr,  # slots of the sums; −1: not kept
    NORMED: tl.constexpr,
    NORMED_MEAN: tl.constexpr,
    NORMED_CROSS: tl.constexpr,
):
    """Keep the sums of the parts before the bypassed ones are added, and return the parts."""
    scale, slope_sizes, source_sizes, weight_size, down_size = units
    inside_d = dims < D
    unit = tl.load(scale + target) * tl.load(slope_sizes + target)
    unit *= tl.load(source_sizes + source) * tl.load(weight_size) * tl.load(down_size)
    v *= unit[:, None]
    tl.store(sums + place, tl.where(real, largest, 0.0), mask=inside)
    _keep(sums, 1, slot_stride, place, v * v, real, inside)
    _keep(sums, 2, slot_stride, place, v, real, inside)
    if ORDINARY >= 0:
        kept = tl.load(ordinary + dims, mask=inside_d, other=0.0)[None, :]
        _keep(sums, ORDINARY, slot_stride, place, v * v * kept, real, inside)
    if NORM_FIRST:
        g = tl.load(gamma + dims, mask=inside_d, other=0.0)[None, :]
        if NORMED_MEAN >= 0:
            _keep(sums, NORMED_MEAN, slot_stride, place, v, real, inside)
            _keep(sums, NORMED_CROSS, slot_stride, place, v * (g * g), real, inside)
        v *= g
        _keep(sums, NORMED, slot_stride, place, v * v, real, inside)
        v *= tl.load(inverse_deviation + target)[:, None]
    return v


@triton.jit
def keep_behind_bypass(
    v,
    sums,
    place,
    slot_stride,
    inside,
    real,
    dims,
    gamma,
    D: tl.constexpr,
    NORM_FIRST: tl.constexpr,
    NORMED: tl.constexpr,
    NORMED_MEAN: tl.constexpr,
    NORMED_CROSS: tl.constexpr,
    ADDED: tl.constexpr,
    ADDED_CROSS: tl.constexpr,
):
    """Keep the sums of parts to which the bypassed ones have been added."""
    if ADDED >= 0:
        _keep(sums, ADDED, slot_stride, place, v * v, real, inside)
        if ADDED_CROSS >= 0:
            g = tl.load(gamma + dims, mask=dims < D, other=0.0)[None, :]
            _keep(sums, ADDED_CROSS, slot_stride, place, v * g, real, inside)
    if (NORMED >= 0) & (NORM_FIRST == 0):
        g = tl.load(gamma + dims, mask=dims < D, other=0.0)[None, :]
        if NORMED_MEAN >= 0:
            _keep(sums, NORMED_MEAN, slot_stride, place, v, real, inside)
            _keep(sums, NORMED_CROSS, slot_stride, place, v * (g * g), real, inside)
        _keep(sums, NORMED, slot_stride, place, v * v * (g * g), real, inside)


# Norms from the sums that the kernels leave, and the error of the parts behind them.


@triton.jit
def _sum(sums, slot, stride, block_stride, place, inside, D_BLOCKS: tl.constexpr):
    """The sums of one slot over all blocks of dimensions."""
    total = tl.load(sums + slot * stride + place, mask=inside, other=0.0)
    for block in tl.static_range(1, D_BLOCKS):
        total += tl.load(
            sums + block * block_stride + slot * stride + place, mask=inside, other=0.0
        )
    return total


@triton.jit
def _keep_norm(out, number, squares, largest, place, slot_stride, inside):
    """Store the norms of one scope, computed as (j, i) and written as (i, j)."""
    norms = tl.sqrt(tl.maximum(squares, 0.0)) * largest
    # The maximum above would hide a NaN.
    norms = tl.where(squares != squares, squares, norms)
    tl.store(out + number * slot_stride + place, norms, mask=inside)


@triton.jit(do_not_specialize=["batch"])
def norms_of_sums(
    out,  # (scopes, b, i, j): block, ordinary dimensions, LN, RES, as far as requested
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
    """The norms of a block of pairs, in every scope, from the sums of their parts.

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
    if NORMED >= 0:
        inverse = tl.load(inverse_deviation + b * n + i, mask=i < n, other=0.0)[None, :]
        squares = _sum(sums, NORMED, stride, block_stride, place, inside, D_BLOCKS)
        if NORMED_MEAN >= 0:
            mean = _sum(sums, NORMED_MEAN, stride, block_stride, place, inside, D_BLOCKS) / D
            cross = _sum(sums, NORMED_CROSS, stride, block_stride, place, inside, D_BLOCKS)
            squares += mean * (mean * g - 2 * cross)
        _keep_norm(out, number, squares * inverse * inverse, largest, turned, stride, inside)
        number += 1
        mean *= inverse
    if ADDED >= 0:
        squares = _sum(sums, ADDED, stride, block_stride, place, inside, D_BLOCKS)
        if ADDED_CROSS >= 0:
            cross = _sum(sums, ADDED_CROSS, stride, block_stride, place, inside, D_BLOCKS)
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
