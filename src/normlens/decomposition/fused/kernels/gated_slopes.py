"""Slopes of a gated block on the path from 0, in one pass over its neurons."""

from __future__ import annotations

import triton
import triton.language as tl


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
