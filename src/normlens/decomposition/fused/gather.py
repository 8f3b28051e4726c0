"""The method that leaves out silent neurons: only a target's active ones are multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normlens.decomposition.costs.kernel_memory import at_once
from normlens.decomposition.fused.by_target import ByTarget, Launch
from normlens.decomposition.fused.kernels.gather import gather_hidden, list_active
from normlens.decomposition.fused.launching import launch
from normlens.decomposition.fused.source_rows import SourceRows
from normlens.decomposition.fused.stage import Stage


@dataclass(frozen=True)
class Activity:
    """The neurons that are active for each target."""

    active: Tensor  # (b·i, m) int32, the first `counts` of each row
    counts: Tensor  # (b·i,) int32
    share: float  # of all neurons, over the real targets
    most: int  # of one target

    @classmethod
    def of(cls, stage: Stage) -> Activity:
        """List the neurons whose slope is not zero; waits for the device to count them."""
        device = stage.lengths.device
        active = torch.empty((stage.tokens, stage.m), dtype=torch.int32, device=device)
        counts = torch.empty(stage.tokens, dtype=torch.int32, device=device)
        launch(
            list_active,
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


class Gather(ByTarget):
    """Multiply only the neurons that are active for a target (ReLU)."""

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
        """The weights A as (b, i, h, j), a target's sources adjacent in memory."""
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
        """The number of sources in a launch, and of sequences whose rows are kept at once."""
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
            gather_hidden,
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
