"""Launches that the two methods target by target share: parts are stored, then summed."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normlens.decomposition.costs.kernel_memory import TargetPieces, pair_bytes
from normlens.decomposition.fused.kernels import by_target
from normlens.decomposition.fused.launching import launch, strided
from normlens.decomposition.fused.method import Method
from normlens.decomposition.fused.operands import Operand, described_both
from normlens.decomposition.fused.source_rows import SourceRows, source_sizes
from normlens.decomposition.fused.stage import Stage
from normlens.decomposition.fused.tiling import TargetTiling


@dataclass(frozen=True)
class Launch:
    """The tiles of targets and the sources of one round of launches."""

    first_tile: int
    tiles: int
    source_first: int
    sources: int
    batch_first: int = 0


class ByTarget(Method):
    """Store the operands of some targets and the bypassed parts, then launch the sums."""

    def __init__(self, stage: Stage):
        super().__init__(stage)
        self.tiling = TargetTiling.choose(stage.d, stage.precision.split)
        self.tiles = -(-stage.n // self.tiling.tile)  # of one sequence

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Columns of a target's left operand (neurons or dimensions), padded."""

    @property
    @abstractmethod
    def rows(self) -> SourceRows:
        """The source rows whose sizes the left operand was divided by."""

    @property
    def pieces(self) -> TargetPieces:
        """How targets and sources are cut into launches."""
        stage = self.stage
        bypassed = 0 if stage.tail.factors is None else stage.width
        size = pair_bytes(self.capacity, bypassed, stage.precision.itemsize)
        return TargetPieces(self.tiling, stage.n, size)

    @property
    def least_bytes(self) -> int:
        return self.pieces.least_bytes

    def keep_sums(
        self, at: Launch, left: Operand, right: Operand, active: tuple[Tensor, Tensor] | None
    ) -> None:
        """Launch the sums of ``left right`` for the targets of `at`.

        `active` are the active neurons of each target and their counts, where `right` is W_down;
        None where `right` holds one matrix per target.
        """
        stage, tiling = self.stage, self.tiling
        targets = at.tiles * tiling.tile
        block, matrix_block = [tiling.sources, 1, tiling.neurons], [1, tiling.neurons, tiling.dims]
        launch(
            by_target.target_sums,
            stage.d_blocks * -(-at.sources // tiling.sources) * targets,
            self.sums,
            stage.weights,
            *described_both(left, block),
            *(right.both if active else described_both(right, matrix_block)),
            *(active or (None, None)),
            *self._bypassed(at),
            *stage.units(self.rows),
            stage.inverse_deviation,
            stage.gamma,
            stage.ordinary,
            stage.lengths,
            at.first_tile,
            self.tiles,
            targets,
            self.capacity,
            at.source_first,
            at.sources,
            stage.width,
            stage.b,
            stage.n,
            *stage.reach,
            operand=stage.precision.operand,
            M=stage.m,
            H=stage.heads,
            H_BLOCK=stage.head_block,
            GATHER=active is not None,
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
        self.mix(at, factors.values, self._bypass_sizes, made)
        return [*made.both, self._bypass_sizes, factors.scale.contiguous()]

    @cached_property
    def _bypass_sizes(self) -> Tensor:
        factors = self.stage.tail.factors
        assert factors is not None
        return source_sizes(factors.values)

    def mix(self, at: Launch, values: Tensor, sizes: Tensor, out: Operand) -> None:
        """Write ``Σ_h Â_ijh U_jh`` (j, c, d), divided by the sources' sizes, into `out`."""
        stage, tiling = self.stage, self.tiling
        launch(
            by_target.mix_parts,
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
            DIMS=tiling.mixed_dims,
            num_warps=4,
        )

    def operand(self, *shape: int) -> Operand:
        precision = self.stage.precision
        return Operand.empty(self.stage.weights, shape, precision.operand, precision.split)
