"""The way that is taken through the feed-forward stage of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from normlens.decomposition.activations import activation
from normlens.decomposition.costs.kernels import KernelCosts
from normlens.decomposition.costs.tiles import MATRICES
from normlens.decomposition.fused.precision import PRECISIONS
from normlens.decomposition.fused.sources import BySource
from normlens.decomposition.fused.stage import Stage
from normlens.decomposition.fused.tail import tail_of
from normlens.decomposition.fused.targets import Activity, Gather, Matrices
from normlens.decomposition.fused.way import Way
from normlens.decomposition.plan import choose_way, gathers
from normlens.decomposition.tiles import FeedForwardJob, TileNorms


def costs_of(stage: Stage) -> KernelCosts:
    """What each way costs."""
    return KernelCosts(stage.shape, stage.precision)


def cheapest_way(stage: Stage) -> Way:
    """The way that the cost model finds cheapest.

    Only activations with silent neurons are asked how many of them there are, because the answer
    has to wait for the device.
    """
    costs = costs_of(stage)
    silent = activation(stage.job.ff.activation).silent
    plan = choose_way(costs, silent=silent, paths=stage.has_paths)
    if plan.may_gather:
        activity = Activity.of(stage)
        if gathers(costs, activity.share):
            return Gather(stage, activity)
    return Matrices(stage) if plan.method == MATRICES else BySource(stage)


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
