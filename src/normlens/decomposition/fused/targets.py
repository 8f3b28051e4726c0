"""Launches of the ways target by target: silent neurons left out, or one matrix per target."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normlens.decomposition.costs.kernel_memory import (
    TargetPieces,
    at_once,
    matrix_tile_bytes,
    pair_bytes,
    scaled_bytes,
)
from normlens.decomposition.fused import operands
from normlens.decomposition.fused.kernels import by_target, gathering
from normlens.decomposition.fused.launching import launch, strided
from normlens.decomposition.fused.operands import (
    Operand,
    SourceRows,
    described_both,
    source_sizes,
    wide_product,
)
from normlens.decomposition.fused.stage import Stage
from normlens.decomposition.fused.tiling import TargetTiling, power_of_two
from normlens.decomposition.fused.way import Way


@dataclass(frozen=True)
class Launch:
    """The targets and sources that one round of launches deals with."""

    first_tile: int
    tiles: int
    source_first: int
    sources: int
    batch_first: int = 0


@dataclass(frozen=True)
class Activity:
    """Which neurons are active for each target."""

    active: Tensor  # (b·i, m) int32, the first `counts` of each row
    counts: Tensor  # (b·i,) int32
    share: float  # of all neurons, over the real targets
    most: int  # of one target

    @classmethod
    def of(cls, stage: Stage) -> Activity:
        """Reads the slopes, and waits for the device to say how many are not zero."""
        device = stage.lengths.device
        active = torch.empty((stage.tokens, stage.m), dtype=torch.int32, device=device)
        counts = torch.empty(stage.tokens, dtype=torch.int32, device=device)
        launch(
            gathering.list_active,
            stage.tokens,
            active,
            counts,
            stage.slopes[0],
            stage.slopes[-1],
            stage.lengths,
            stage.n,
            M=stage.m,
            GATED=stage.gated,
            BLOCK=1024,
        )
        total, most = torch.stack([counts.sum(), counts.max().long()]).tolist()
        return cls(active, counts, total / (stage.real_tokens * stage.m), most)


class ByTarget(Way):
    """What some targets multiply and what bypasses it, stored, and then the sums."""

    def __init__(self, stage: Stage):
        super().__init__(stage)
        self.tiling = TargetTiling.choose(stage.d, stage.precision.split)
        self.tiles = -(-stage.n // self.tiling.tile)  # of one sequence

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Columns of what a target multiplies, padded."""

    @property
    @abstractmethod
    def rows(self) -> SourceRows:
        """Whose sizes belong to what is multiplied."""

    @property
    def pieces(self) -> TargetPieces:
        """How targets and sources are cut."""
        stage = self.stage
        bypassed = 0 if stage.tail.factors is None else stage.width
        size = pair_bytes(self.capacity, bypassed, stage.precision.itemsize)
        return TargetPieces(self.tiling, stage.n, size)

    @property
    def least_bytes(self) -> int:
        return self.pieces.least_bytes

    def keep_sums(
        self, at: Launch, left: Operand, right: Operand, gathered: tuple[Tensor, Tensor] | None
    ) -> None:
        """The sums of what the launch's targets multiply."""
        stage, tiling = self.stage, self.tiling
        targets = at.tiles * tiling.tile
        block, matrix_block = [tiling.sources, 1, tiling.neurons], [1, tiling.neurons, tiling.dims]
        launch(
            by_target.target_sums,
            stage.d_blocks * -(-at.sources // tiling.sources) * targets,
            self.sums,
            stage.weights,
            *described_both(left, block),
            *(right.both if gathered else described_both(right, matrix_block)),
            *(gathered or (None, None)),
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
            GATHER=gathered is not None,
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
        """The bypassed parts, their sizes and scale; None for none."""
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
        """``Σ_h Â_ijh U_jh`` (j, c, d) over the sources' sizes."""
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


class Gather(ByTarget):
    """Only the neurons that are active for a target."""

    def __init__(self, stage: Stage, activity: Activity):
        super().__init__(stage)
        self.activity = activity

    @property
    def capacity(self) -> int:
        neurons = self.tiling.mixed_neurons
        return max(1, -(-self.activity.most // neurons)) * neurons

    @property
    def rows(self) -> SourceRows:
        return self.stage.rows

    @cached_property
    def _weights(self) -> Tensor:
        """A (b, i, h, j): a target's sources side by side."""
        return self.stage.weights.permute(0, 2, 3, 1).contiguous()

    def fill(self, limit: int) -> None:
        stage = self.stage
        self.sums = stage.prepare_sums(self.tiling.dims, targets_first=True)
        sources, sequences = self._blocks(limit)
        step = self.pieces.tiles(limit, sources)
        for batch_first in range(0, stage.b, sequences):
            some = slice(batch_first, min(batch_first + sequences, stage.b))
            for first in range(0, stage.n, sources):
                count = min(sources, stage.n - first)
                rows = stage.rows.take_columns(some, slice(first, first + count))
                for tile in range(some.start * self.tiles, some.stop * self.tiles, step):
                    tiles = min(step, some.stop * self.tiles - tile)
                    self._run_targets(Launch(tile, tiles, first, count, batch_first), rows)

    def _blocks(self, limit: int) -> tuple[int, int]:
        """Sources of one launch, and sequences whose rows are kept at once."""
        block, size = self.tiling.sources, self.stage.rows.bytes_per_source
        sources = self.pieces.sources(limit)
        if sources * size > limit:
            sources = min(sources, max(1, limit // size // block) * block)
        whole = sources == self.stage.n
        return sources, at_once(limit, sources * size) if whole else 1

    def _run_targets(self, at: Launch, rows: list[Tensor]) -> None:
        stage, tiling, activity = self.stage, self.tiling, self.activity
        targets, neurons = at.tiles * tiling.tile, tiling.mixed_neurons
        hidden = self.operand(at.sources, targets, self.capacity)
        launch(
            gathering.gather_hidden,
            targets * (self.capacity // neurons) * -(-at.sources // tiling.mixed_sources),
            *hidden.both,
            activity.active,
            activity.counts,
            self._weights,
            rows[0],
            rows[-1],
            stage.slopes[0],
            stage.slopes[-1],
            stage.lengths,
            at.first_tile,
            self.tiles,
            targets,
            self.capacity,
            at.batch_first,
            at.source_first,
            at.sources,
            rows[0].shape[-1],
            stage.n,
            *stage.reach,
            operand=stage.precision.operand,
            M=stage.m,
            H=stage.heads,
            GATED=stage.gated,
            SPLIT=stage.precision.split,
            TILE=tiling.tile,
            SOURCES=tiling.mixed_sources,
            NEURONS=neurons,
            STAGES=tiling.gather_stages,
            num_warps=4,
        )
        self.keep_sums(at, hidden, stage.down, (activity.active, activity.counts))


class Matrices(ByTarget):
    """``M_i = Σ_k W_k diag(r^k_i) W_down`` once per target, for all sources of a long input."""

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
        """M_i (c, d, d) of the targets of some tiles, a few at a time."""
        stage, tile = self.stage, self.tiling.tile
        made = self.operand(tiles * tile, stage.d, stage.width)
        step = at_once(limit, scaled_bytes(stage.d, stage.m, stage.precision.products))
        for first in range(first_tile * tile, (first_tile + tiles) * tile, step):
            some = slice(first, min(first + step, (first_tile + tiles) * tile))
            product = wide_product(self._scaled_projections(some), self._down)
            whole = operands.rounded(product, stage.precision.operand, stage.precision.split)
            for out, found in zip(made.both, whole.both, strict=True):
                begin = first - first_tile * tile
                out[begin : begin + len(found) // stage.d] = found.view(-1, stage.d, stage.width)
        return made

    @cached_property
    def _down(self) -> Tensor:
        """What the scaled projections are multiplied by."""
        high, low = self.stage.down.both
        return torch.cat([high, low, high]) if self.stage.precision.split else high

    @cached_property
    def _targets(self) -> Tensor:
        """The token of each target, tile by tile; the last one stands for those beyond the end."""
        stage = self.stage
        places = torch.arange(self.tiles * self.tiling.tile, device=stage.weights.device)
        first = torch.arange(stage.b, device=stage.weights.device) * stage.n
        return (first[:, None] + places.clamp_max(stage.n - 1)).flatten()

    def _scaled_projections(self, some: slice) -> Tensor:
        """``Σ_k W_k diag(r^k_i)`` of some targets, (c · d, m), as operands side by side."""
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
            by_target.scale_projections,
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
