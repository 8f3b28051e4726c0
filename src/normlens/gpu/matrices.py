"""The feed-forward stage target by target, for long inputs: one d × d matrix per target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import triton
import triton.language as tl
from torch import Tensor

from normlens.gpu.matmul import wide_product
from normlens.gpu.operands import Operand, source_sizes
from normlens.gpu.pieces import (
    is_void,
    keep_behind_block,
    keep_behind_bypass,
    keep_nothing,
    launch,
    pair_weights,
    sees_none,
    split,
    split_dot,
    strided,
    target_of,
)
from normlens.gpu.sizes import TargetTiling, power_of_two
from normlens.gpu.stage import Method, Stage
from normlens.plan.kernels import TargetPieces, at_once

MIXED_DIMS = 128  # of a part that a program mixes at a time


@dataclass(frozen=True)
class Launch:
    """The tiles of targets and the sources of one round of launches."""

    first_tile: int
    tiles: int
    source_first: int
    sources: int


class Matrices(Method):
    """Form ``M_i = Σ_k W_k diag(r^k_i) W_down`` once per target, for all of its sources."""

    def __init__(self, stage: Stage):
        super().__init__(stage)
        self.tiling = TargetTiling.choose(stage.d, stage.precision.split)
        self.tiles = -(-stage.n // self.tiling.tile)  # of one sequence
        operands = 1 if stage.tail.factors is None else 2
        size = stage.precision.itemsize * stage.width * operands
        self.pieces = TargetPieces(self.tiling, stage.n, size)

    @property
    def least_bytes(self) -> int:
        return self.pieces.least_bytes

    def fill(self, limit: int) -> None:
        stage = self.stage
        self.sums = stage.prepare_sums(self.tiling.dims, targets_first=True)
        sources = self.pieces.sources(limit)
        matrix = self.tiling.tile * stage.precision.itemsize * stage.d * stage.width
        step = min(self.pieces.tiles(limit, sources), at_once(limit, matrix))
        for tile in range(0, stage.b * self.tiles, step):
            tiles = min(step, stage.b * self.tiles - tile)
            matrices = self._matrices(tile, tiles, limit)
            for first in range(0, stage.n, sources):
                at = Launch(tile, tiles, first, min(sources, stage.n - first))
                self._keep_sums(at, matrices)

    def _matrices(self, first_tile: int, tiles: int, limit: int) -> Operand:
        """M_i (c, d, d) of the targets in some tiles, formed a few at a time."""
        stage, tile = self.stage, self.tiling.tile
        shape = (tiles * tile, stage.d, stage.width)
        made = Operand.empty(stage.weights, shape, stage.precision)
        step = at_once(limit, 2 * stage.precision.products * stage.d * stage.m)
        for first in range(first_tile * tile, (first_tile + tiles) * tile, step):
            some = slice(first, min(first + step, (first_tile + tiles) * tile))
            product = wide_product(self._scaled_projections(some), self._down)
            whole = product.view(-1, stage.d, stage.width)
            place = slice(first - first_tile * tile, some.stop - first_tile * tile)
            made.high[place] = whole
            if made.split:
                made.low[place] = whole - made.high[place]
        return made

    @cached_property
    def _down(self) -> Tensor:
        """W_down to multiply the scaled projections by (split: high, low and high again)."""
        high, low = self.stage.down.both
        return torch.cat([high, low, high]) if self.stage.precision.split else high

    @cached_property
    def _targets(self) -> Tensor:
        """The token of each target, tile by tile; targets beyond the end repeat the last token."""
        stage = self.stage
        places = torch.arange(self.tiles * self.tiling.tile, device=stage.weights.device)
        first = torch.arange(stage.b, device=stage.weights.device) * stage.n
        return (first[:, None] + places.clamp_max(stage.n - 1)).flatten()

    def _scaled_projections(self, some: slice) -> Tensor:
        """``Σ_k W_k diag(r^k_i)`` of some targets, (c · d, m), with its operands side by side."""
        stage = self.stage
        up, *gate = stage.value_rows.weights
        count, precision = some.stop - some.start, stage.precision
        shape = (count * stage.d, precision.products * stage.m)
        out = torch.empty(shape, dtype=precision.operand, device=stage.weights.device)
        block = min(1024, power_of_two(stage.m))
        launch(
            scale_projections,
            -(-stage.m // block) * stage.d * count,
            out,
            *up.both,
            *(gate[0] if gate else up).both,
            stage.slopes[0],
            stage.slopes[-1],
            self._targets,
            some.start,
            operand=precision.operand,
            D=stage.d,
            M=stage.m,
            GATED=stage.gated,
            SPLIT=precision.split,
            BLOCK=block,
        )
        return out

    def _parts(self, at: Launch) -> Operand:
        """The parts (j, c, d) at the block's input."""
        stage = self.stage
        shape = (at.sources, at.tiles * self.tiling.tile, stage.width)
        made = Operand.empty(stage.weights, shape, stage.precision)
        self._mix(at, stage.job.factors.values, stage.value_rows.source_sizes, made)
        return made

    def _keep_sums(self, at: Launch, matrices: Operand) -> None:
        """Launch the sums of the parts behind the block, for the targets of `at`."""
        stage, tiling = self.stage, self.tiling
        targets = at.tiles * tiling.tile
        block, matrix_block = [tiling.sources, 1, tiling.neurons], [1, tiling.neurons, tiling.dims]
        launch(
            target_sums,
            stage.d_blocks * -(-at.sources // tiling.sources) * targets,
            self.sums,
            stage.weights,
            *self._parts(at).described(block),
            *matrices.described(matrix_block),
            *self._bypassed(at),
            *stage.units(stage.value_rows),
            stage.inverse_deviation,
            stage.gamma,
            stage.ordinary,
            stage.lengths,
            at.first_tile,
            self.tiles,
            targets,
            stage.width,
            at.source_first,
            at.sources,
            stage.width,
            stage.b,
            stage.n,
            *stage.reach,
            operand=stage.precision.operand,
            H=stage.heads,
            H_BLOCK=stage.head_block,
            SPLIT=stage.precision.split,
            TILE=tiling.tile,
            SOURCES=tiling.sources,
            NEURONS=tiling.neurons,
            DIMS=tiling.dims,
            STAGES=tiling.stages,
            num_warps=tiling.warps,
            **stage.tail_constants,
        )

    def _bypassed(self, at: Launch) -> list[Tensor | None]:
        """The bypassed parts (high, low), their sizes and scale; all None without a bypass."""
        stage, factors = self.stage, self.stage.tail.factors
        if factors is None:
            return [None, None, None, None]
        shape = (at.sources, at.tiles * self.tiling.tile, stage.width)
        made = Operand.empty(stage.weights, shape, stage.precision, torch.float16)
        self._mix(at, factors.values, self._bypass_sizes, made)
        return [*made.both, self._bypass_sizes, stage.bypass_scale]

    @cached_property
    def _bypass_sizes(self) -> Tensor:
        factors = self.stage.tail.factors
        assert factors is not None
        return source_sizes(factors.values)

    def _mix(self, at: Launch, values: Tensor, sizes: Tensor, out: Operand) -> None:
        """Write ``Σ_h Â_ijh U_jh`` (j, c, d), divided by the sources' sizes, into `out`."""
        stage, tiling = self.stage, self.tiling
        launch(
            mix_parts,
            at.sources * at.tiles,
            *out.both,
            stage.weights,
            *strided(values),
            sizes,
            stage.lengths,
            at.first_tile,
            self.tiles,
            at.tiles * tiling.tile,
            out.high.shape[-1],
            at.source_first,
            at.sources,
            stage.n,
            *stage.reach,
            operand=out.high.dtype,
            D=values.shape[-1],
            H=stage.heads,
            H_BLOCK=stage.head_block,
            SPLIT=out.split,
            TILE=tiling.tile,
            DIMS=MIXED_DIMS,
            num_warps=4,
        )


@triton.jit(do_not_specialize=["first"])
def scale_projections(
    out,  # (c, D, REPEATS · M): low, high and high again, or high alone
    up_high,  # W_k (D, M) of each projection
    up_low,
    gated_high,
    gated_low,
    slopes,  # (b·i, M)
    gated_slopes,
    targets,  # (c,) int64
    first,
    D: tl.constexpr,
    M: tl.constexpr,
    GATED: tl.constexpr,
    SPLIT: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``Σ_k W_k diag(r^k_i)`` of one target, for one row and a block of neurons."""
    program = tl.program_id(0)
    blocks = tl.cdiv(M, BLOCK)
    k = program % blocks * BLOCK + tl.arange(0, BLOCK)
    row = program // blocks % D
    c = (program // blocks // D).to(tl.int64)
    target = tl.load(targets + first + c)
    inside = k < M
    x = tl.load(up_high + row * M + k, mask=inside, other=0.0).to(tl.float32)
    if SPLIT:
        x += tl.load(up_low + row * M + k, mask=inside, other=0.0).to(tl.float32)
    x *= tl.load(slopes + target * M + k, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        more = tl.load(gated_high + row * M + k, mask=inside, other=0.0).to(tl.float32)
        if SPLIT:
            more += tl.load(gated_low + row * M + k, mask=inside, other=0.0).to(tl.float32)
        x += more * tl.load(gated_slopes + target * M + k, mask=inside, other=0.0).to(tl.float32)
    high, low = split(x, OPERAND)
    REPEATS: tl.constexpr = 3 if SPLIT else 1
    at = (c * D + row) * (REPEATS * M) + k
    if SPLIT:
        tl.store(out + at, low, mask=inside)
        tl.store(out + M + at, high, mask=inside)
        tl.store(out + 2 * M + at, high, mask=inside)
    else:
        tl.store(out + at, high, mask=inside)


@triton.jit(do_not_specialize=["first_tile", "source_first", "targets"])
def mix_parts(
    parts_high,  # (j, c, capacity)
    parts_low,
    weights,
    values,  # U (b, j, h, D) float32, with the strides of tokens and heads
    token_stride,
    head_stride,
    source_sizes,
    lengths,
    first_tile,
    tiles,
    targets,
    capacity,
    source_first,
    sources,
    n,
    back,
    ahead,
    D: tl.constexpr,
    H: tl.constexpr,
    H_BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
    TILE: tl.constexpr,
    DIMS: tl.constexpr,
):
    """``Σ_h Â_ijh U_jh`` divided by the source's size, for one source and a tile of targets."""
    program = tl.program_id(0)
    local = program % sources
    tile = program // sources
    b, begin = target_of(tile * TILE, first_tile, tiles, TILE)
    j = source_first + local
    length = tl.load(lengths + b)
    if is_void(j, begin, length, back, ahead, TILE):
        return
    token = b.to(tl.int64) * n + j
    i = begin + tl.arange(0, TILE)
    a, _ = pair_weights(weights, token * n + i, i < length, H, H_BLOCK)
    a_high, a_low = split(a, tl.float16)
    size = tl.load(source_sizes + token)
    h = tl.arange(0, H_BLOCK)
    c = tile * TILE + tl.arange(0, TILE)
    at = (local.to(tl.int64) * targets + c)[:, None] * capacity
    for start in range(0, capacity, DIMS):
        dims = start + tl.arange(0, DIMS)
        u = tl.load(
            values + token * token_stride + h.to(tl.int64)[:, None] * head_stride + dims[None, :],
            mask=(h < H)[:, None] & (dims < D)[None, :],
            other=0.0,
        )
        u_high, u_low = split(u / size, tl.float16)
        mixed = tl.zeros((TILE, DIMS), tl.float32)
        high, low = split(split_dot(a_high, a_low, u_high, u_low, mixed, SPLIT, PLAIN), OPERAND)
        tl.store(parts_high + at + dims[None, :], high, mask=(dims < capacity)[None, :])
        if SPLIT:
            tl.store(parts_low + at + dims[None, :], low, mask=(dims < capacity)[None, :])


@triton.jit(do_not_specialize=["batch", "first_tile", "source_first", "targets"])
def target_sums(
    sums,  # as `pieces` leaves them, but (…, b, i, j)
    weights,  # A (b, j, i, h)
    left_high,  # (j, c, capacity) the parts at the block's input
    left_low,
    right_high,  # M_i (c, d, width)
    right_low,
    bypass_high,  # (j, c, width) the bypassed parts, over their sources' sizes
    bypass_low,
    bypass_sizes,
    bypass_scale,  # (b, i)
    scale,  # s (b, i); then the sizes that the operands were divided by
    slope_sizes,
    source_sizes,
    weight_size,
    down_size,
    inverse_deviation,  # (b, i) of a norm that stands before the bypass is added
    gamma,
    ordinary,
    lengths,
    first_tile,
    tiles,
    targets,
    capacity,
    source_first,
    sources,
    width,
    batch,
    n,
    back,
    ahead,
    D: tl.constexpr,
    H: tl.constexpr,
    H_BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    OPERAND: tl.constexpr,
    PLAIN: tl.constexpr,
    BYPASS: tl.constexpr,
    NORM_FIRST: tl.constexpr,
    SLOTS: tl.constexpr,
    ORDINARY: tl.constexpr,
    NORMED: tl.constexpr,
    NORMED_MEAN: tl.constexpr,
    NORMED_CROSS: tl.constexpr,
    ADDED: tl.constexpr,
    ADDED_CROSS: tl.constexpr,
    TILE: tl.constexpr,
    SOURCES: tl.constexpr,
    NEURONS: tl.constexpr,
    DIMS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The sums of one target's parts, for a block of sources and dimensions."""
    program = tl.program_id(0)
    d_blocks = tl.cdiv(width, DIMS)
    d_start = program % d_blocks * DIMS
    c = program // d_blocks % targets
    first = program // d_blocks // targets * SOURCES
    b, i = target_of(c, first_tile, tiles, TILE)
    start = source_first + first
    length = tl.load(lengths + b)
    local = first + tl.arange(0, SOURCES)
    j = source_first + local
    pair = (b.to(tl.int64) * n + j) * n + i  # among the weights
    slot_stride = tl.cast(batch, tl.int64) * n * n
    place = (program % d_blocks).to(tl.int64) * SLOTS * slot_stride
    place += (b.to(tl.int64) * n + i) * n + j
    inside = (local < sources) & (i + 0 * local < n)
    if sees_none(i, start, source_first + sources, length, back, ahead):
        keep_nothing(sums, place, slot_stride, inside, SLOTS)
        return

    target = b.to(tl.int64) * n + i
    v = tl.zeros((SOURCES, DIMS), tl.float32)
    for step in tl.range(0, tl.cdiv(capacity, NEURONS) * NEURONS, NEURONS, num_stages=STAGES):
        x = left_high.load([first, c, step]).reshape(SOURCES, NEURONS)
        w = right_high.load([c, step, d_start]).reshape(NEURONS, DIMS)
        x_low = x
        w_low = w
        if SPLIT:
            x_low = left_low.load([first, c, step]).reshape(SOURCES, NEURONS)
            w_low = right_low.load([c, step, d_start]).reshape(NEURONS, DIMS)
        v = split_dot(x, x_low, w, w_low, v, SPLIT, PLAIN)

    dims = d_start + tl.arange(0, DIMS)
    # Left operands are stored only for the sources that the target sees.
    real = inside & (j < length) & (j <= i + ahead) & (j >= i - back)
    _, largest = pair_weights(weights, pair, real, H, H_BLOCK)
    source = b.to(tl.int64) * n + tl.minimum(j, n - 1)
    same_target = target + 0 * source
    units = (scale, slope_sizes, source_sizes, weight_size, down_size)
    v = keep_behind_block(
        v, largest, sums, place, slot_stride, inside, real, same_target, source, dims, units,
        inverse_deviation, gamma, ordinary,
        D, NORM_FIRST, ORDINARY, NORMED, NORMED_MEAN, NORMED_CROSS,
    )  # fmt: skip
    if BYPASS:
        at = (local.to(tl.int64) * targets + c)[:, None] * width + dims[None, :]
        stored = (local < sources)[:, None] & (dims < width)[None, :]
        unit = (tl.load(bypass_scale + target) * tl.load(bypass_sizes + source))[:, None]
        v += tl.load(bypass_high + at, mask=stored, other=0.0).to(tl.float32) * unit
        if SPLIT:
            v += tl.load(bypass_low + at, mask=stored, other=0.0).to(tl.float32) * unit
    keep_behind_bypass(
        v, sums, place, slot_stride, inside, real, dims, gamma,
        D, NORM_FIRST, NORMED, NORMED_MEAN, NORMED_CROSS, ADDED, ADDED_CROSS,
    )  # fmt: skip
