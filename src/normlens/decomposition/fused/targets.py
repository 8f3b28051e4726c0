"""Launches of the ways target by target: silent neurons left out, or one matrix per target."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normlens.decomposition.fused.kernels import by_target
from normlens.decomposition.fused.launching import described, launch, strided
from normlens.decomposition.fused.operands import Operand, SourceRows
from normlens.decomposition.fused.sources import LONGEST_SUM, block_of_dims
from normlens.decomposition.fused.stage import Stage, as_arguments
from normlens.decomposition.fused.way import Way


@dataclass(frozen=True)
class TargetTiling:
    """Sizes of the programs that work on one target or a tile of them."""

    tile: int = 32  # targets
    sources: int = 128
    neurons: int = 64
    dims: int = 256
    rows: int = 128  # of a matrix
    mixed_neurons: int = 32  # of a program that gathers
    mixed_dims: int = 128
    warps: int = 8
    stages: int = 3

    @classmethod
    def choose(cls, d: int, split: bool) -> TargetTiling:
        return cls(dims=block_of_dims(d), stages=2 if split else 3)


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
            by_target.list_active,
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
    """Parts of some targets in memory, and then their sums."""

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
    def bytes_per_pair(self) -> int:
        return 4 * self.stage.width + self.stage.precision.itemsize * self.capacity

    @property
    def least_bytes(self) -> int:
        return self.tiling.tile * self.tiling.sources * self.bytes_per_pair

    def block_of_sources(self, limit: int) -> int:
        """Sources of one launch, so that a tile of targets fits."""
        most = limit // (self.tiling.tile * self.bytes_per_pair)
        if most >= self.stage.n:
            return self.stage.n
        return min(self.stage.n, max(1, most // self.tiling.sources) * self.tiling.sources)

    def tiles_at_once(self, limit: int, sources: int) -> int:
        return max(1, limit // (sources * self.tiling.tile * self.bytes_per_pair))

    def multiply(
        self, at: Launch, left: Operand, right: Operand, gathered: tuple[Tensor, Tensor] | None
    ) -> None:
        """Parts of the launch's targets, and the sums of them."""
        stage, tiling = self.stage, self.tiling
        targets = at.tiles * tiling.tile
        parts = torch.empty(
            (targets, at.sources, stage.width), dtype=torch.float32, device=stage.weights.device
        )
        block, matrix_block = [tiling.sources, 1, tiling.neurons], [1, tiling.neurons, tiling.dims]
        launch(
            by_target.multiply_parts,
            stage.d_blocks * -(-at.sources // tiling.sources) * targets,
            parts,
            *(described(x, block) for x in left.both),
            *(right.both if gathered else (described(w, matrix_block) for w in right.both)),
            *(gathered or (stage.lengths, stage.lengths)),
            stage.lengths,
            at.first_tile,
            self.tiles,
            self.capacity,
            at.source_first,
            at.sources,
            stage.width,
            stage.n,
            *stage.reach,
            operand=stage.precision.operand,
            M=stage.m,
            GATHER=gathered is not None,
            SPLIT=stage.precision.split,
            TILE=tiling.tile,
            SOURCES=tiling.sources,
            NEURONS=tiling.neurons,
            DIMS=tiling.dims,
            STAGES=tiling.stages,
            num_warps=tiling.warps,
        )
        launch(
            by_target.sums_of_parts,
            stage.d_blocks * at.sources * at.tiles,
            self.sums,
            stage.weights,
            parts,
            *stage.units(self.rows),
            *stage.tail_vectors,
            stage.lengths,
            at.first_tile,
            self.tiles,
            at.source_first,
            at.sources,
            stage.width,
            stage.b,
            stage.n,
            *stage.reach,
            operand=stage.precision.operand,
            H=stage.heads,
            H_BLOCK=stage.head_block,
            TILE=tiling.tile,
            DIMS=tiling.dims,
            num_warps=4,
            **stage.tail_constants,
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
        neurons = self.tiling.neurons
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
        self.sums = stage.prepare_sums(self.tiling.dims)
        sources, sequences = self._blocks(limit)
        step = self.tiles_at_once(limit, sources)
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
        sources = self.block_of_sources(limit)
        if sources * size > limit:
            sources = min(sources, max(1, limit // size // block) * block)
        whole = sources == self.stage.n
        return sources, max(1, limit // (sources * size)) if whole else 1

    def _run_targets(self, at: Launch, rows: list[Operand]) -> None:
        stage, tiling, activity = self.stage, self.tiling, self.activity
        targets = at.tiles * tiling.tile
        hidden = self.operand(at.sources, targets, self.capacity)
        launch(
            by_target.gather_hidden,
            targets * -(-at.sources // tiling.sources),
            *hidden.both,
            activity.active,
            activity.counts,
            self._weights,
            *as_arguments(rows[0], rows[-1]),
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
            rows[0].high.shape[-1],
            stage.n,
            *stage.reach,
            operand=stage.precision.operand,
            M=stage.m,
            H=stage.heads,
            GATED=stage.gated,
            SPLIT=stage.precision.split,
            TILE=tiling.tile,
            SOURCES=tiling.sources,
            NEURONS=tiling.mixed_neurons,
            MULTIPLE=tiling.neurons,
            STAGES=tiling.stages,
            num_warps=4,
        )
        self.multiply(at, hidden, stage.down, (activity.active, activity.counts))


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
        self.sums = stage.prepare_sums(self.tiling.dims)
        sources = self.block_of_sources(limit)
        matrix_bytes = self.tiling.tile * stage.precision.itemsize * self.capacity * stage.width
        step = min(self.tiles_at_once(limit, sources), max(1, limit // matrix_bytes))
        for tile in range(0, stage.b * self.tiles, step):
            tiles = min(step, stage.b * self.tiles - tile)
            matrices = self._matrices(tile, tiles)
            for first in range(0, stage.n, sources):
                at = Launch(tile, tiles, first, min(sources, stage.n - first))
                self.multiply(at, self._parts(at), matrices, None)

    def _matrices(self, first_tile: int, tiles: int) -> Operand:
        """M_i (c, d, d) of the targets of some tiles."""
        stage, tiling = self.stage, self.tiling
        made = self.operand(tiles * tiling.tile, self.capacity, stage.width)
        # Rows are scaled in registers, so there is room for no more than this.
        rows, neurons = tiling.rows, tiling.neurons // (2 if stage.precision.split else 1)
        ups = [stage.value_rows.weights[place] for place in (0, -1)]
        whole = -(-stage.m // neurons) * neurons
        short = stage.precision.split and whole > LONGEST_SUM
        launch(
            by_target.target_matrices,
            stage.d_blocks * -(-self.capacity // rows) * tiles * tiling.tile,
            *made.both,
            *(described(w[0], [rows, neurons]) for w in as_arguments(*ups)),
            stage.slopes[0],
            stage.slopes[-1],
            *(described(w, [neurons, tiling.dims]) for w in stage.down.both),
            stage.lengths,
            first_tile,
            self.tiles,
            self.capacity,
            stage.width,
            stage.n,
            operand=stage.precision.operand,
            M=stage.m,
            GATED=stage.gated,
            SPLIT=stage.precision.split,
            TILE=tiling.tile,
            ROWS=rows,
            NEURONS=neurons,
            CHUNK=LONGEST_SUM // 2 if short else whole,
            DIMS=tiling.dims,
            STAGES=tiling.stages,
            num_warps=tiling.warps,
        )
        return made

    def _parts(self, at: Launch) -> Operand:
        """The parts (j, c, d) at the block's input."""
        stage, tiling = self.stage, self.tiling
        targets = at.tiles * tiling.tile
        made = self.operand(at.sources, targets, self.capacity)
        launch(
            by_target.mix_parts,
            at.sources * at.tiles,
            *made.both,
            stage.weights,
            *strided(stage.job.factors.values),
            self.rows.source_sizes,
            stage.lengths,
            at.first_tile,
            self.tiles,
            targets,
            self.capacity,
            at.source_first,
            at.sources,
            stage.n,
            *stage.reach,
            operand=stage.precision.operand,
            D=stage.job.factors.basis.shape[-1],
            H=stage.heads,
            H_BLOCK=stage.head_block,
            SPLIT=stage.precision.split,
            TILE=tiling.tile,
            DIMS=tiling.mixed_dims,
            num_warps=4,
        )
        return made
