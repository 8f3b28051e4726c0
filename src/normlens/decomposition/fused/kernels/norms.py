"""Norms from the sums that the kernels leave, and the error of the parts behind them."""

from __future__ import annotations

import triton
import triton.language as tl


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
