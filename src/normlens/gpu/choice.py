"""The choice of the cheapest method, and the feed-forward stage of a batch by it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from normlens.frozen.tiles import FeedForwardJob, PairNorms, tail_of
from normlens.gpu.by_source import ByPair, BySource, InOneKernel
from normlens.gpu.matrices import Matrices
from normlens.gpu.sizes import PRECISIONS
from normlens.gpu.stage import Method, Stage
from normlens.plan.costs import MATRICES, HiddenRows, KernelCosts, Text
from normlens.plan.method import choose_kernel_plan


def by_source(stage: Stage) -> BySource:
    """The method source by source; where that costs less, it stores hidden rows."""
    return ByPair(stage) if hidden_rows_of(stage).stored else InOneKernel(stage)


def hidden_rows_of(stage: Stage) -> HiddenRows:
    """The hidden rows of a stage, and what they cost."""
    texts = [Text(length, stage.job.reach.pairs(length)) for length in stage.given_lengths]
    s = stage
    return HiddenRows(texts, s.heads, len(s.slopes), s.d, s.m, s.precision)


def cheapest_method(stage: Stage) -> Method:
    """The cheapest method by the cost model."""
    plan = choose_kernel_plan(KernelCosts(stage.shape, stage.precision))
    return Matrices(stage) if plan.method == MATRICES else by_source(stage)


def fused_norms(
    job: FeedForwardJob,
    lengths: Sequence[int],
    precision: str,
    memory_limit: int | None = None,
    sums: Tensor | None = None,
) -> PairNorms:
    """Norms behind the block for every pair of a batch.

    The sum of the kernels' parts is compared with `job.mixed`, which it should equal. `sums` may
    be given as the memory that the kernels write to.
    """
    tail = tail_of(job)
    assert tail is not None, "ask `tail_of` first"
    assert job.mixed is not None, "the kernels' parts need a sum to be compared with"
    stage = Stage(job, tail, lengths, PRECISIONS[precision], sums)
    cheapest_method(stage).run(memory_limit)
    norms, error = stage.norms()
    return PairNorms(norms, job.mixed, error)
