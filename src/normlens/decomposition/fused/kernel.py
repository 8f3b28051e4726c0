"""The feed-forward stage as one Triton kernel: for one source, a block of targets and dimensions.

The kernel mixes the source's H rows, scales them by the targets' slopes, multiplies by W_down and
adds the bypassed part; only sums over the block's dimensions leave it, from which the norms follow:

    v = Σ_k ((Â_ij Q^k_j) ⊙ r^k_i) W_down        u = v + bypass        Σ v², Σ u², Σ γ²u², …

Â_ij is the pair's row of H weights divided by its largest one, so that every sum is relative to
that weight: a pair with tiny weights keeps all of its digits, in any operand type.

In `SPLIT` mode an operand x is the sum of two float16 numbers, and a product is three of them:
``x y ≈ x_hi y_hi + x_hi y_lo + x_lo y_hi``, with a relative error near 2⁻²².
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

#: Whether Triton's interpreter runs the kernel, on a CPU.
INTERPRETED = bool(triton.knobs.runtime.interpret)

#: A weight below this counts as none; its inverse would overflow.
FAINTEST = tl.constexpr(1e-36)


@triton.jit
def _split(x, operand: tl.constexpr):
    """`x` (float32) as the sum of two numbers of a shorter type."""
    high = x.to(operand)
    return high, (x - high.to(tl.float32)).to(operand)


@triton.jit
def _dot(x, y, total, PLAIN: tl.constexpr):
    """``total + x y``; `PLAIN` is for the interpreter, which cannot multiply bfloat16."""
    if PLAIN:
        return total + tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="ieee")
    return tl.dot(x, y, total)


@triton.jit
def _mix(a_high, a_low, rows_high, rows_low, local, k, SPLIT: tl.constexpr, PLAIN: tl.constexpr):
    """``Σ_h Â_ijh Q_jh`` for a block of neurons, (i, m)."""
    H_BLOCK: tl.constexpr = rows_high.block_shape[1]
    NEURONS: tl.constexpr = rows_high.block_shape[2]
    q = rows_high.load([local, 0, k]).reshape(H_BLOCK, NEURONS)
    mixed = tl.zeros((a_high.shape[0], NEURONS), tl.float32)
    if SPLIT:
        q_low = rows_low.load([local, 0, k]).reshape(H_BLOCK, NEURONS)
        mixed = _dot(a_low, q, mixed, PLAIN)
        mixed = _dot(a_high, q_low, mixed, PLAIN)
    return _dot(a_high, q, mixed, PLAIN)


@triton.jit
def _hidden(
    a_high,
    a_low,
    rows_high,
    rows_low,
    gated_high,
    gated_low,
    slopes,
    gated_slopes,
    local,
    row,
    k,
    GATED: tl.constexpr,
    SPLIT: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """``Σ_k (Â_ij Q^k_j) ⊙ r^k_i`` for a block of neurons, (i, m)."""
    hidden = _mix(a_high, a_low, rows_high, rows_low, local, k, SPLIT, PLAIN)
    hidden *= slopes.load([row, k]).to(tl.float32)
    if GATED:
        more = _mix(a_high, a_low, gated_high, gated_low, local, k, SPLIT, PLAIN)
        hidden += more * gated_slopes.load([row, k]).to(tl.float32)
    return hidden


@triton.jit
def _weights(weights, token, i, n, length, H: tl.constexpr, H_BLOCK: tl.constexpr):
    """Â_ij for a block of targets (i, h), and the largest weight of each (i,)."""
    h = tl.arange(0, H_BLOCK)
    a = tl.load(
        weights + (token * n + i)[:, None] * H + h[None, :],
        mask=(i < length)[:, None] & (h < H)[None, :],
        other=0.0,
    )
    largest = tl.max(tl.abs(a), 1)
    inverse = tl.where(largest > FAINTEST, 1 / tl.maximum(largest, FAINTEST), 0.0)
    return a * inverse[:, None], largest


@triton.jit
def _is_void(j, start, length, back, ahead, TARGETS: tl.constexpr):
    """Whether source j reaches none of the targets from `start` on."""
    last = tl.minimum(start + TARGETS, length) - 1
    seen = (j <= last + ahead) & (j >= start - back)
    return (j >= length) | (start >= length) | (seen == 0)


@triton.jit
def _multiply(
    total,
    left,
    right,
    local,
    start,
    d_start,
    chunk,
    CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """``total + hidden W_down`` over a chunk of the neurons."""
    TARGETS: tl.constexpr = left.block_shape[1]
    NEURONS: tl.constexpr = left.block_shape[2]
    for k in tl.range(chunk, chunk + CHUNK, NEURONS, num_stages=STAGES):
        x = left.load([local, start, k]).reshape(TARGETS, NEURONS)
        total = _dot(x, right.load([k, d_start]), total, PLAIN)
    return total


@triton.jit
def _keep(sums, slot, stride, place, values, real, inside):
    """One sum over the block's dimensions for each target; 0 for padding."""
    tl.store(sums + slot * stride + place, tl.where(real, tl.sum(values, 1), 0.0), mask=inside)


@triton.jit
def feed_forward_sums(
    sums,  # (d blocks, slots, b, j, i) float32; 0: the pair's largest weight, 1: Σ v², 2: Σ v
    weights,  # A (b, j, i, h) float32
    rows_high,  # Q (j, h, m) of the first projection; source `first` is at its place `offset`
    rows_low,
    gated_high,  # the same of the second projection
    gated_low,
    slopes,  # r (b·i, m)
    gated_slopes,
    hidden_high,  # (j, i, m) what `store_hidden` made of all these, if `STORED`
    hidden_low,
    down_high,  # W_down (m, d)
    down_low,
    target_units,  # (b, i) and (b, j): what the operands were divided by
    source_units,
    bypass_high,  # U of the bypassed parts, placed like Q (j, h, d), as two bfloat16 numbers
    bypass_low,
    bypass_scale,  # s (b, i) of the bypassed parts
    inverse_deviation,  # (b, i) of a norm that stands before the bypass is added
    gamma,  # (d,)
    ordinary,  # (d,) 1 where a dimension is ordinary, else 0
    lengths,  # (b,) int32
    first,
    offset,
    batch,
    n,
    back,
    ahead,
    M: tl.constexpr,
    D: tl.constexpr,
    H: tl.constexpr,
    H_BLOCK: tl.constexpr,
    GATED: tl.constexpr,
    SPLIT: tl.constexpr,
    STORED: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
    BYPASS: tl.constexpr,
    NORM_FIRST: tl.constexpr,
    SLOTS: tl.constexpr,
    ORDINARY: tl.constexpr,  # slots of the sums; −1: not wanted
    NORMED: tl.constexpr,
    NORMED_MEAN: tl.constexpr,
    NORMED_CROSS: tl.constexpr,
    ADDED: tl.constexpr,
    ADDED_CROSS: tl.constexpr,
    TARGETS: tl.constexpr,
    NEURONS: tl.constexpr,
    CHUNK: tl.constexpr,
    DIMS: tl.constexpr,
    STAGES: tl.constexpr,
):
    program = tl.program_id(0)
    d_blocks = tl.cdiv(D, DIMS)
    i_blocks = tl.cdiv(n, TARGETS)
    d_start = program % d_blocks * DIMS
    start = (program // d_blocks % i_blocks) * TARGETS
    local = program // d_blocks // i_blocks  # the source's place in this launch
    source = offset + local  # among the rows
    token = (first + local).to(tl.int64)  # in the batch
    j = (token % n).to(tl.int32)
    b = (token // n).to(tl.int32)
    length = tl.load(lengths + b)

    i = start + tl.arange(0, TARGETS)
    slot_stride = tl.cast(batch, tl.int64) * n * n
    place = (program % d_blocks).to(tl.int64) * SLOTS * slot_stride + token * n + i
    inside = i < n

    if _is_void(j, start, length, back, ahead, TARGETS):
        for slot in tl.static_range(SLOTS):
            nothing = tl.zeros((TARGETS,), tl.float32)
            tl.store(sums + slot * slot_stride + place, nothing, mask=inside)
        return

    real = i < length
    a, largest = _weights(weights, token, i, n, length, H, H_BLOCK)
    a_high, a_low = _split(a, tl.float16)
    row = b * n + start
    v = tl.zeros((TARGETS, DIMS), tl.float32)
    for chunk in tl.range(0, M, CHUNK, num_stages=1):
        total = tl.zeros((TARGETS, DIMS), tl.float32)
        if STORED:
            # The small products first: a running sum that is still small rounds less.
            if SPLIT:
                total = _multiply(
                    total, hidden_low, down_high, local, start, d_start, chunk, CHUNK, STAGES, PLAIN
                )
                total = _multiply(
                    total, hidden_high, down_low, local, start, d_start, chunk, CHUNK, STAGES, PLAIN
                )
            total = _multiply(
                total, hidden_high, down_high, local, start, d_start, chunk, CHUNK, STAGES, PLAIN
            )
        else:
            for k in tl.range(chunk, chunk + CHUNK, NEURONS, num_stages=STAGES):
                hidden = _hidden(
                    a_high,
                    a_low,
                    rows_high,
                    rows_low,
                    gated_high,
                    gated_low,
                    slopes,
                    gated_slopes,
                    source,
                    row,
                    k,
                    GATED,
                    SPLIT,
                    PLAIN,
                )
                x_high, x_low = _split(hidden, OPERAND)
                w = down_high.load([k, d_start])
                if SPLIT:
                    total = _dot(x_low, w, total, PLAIN)
                    total = _dot(x_high, down_low.load([k, d_start]), total, PLAIN)
                total = _dot(x_high, w, total, PLAIN)
        # The matrix units round their running sum towards zero; short sums keep that small.
        v = total if CHUNK >= M else v + total

    # From here on v is the part divided by the pair's largest weight.
    dims = d_start + tl.arange(0, DIMS)
    target = b.to(tl.int64) * n + tl.minimum(i, n - 1)
    unit = tl.load(target_units + target) * tl.load(source_units + token)
    v *= unit[:, None]
    tl.store(sums + place, tl.where(real, largest, 0.0), mask=inside)
    _keep(sums, 1, slot_stride, place, v * v, real, inside)
    _keep(sums, 2, slot_stride, place, v, real, inside)
    if ORDINARY >= 0:
        kept = tl.load(ordinary + dims, mask=dims < D, other=0.0)[None, :]
        _keep(sums, ORDINARY, slot_stride, place, v * v * kept, real, inside)
    if NORM_FIRST:
        g = tl.load(gamma + dims, mask=dims < D, other=0.0)[None, :]
        if NORMED_MEAN >= 0:
            _keep(sums, NORMED_MEAN, slot_stride, place, v, real, inside)
            _keep(sums, NORMED_CROSS, slot_stride, place, v * (g * g), real, inside)
        v *= g
        _keep(sums, NORMED, slot_stride, place, v * v, real, inside)
        v *= tl.load(inverse_deviation + target)[:, None]
    if BYPASS:
        h = tl.arange(0, H_BLOCK)
        scaled = a * tl.load(bypass_scale + target)[:, None]
        b_high, b_low = _split(scaled, tl.bfloat16)
        u_place = (source.to(tl.int64) * H + h)[:, None] * D + dims[None, :]
        u_mask = (h < H)[:, None] & (dims < D)[None, :]
        u = tl.load(bypass_high + u_place, mask=u_mask, other=0.0)
        v = _dot(b_low, u, v, PLAIN)
        v = _dot(b_high, tl.load(bypass_low + u_place, mask=u_mask, other=0.0), v, PLAIN)
        v = _dot(b_high, u, v, PLAIN)
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


@triton.jit
def store_hidden(
    hidden_high,  # (j, i, m) from source `first` on
    hidden_low,
    weights,
    rows_high,
    rows_low,
    gated_high,
    gated_low,
    slopes,
    gated_slopes,
    lengths,
    first,
    offset,
    n,
    back,
    ahead,
    M: tl.constexpr,
    H: tl.constexpr,
    H_BLOCK: tl.constexpr,
    GATED: tl.constexpr,
    SPLIT: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
    TARGETS: tl.constexpr,
    NEURONS: tl.constexpr,
    RUN: tl.constexpr,  # neurons of one program
    STAGES: tl.constexpr,
):
    """The hidden rows of one source and a block of targets, for `feed_forward_sums` to multiply.

    With many dimensions every row would be mixed anew for each block of them; storing it costs
    less from some size on, and both kernels run at the same time.
    """
    program = tl.program_id(0)
    runs = tl.cdiv(M, RUN)
    i_blocks = tl.cdiv(n, TARGETS)
    start = (program // runs % i_blocks) * TARGETS
    local = program // runs // i_blocks
    token = (first + local).to(tl.int64)
    b = (token // n).to(tl.int32)
    length = tl.load(lengths + b)
    if _is_void((token % n).to(tl.int32), start, length, back, ahead, TARGETS):
        return
    i = start + tl.arange(0, TARGETS)
    a, _ = _weights(weights, token, i, n, length, H, H_BLOCK)
    a_high, a_low = _split(a, tl.float16)
    begin = program % runs * RUN
    for step in tl.range(0, RUN, NEURONS, num_stages=STAGES):
        k = begin + step
        hidden = _hidden(
            a_high,
            a_low,
            rows_high,
            rows_low,
            gated_high,
            gated_low,
            slopes,
            gated_slopes,
            offset + local,
            b * n + start,
            k,
            GATED,
            SPLIT,
            PLAIN,
        )
        high, low = _split(hidden, OPERAND)
        hidden_high.store([local, start, k], high.reshape(1, TARGETS, NEURONS))
        if SPLIT:
            hidden_low.store([local, start, k], low.reshape(1, TARGETS, NEURONS))


def described(tensor: Tensor, block: list[int]) -> TensorDescriptor:
    """A tensor whose blocks the copy engine brings in; beyond its edges they are zero."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)


def launch(
    kernel: Any, programs: int, *arguments: Any, operand: torch.dtype, **options: Any
) -> None:
    """Run a kernel of this module in so many programs."""
    kernel[(programs,)](
        *arguments,
        OPERAND=tl.bfloat16 if operand == torch.bfloat16 else tl.float16,
        PLAIN=INTERPRETED,
        **options,
    )
