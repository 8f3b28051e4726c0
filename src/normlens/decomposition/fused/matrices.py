"""The method for long inputs: one d × d matrix per target."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from normlens.decomposition.costs.kernel_memory import at_once, matrix_tile_bytes, scaled_bytes
from normlens.decomposition.fused.by_target import ByTarget, Launch
from normlens.decomposition.fused.kernels.matrices import scale_projections
from normlens.decomposition.fused.launching import launch
from normlens.decomposition.fused.operands import Operand, rounded, wide_product
from normlens.decomposition.fused.source_rows import SourceRows
from normlens.decomposition.fused.tiling import power_of_two


class Matrices(ByTarget):
    """Form ``M_i = Σ_k W_k diag(r^k_i) W_down`` once per target, for all of its sources."""

    @cached_property
    def rows(self) -> SourceRows:
        return self.stage.value_rows

    @property
    def capacity(self) -> int:
        return self.stage.width

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
                self.keep_sums(at, self._parts(at), matrices, None)

    def _matrices(self, first_tile: int, tiles: int, limit: int) -> Operand:
        """M_i (c, d, d) of the targets in some tiles, formed a few at a time."""
        stage, tile = self.stage, self.tiling.tile
        made = self.operand(tiles * tile, stage.d, stage.width)
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
            scale_projections,
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
        made = self.operand(at.sources, at.tiles * self.tiling.tile, self.capacity)
        self.mix(at, self.stage.job.factors.values, self.rows.source_sizes, made)
        return made
