"""The choice between PyTorch and the fused kernels for the norms of pairs, made only here.

The kernels run on CUDA, where Triton is installed and they support the layer. In every other case
`parts` and `tiles` compute the norms by PyTorch, in the precision of the weights. Experts have no
kernels: each target has its own weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from normlens.decomposition.devices import kernels_run_on
from normlens.decomposition.feedforward_job import ExpertsJob, FeedForwardJob, PairNorms
from normlens.decomposition.fused.precision import PRECISIONS as KERNEL_PRECISIONS
from normlens.decomposition.fused.precision import Precision
from normlens.decomposition.fused.tail import tail_of
from normlens.decomposition.parts import Factors
from normlens.decomposition.squares import Squares
from normlens.decomposition.tiles import feed_forward_norms
from normlens.precisions import AUTO

#: The fastest precision whose error cannot change a Spearman's ρ at three decimals
#: (docs/performance.md).
DEFAULT_PRECISION = "float32"


def run_feed_forward(
    job: FeedForwardJob | ExpertsJob,
    lengths: Sequence[int],
    precision: str,
    memory_limit: int | None,
) -> tuple[PairNorms, str]:
    """The norms behind the block, and the precision of their products."""
    if (
        isinstance(job, ExpertsJob)
        or not has_kernels(job.ff.down.weight)
        or tail_of(job) is None  # steps behind the block that the kernels do not know
    ):
        norms = feed_forward_norms(job, lengths, memory_limit)
        return norms, str(job.factors.scale.dtype).removeprefix("torch.")
    from normlens.decomposition.fused.choice import fused_norms

    chosen = kernel_precision(precision).name
    if job.factors.source is not None:
        squares = Squares.of(job.factors, lengths)
        cut = squares.job(job)
        norms = fused_norms(cut, squares.block_lengths, chosen, memory_limit)
        return squares.joined(norms), chosen
    if job.mixed is None:
        job = replace(job, mixed=job.sum_behind_block())
    return fused_norms(job, lengths, chosen, memory_limit), chosen


def kernel_precision(name: str) -> Precision:
    """The kernels' precision for a name that the user may give; "auto" is the default."""
    return KERNEL_PRECISIONS[DEFAULT_PRECISION if name == AUTO else name]


def factored_norms(factors: Factors, lengths: Sequence[int]) -> Tensor:
    """Norms (b, i, j) of factored parts, 0 where i = j."""
    if not has_kernels(factors.weights):
        return factors.norms()
    from normlens.decomposition.fused.factored import fused_factored_norms

    if factors.source is not None:
        squares = Squares.of(factors, lengths)
        cut = fused_factored_norms(squares.factors(factors), squares.block_lengths)
        return squares.norms(cut)
    return fused_factored_norms(factors, lengths)


def has_kernels(weight: Tensor) -> bool:
    """Whether kernels can work with this weight's device and dtype."""
    return kernels_run_on(weight.device, weight.dtype)
