"""Functions that the kernels share: products, weights of pairs, and the sums that they keep.

A kernel has, for a block of targets (rows) and dimensions (columns), the parts v of one source just
behind the block. The rest of the layer is walked in registers, and only sums over the dimensions
leave the kernel. The norms follow from them:

    u = v + bypass        Σ v², Σ v, Σ u², Σ γ²u², …

Â_ij is the pair's row of H weights divided by its largest one, so that every sum is relative to
that weight: a pair with tiny weights keeps all of its digits, in any operand type.

In `SPLIT` mode an operand x is the sum of two float16 numbers, and a product is three of them:
``x y ≈ x_hi y_hi + x_hi y_lo + x_lo y_hi``, with a relative error near 2⁻²².
"""

from __future__ import annotations

import triton
import triton.language as tl

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
