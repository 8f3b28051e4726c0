"""The feed-forward stage target by target: one d × d matrix per target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normlens.gpu.kernels import matrices as kernels
from normlens.gpu.operands import (
    Operand,
    described_both,
    launch,
    rounded,
    source_sizes,
    strided,
    wide_product,
)
from normlens.gpu.sizes import TargetTiling, power_of_two
from normlens.gpu.stage import Method, Stage
from normlens.plan.costs import TargetPieces, at_once, matrix_tile_bytes, pair_bytes, scaled_bytes

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

    @property
    def pieces(self) -> TargetPieces:
        """How targets and sources are cut into launches."""
        stage = self.stage
        bypassed = 0 if stage.tail.factors is None else stage.width
        size = pair_bytes(stage.width, bypassed, stage.precision.itemsize)
        return TargetPieces(self.tiling, stage.n, size)

    @property
    def least_bytes(self) -> int:
        return self.pieces.least_bytes

    def fill(self, limit: int) -> None:
        stage = self.stage
        self.sums = stage.prepare_sums(self.tiling.dims, targets_first=True)
        sources = self.pieces.sources(limit)
        item = stage.precision.itemsize
        matrix = matrix_tile_bytes(self.tiling.tile, stage.d, stage.width, item)
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
        made = self._operand(tiles * tile, stage.d, stage.width)
        step = at_once(limit, scaled_bytes(stage.d, stage.m, stage.precision.products))
        for first in range(first_tile * tile, (first_tile + tiles) * tile, step):
            some = slice(first, min(first + step, (first_tile + tiles) * tile))
            product = wide_product(self._scaled_projections(some), self._down)
            whole = rounded(product, stage.precision.operand, stage.precision.split)
            for out, values in zip(made.both, whole.both, strict=True):
                begin = first - first_tile * tile
                out[begin : begin + len(values) // stage.d] = values.view(-1, stage.d, stage.width)
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
        count, split = some.stop - some.start, stage.precision.split
        out = torch.empty(
            (count * stage.d, stage.precision.products * stage.m),
            dtype=stage.precision.operand,
            device=stage.weights.device,
        )
        block = min(1024, power_of_two(stage.m))
        launch(
            kernels.scale_projections,
            -(-stage.m // block) * stage.d * count,
            out,
            *up.both,
            *(gate[0] if gate else up).both,
            stage.slopes[0],
            stage.slopes[-1],
            self._targets,
            some.start,
            operand=stage.precision.operand,
            D=stage.d,
            M=stage.m,
            GATED=stage.gated,
            SPLIT=split,
            BLOCK=block,
        )
        return out

    def _parts(self, at: Launch) -> Operand:
        """The parts (j, c, d) at the block's input."""
        stage = self.stage
        made = self._operand(at.sources, at.tiles * self.tiling.tile, stage.width)
        self._mix(at, stage.job.factors.values, stage.value_rows.source_sizes, made)
        return made

    def _keep_sums(self, at: Launch, matrices: Operand) -> None:
        """Launch the sums of the parts behind the block, for the targets of `at`."""
        stage, tiling = self.stage, self.tiling
        targets = at.tiles * tiling.tile
        block, matrix_block = [tiling.sources, 1, tiling.neurons], [1, tiling.neurons, tiling.dims]
        launch(
            kernels.target_sums,
            stage.d_blocks * -(-at.sources // tiling.sources) * targets,
            self.sums,
            stage.weights,
            *described_both(self._parts(at), block),
            *described_both(matrices, matrix_block),
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
        factors = self.stage.tail.factors
        if factors is None:
            return [None, None, None, None]
        shape = (at.sources, at.tiles * self.tiling.tile, self.stage.width)
        split = self.stage.precision.split
        made = Operand.empty(self.stage.weights, shape, torch.float16, split)
        self._mix(at, factors.values, self._bypass_sizes, made)
        return [*made.both, self._bypass_sizes, factors.scale.contiguous()]

    @cached_property
    def _bypass_sizes(self) -> Tensor:
        factors = self.stage.tail.factors
        assert factors is not None
        return source_sizes(factors.values)

    def _mix(self, at: Launch, values: Tensor, sizes: Tensor, out: Operand) -> None:
        """Write ``Σ_h Â_ijh U_jh`` (j, c, d), divided by the sources' sizes, into `out`."""
        stage, tiling = self.stage, self.tiling
        launch(
            kernels.mix_parts,
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

    def _operand(self, *shape: int) -> Operand:
        precision = self.stage.precision
        return Operand.empty(self.stage.weights, shape, precision.operand, precision.split)
