"""Steps of the algebra that take one pass over rows of vectors, where PyTorch takes several."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from normlens.frozen.activations import CELLS, Activation, mean_slope_table
from normlens.frozen.parts import Factors, Parts
from normlens.gpu.pieces import is_void, launch, pair_weights, split, split_dot, strided
from normlens.gpu.sizes import block_of_heads, power_of_two
from normlens.gpu.transfer import on_device
from normlens.layers import Norm
from normlens.plan.kernels import CHUNK_BYTES, at_once

# Norms of a layer's vectors, and what is measured at a scope.


#: The smallest size that an error is divided by: the least normal number of float32.
TINY = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def normalise_rows(
    out,  # (rows, D)
    v,  # (rows, D)
    inverse_deviation,  # (targets,); row r belongs to target r % targets
    gamma,  # (D,), or anything if not STRETCHED
    beta,  # (D,), or anything if not SHIFTED
    targets,
    D: tl.constexpr,
    CENTRED: tl.constexpr,
    STRETCHED: tl.constexpr,
    SHIFTED: tl.constexpr,
    ADJOINT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``(v − mean v)/σ ⊙ γ + β`` of one row, or the adjoint ``(γ ⊙ v − mean(γ ⊙ v))/σ``."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < D
    x = tl.load(v + row * D + k, mask=inside, other=0.0)
    if STRETCHED and ADJOINT:
        x *= tl.load(gamma + k, mask=inside, other=0.0).to(tl.float32)
    if CENTRED:
        x -= tl.sum(x, 0) / D
    if STRETCHED and not ADJOINT:
        x *= tl.load(gamma + k, mask=inside, other=0.0).to(tl.float32)
    x *= tl.load(inverse_deviation + row % targets)
    if SHIFTED:
        x += tl.load(beta + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * D + k, x, mask=inside)


@triton.jit
def measure_rows(
    own_norms,  # (b·i,) each
    mixed_norms,
    errors,
    own,  # (b·i, D), and mixed, bias and real alike
    mixed,
    bias,  # anything if not BIASED
    real,  # anything if not COMPARED
    lengths,  # (b,) int32
    n,
    D: tl.constexpr,
    BIASED: tl.constexpr,
    COMPARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The norms of a target's own part and of the others' sum, and the error of completeness."""
    row = tl.program_id(0).to(tl.int64)
    own_square = tl.zeros((BLOCK,), tl.float32)
    mixed_square = tl.zeros((BLOCK,), tl.float32)
    real_square = tl.zeros((BLOCK,), tl.float32)
    missed_square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, D, BLOCK):
        k = start + tl.arange(0, BLOCK)
        inside = k < D
        x = tl.load(own + row * D + k, mask=inside, other=0.0)
        m = tl.load(mixed + row * D + k, mask=inside, other=0.0)
        own_square += x * x
        mixed_square += m * m
        if COMPARED:
            y = tl.load(real + row * D + k, mask=inside, other=0.0).to(tl.float32)
            missed = x + m - y
            if BIASED:
                missed += tl.load(bias + row * D + k, mask=inside, other=0.0)
            real_square += y * y
            missed_square += missed * missed
    tl.store(own_norms + row, tl.sqrt(tl.sum(own_square, 0)))
    tl.store(mixed_norms + row, tl.sqrt(tl.sum(mixed_square, 0)))
    if COMPARED:
        is_token = row % n < tl.load(lengths + row // n)
        size = tl.maximum(tl.sqrt(tl.sum(real_square, 0)), TINY)
        error = tl.sqrt(tl.sum(missed_square, 0)) / size
        tl.store(errors + row, tl.where(is_token, error, 0.0))


ROW_BLOCK = 1024  # dimensions that are measured at a time


def normalised(
    v: Tensor,
    norm: Norm,
    inverse_deviation: Tensor,
    beta: Tensor | None = None,
    adjoint: bool = False,
) -> Tensor:
    """``(v − mean v)/σ_i ⊙ γ + β`` of vectors (…, b, i, d), or the adjoint of a gradient."""
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
        ADJOINT=adjoint,
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
        own if bias is None else bias.expand_as(own).contiguous(),
        own if real is None else real.contiguous(),
        on_device(tuple(lengths), own.device, torch.int32),
        n,
        D=d,
        BIASED=bias is not None,
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
    step = at_once(CHUNK_BYTES, 4 * heads * factors.basis.shape[-1])
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
            *factors.reach.integers,
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


@triton.jit(do_not_specialize=["first"])
def norms_of_factors(
    out,  # (b, i, j)
    weights,  # A (b, j, i, h)
    scale,  # s (b, i)
    values,  # U (j, h, D) of the sources from `first` on, with the strides of tokens and heads
    token_stride,
    head_stride,
    lengths,
    first,
    n,
    back,
    ahead,
    D: tl.constexpr,
    H: tl.constexpr,
    H_BLOCK: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
    TARGETS: tl.constexpr,
    DIMS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``‖s_i Σ_h A_ijh U_jh‖`` of one source and a block of targets, 0 where the mask forbids it.

    The parts themselves are formed, block by block of dimensions, with split products: their norm
    cancels nothing, as the quadratic form of a Gram matrix would.
    """
    program = tl.program_id(0)
    blocks = tl.cdiv(n, TARGETS)
    start = program % blocks * TARGETS
    local = (program // blocks).to(tl.int64)
    token = first + local
    j = (token % n).to(tl.int32)
    b = token // n
    length = tl.load(lengths + b)
    i = start + tl.arange(0, TARGETS)
    place = (b * n + i) * n + j
    if is_void(j, start, length, back, ahead, TARGETS):
        tl.store(out + place, tl.zeros((TARGETS,), tl.float32), mask=i < n)
        return
    h = tl.arange(0, H_BLOCK)
    rows = values + local * token_stride + h.to(tl.int64)[:, None] * head_stride
    largest_value = tl.zeros((H_BLOCK, DIMS), tl.float32)
    for step in tl.range(0, D, DIMS, num_stages=STAGES):
        dims = step + tl.arange(0, DIMS)
        u = tl.load(rows + dims[None, :], mask=(h < H)[:, None] & (dims < D)[None, :], other=0.0)
        largest_value = tl.maximum(largest_value, tl.abs(u))
    size = tl.max(tl.max(largest_value, 1), 0)
    over = tl.where(size == 0, 1.0, 1 / size)
    a, largest = pair_weights(weights, token * n + i, i < length, H, H_BLOCK)
    a_high, a_low = split(a, OPERAND)
    squares = tl.zeros((TARGETS, DIMS), tl.float32)
    for step in tl.range(0, D, DIMS, num_stages=STAGES):
        dims = step + tl.arange(0, DIMS)
        u = tl.load(rows + dims[None, :], mask=(h < H)[:, None] & (dims < D)[None, :], other=0.0)
        high, low = split(u * over, OPERAND)
        parts = tl.zeros((TARGETS, DIMS), tl.float32)
        parts = split_dot(a_high, a_low, high, low, parts, True, PLAIN)
        squares += parts * parts
    unit = tl.load(scale + b * n + tl.minimum(i, n - 1)) * size * largest
    norms = tl.sqrt(tl.sum(squares, 1)) * unit
    tl.store(out + place, tl.where(i < length, norms, 0.0), mask=i < n)


# Slopes of a gated block on the path from 0, in one pass over its neurons.


SLOPE_BLOCK = 1024


def gated_slopes(a: Tensor, u: Tensor, g: Activation) -> tuple[Tensor, Tensor, Tensor]:
    """r^a, r^u and h of a gated block at its arguments a and u, on the path from 0."""
    a, u = a.contiguous(), u.contiguous()
    made = torch.empty_like(a), torch.empty_like(a), torch.empty_like(a)
    launch(
        slopes_from_zero,
        -(-a.numel() // SLOPE_BLOCK),
        *made,
        a,
        u,
        mean_slope_table(g, a.device),
        a.numel(),
        CELLS=CELLS,
        BOUND=int(g.bound),
        TANH=g.logistic == "tanh",
        BLOCK=SLOPE_BLOCK,
    )
    return made


def gated_scores(
    a: Tensor, u: Tensor, arriving: Tensor, g: Activation
) -> tuple[list[Tensor], Tensor]:
    """``∂s/∂h ⊙ r^a``, ``∂s/∂h ⊙ r^u`` in bfloat16, and ``∂s/∂h · h``, of ∂s/∂h (…, b, i, m)."""
    a, u, arriving = a.contiguous(), u.contiguous(), arriving.contiguous()
    weighted = [torch.empty_like(arriving, dtype=torch.bfloat16) for _ in "au"]
    passed = arriving.new_empty(arriving.shape[:-1])
    launch(
        scores_from_zero,
        passed.numel(),
        *weighted,
        passed,
        a,
        u,
        arriving,
        mean_slope_table(g, a.device),
        a[..., 0].numel(),
        M=a.shape[-1],
        CELLS=CELLS,
        BOUND=int(g.bound),
        TANH=g.logistic == "tanh",
        BLOCK=SLOPE_BLOCK,
    )
    return weighted, passed


@triton.jit
def scores_from_zero(
    at_gate,  # (rows, M), and at_up alike
    at_up,
    passed,  # (rows,)
    gate,  # (targets, M), and up alike; row r belongs to target r % targets
    up,
    at_hidden,  # (rows, M), ∂s/∂h
    table,
    targets,
    M: tl.constexpr,
    CELLS: tl.constexpr,
    BOUND: tl.constexpr,
    TANH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A gradient at one target's neurons times their slopes, and its product with h."""
    row = tl.program_id(0).to(tl.int64)
    target = row % targets
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, M, BLOCK):
        k = start + tl.arange(0, BLOCK)
        inside = k < M
        a = tl.load(gate + target * M + k, mask=inside, other=0.0)
        u = tl.load(up + target * M + k, mask=inside, other=0.0)
        arriving = tl.load(at_hidden + row * M + k, mask=inside, other=0.0)
        of_gate, of_up, hidden = gate_from_zero(a, u, table, CELLS, BOUND, TANH)
        tl.store(at_gate + row * M + k, (arriving * of_gate).to(tl.bfloat16), mask=inside)
        tl.store(at_up + row * M + k, (arriving * of_up).to(tl.bfloat16), mask=inside)
        total += arriving * hidden
    tl.store(passed + row, tl.sum(total, 0))


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
    """The slopes and h of some neurons."""
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = k < count
    a = tl.load(gate + k, mask=inside, other=0.0)
    u = tl.load(up + k, mask=inside, other=0.0)
    of_gate, of_up, h = gate_from_zero(a, u, table, CELLS, BOUND, TANH)
    tl.store(gate_slopes + k, of_gate, mask=inside)
    tl.store(up_slopes + k, of_up, mask=inside)
    tl.store(hidden + k, h, mask=inside)


@triton.jit
def gate_from_zero(a, u, table, CELLS: tl.constexpr, BOUND: tl.constexpr, TANH: tl.constexpr):
    """``r^a = u (r(a) − J)``, ``r^u = a J`` and ``h = a r(a) u`` (`normlens…rules`)."""
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
    return u * (slope - mean), a * mean, a * slope * u
