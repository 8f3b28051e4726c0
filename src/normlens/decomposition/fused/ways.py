"""Which way through the feed-forward stage: a cost model, and the choice.

Operations of the matrix units and bytes that move, for `pairs` allowed (target, source) pairs, k
input projections, H heads and a share ρ of active neurons; an item is an operand's element, and a
product of split operands counts three:

    by source   pairs · 2m(d + kH)
    gather      ρ · pairs · 2md              and  ρ · pairs · kHm items read, pairs · d stored
    matrices    tokens · 2d²m + pairs · 2d²  and  pairs · 2d items stored

What is stored, what a target multiplies and what bypasses the block, is written and read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from normlens.decomposition.activations import activation
from normlens.decomposition.fused.operands import PRECISIONS, Precision
from normlens.decomposition.fused.sources import BySource
from normlens.decomposition.fused.stage import Stage, tail_of
from normlens.decomposition.fused.targets import Activity, Gather, Matrices
from normlens.decomposition.fused.way import Way
from normlens.decomposition.tiles import FeedForwardJob, TileNorms

#: Operations that the matrix units do while a byte is stored and read again, or read from the
#: cache; how much longer an operation takes on gathered rows; and what the launches are worth.
#: Fitted to an H200 (docs/performance.md).
STORED_BYTE, CACHED_BYTE, GATHERED, LAUNCHES = 800.0, 35.0, 1.7, 5e10


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
    def by_source(self) -> float:
        mixed = self.projections * self.heads
        return self.precision.products * self.pairs * 2 * self.m * (self.d + mixed)

    def gather(self, share: float) -> float:
        item = self.precision.itemsize
        products = GATHERED * self.precision.products * 2 * self.d
        rows = CACHED_BYTE * item * self.projections * self.heads
        neurons = share * self.m * (products + rows + STORED_BYTE * item)
        return LAUNCHES + self.pairs * (neurons + STORED_BYTE * item * self.d)

    @property
    def matrices(self) -> float:
        products = self.tokens * self.d * self.m + self.pairs * self.d
        stored = STORED_BYTE * self.precision.itemsize * self.pairs * 2 * self.d
        return LAUNCHES + self.precision.products * 2 * self.d * products + stored


def cheapest_way(stage: Stage) -> Way:
    """The way that the cost model finds cheapest.

    Only activations with silent neurons are asked how many of them there are, because the answer
    has to wait for the device.
    """
    costs = Costs.of(stage)
    least = min(costs.by_source, costs.matrices)
    silent = activation(stage.job.ff.activation).silent
    if silent and costs.gather(0) < least and stage.paths is not None:
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
