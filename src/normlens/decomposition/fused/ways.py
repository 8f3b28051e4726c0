"""Which way through the feed-forward stage: a cost model, and the choice.

Operations of the matrix units and bytes that move, for `pairs` allowed (target, source) pairs, k
input projections, H heads and a share ρ of active neurons; a product of pairs counts three:

    by source   pairs · 2m(d + kH)
    gather      ρ · pairs · 2md                 + ρ · pairs · kHm items + 2 · pairs · d numbers
    matrices    tokens · 2d²m + pairs · 2d²     + pairs · 2d items + 2 · pairs · d numbers

The last two go through memory with what a target multiplies and with the parts that come of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from normlens.decomposition.activations import activation
from normlens.decomposition.feedforward import FeedForwardJob, TileNorms
from normlens.decomposition.fused.operands import PRECISIONS, Precision
from normlens.decomposition.fused.sources import BySource
from normlens.decomposition.fused.stage import Stage, tail_of
from normlens.decomposition.fused.targets import Activity, Gather, Matrices
from normlens.decomposition.fused.way import Way

#: Operations that the matrix units do while one byte moves, measured (docs/performance.md).
OPERATIONS_PER_BYTE = 150.0


@dataclass(frozen=True)
class Costs:
    """The cost of each way, in operations."""

    tokens: int
    pairs: int
    d: int
    m: int
    heads: int
    projections: int
    precision: Precision

    @classmethod
    def of(cls, stage: Stage) -> Costs:
        return cls(
            stage.real_tokens,
            stage.pairs,
            stage.d,
            stage.m,
            stage.head_block,
            len(stage.slopes),
            stage.precision,
        )

    @property
    def _parts(self) -> float:
        """Write and read the parts behind the block."""
        return OPERATIONS_PER_BYTE * self.pairs * 8 * self.d

    @property
    def by_source(self) -> float:
        mixed = self.projections * self.heads
        return self.precision.products * self.pairs * 2 * self.m * (self.d + mixed)

    def gather(self, share: float) -> float:
        products = self.precision.products * 2 * self.d
        rows = self.projections * self.heads + 2
        moved = OPERATIONS_PER_BYTE * self.precision.itemsize * rows
        return share * self.pairs * self.m * (products + moved) + self._parts

    @property
    def matrices(self) -> float:
        products = self.tokens * self.d * self.m + self.pairs * self.d
        moved = OPERATIONS_PER_BYTE * self.precision.itemsize * self.pairs * 2 * self.d
        return self.precision.products * 2 * self.d * products + moved + self._parts


def cheapest_way(stage: Stage) -> Way:
    """The way that the cost model finds cheapest.

    Only activations with silent neurons are asked how many of them there are, because the answer
    has to wait for the device.
    """
    costs = Costs.of(stage)
    least = min(costs.by_source, costs.matrices)
    if activation(stage.job.ff.activation).silent and stage.paths is not None:
        activity = Activity.of(stage)
        if costs.gather(activity.share) < least:
            return Gather(stage, activity)
    return Matrices(stage) if costs.matrices < costs.by_source else BySource(stage)


def fused_norms(
    job: FeedForwardJob,
    lengths: Sequence[int],
    precision: str,
    memory_limit: int | None = None,
    sums: Tensor | None = None,
) -> TileNorms:
    """Norms behind the block for every pair of a batch; `sums` may name the kernels' output.

    The kernels' parts are compared with the sum `job.mixed` that they should have.
    """
    tail = tail_of(job)
    assert tail is not None, "ask `tail_of` first"
    assert job.mixed is not None, "the kernels' parts need a sum to be compared with"
    stage = Stage(job, tail, lengths, PRECISIONS[precision], sums)
    cheapest_way(stage).run(memory_limit)
    norms, error = stage.norms()
    return TileNorms(norms, job.mixed, error)
