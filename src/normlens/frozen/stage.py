"""From factored parts to the norms behind the feed-forward block, by tiles or by GPU kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from normlens.frozen.feedforward import SampledFeedForward
from normlens.frozen.parts import Factors, FrozenBlock, Parts, side_by_side
from normlens.frozen.shapley import shapley_norms
from normlens.frozen.tiles import (
    AddBypass,
    FeedForwardJob,
    Normalise,
    PairNorms,
    StageJob,
    TailStep,
    feed_forward_norms,
    scope_norms,
    tail_of,
    tile_by_rows,
)
from normlens.gpu.sizes import PRECISIONS as KERNEL_PRECISIONS
from normlens.gpu.sizes import Precision, kernels_run_on
from normlens.layers import Reach
from normlens.options import AUTO, Settings

# A few norms of the kernels, compared with a recomputation in float32.
#
# Comparing the sum of all parts (`Stage.norms`) does not notice errors of both signs that cancel;
# norms of single pairs do. The sample takes some fifteen short launches, about as long as the
# whole stage of a short text, so a lens takes it in its first and last layers only.


TARGETS = SOURCES = 4  # of the sample


def sampled_error(
    job: FeedForwardJob, lengths: Sequence[int], norms: Mapping[str, Tensor]
) -> Tensor:
    """``√(Σ (‖part‖ − exact)² / Σ exact²)`` over sampled pairs, in the scope where it is largest.

    The sample lies in the longest sequence of the batch: targets from its second half, which see
    the most sources, and sources from all of it. The number stays on the device.
    """
    index = max(range(len(lengths)), key=lambda place: lengths[place])
    n, count = lengths[index], job.sources(index, lengths[index])
    targets = slice(n // 2, n, max(1, (n - n // 2) // TARGETS))
    sources = slice(0, count, max(1, count // SOURCES))
    values = torch.einsum("jhe,hed->jhd", job.factors.heads[index, sources], job.factors.basis)
    rows = [values @ w for w in job.ff.projections]
    errors = []
    tile = tile_by_rows(job, index, targets, sources, rows)
    for scope, exact in scope_norms(job, index, targets, sources, tile):
        sampled = norms[scope][index, targets, sources].T  # (j, i)
        size = exact.square().sum().clamp_min(torch.finfo(exact.dtype).tiny)
        errors.append(((sampled - exact).square().sum() / size).sqrt())
    # NaN must not pass as a small error.
    return torch.stack(errors).max().nan_to_num(nan=float("inf"), posinf=float("inf"))


# Sources of another sequence, cut into blocks as long as the targets: the kernels know squares.
#
# The fused kernels take sequences with as many sources as targets. The n targets of a sequence and
# its k sources become ⌈k/n⌉ sequences, each with the same targets and n of the sources; what is
# missing of the last block has no weight. Norms are put together again, and sums over sources
# added.


@dataclass(frozen=True)
class Squares:
    """How the sources of a batch are cut."""

    n: int  # targets, with padding
    sources: int  # with padding
    blocks: int  # of each sequence's sources
    #: the length of each block: that of its targets, or of its sources where these are more
    block_lengths: list[int]

    @classmethod
    def of(cls, factors: Factors, lengths: Sequence[int]) -> Squares:
        """How parts of sequences with so many targets are cut."""
        _, sources, n, _ = factors.weights.shape
        blocks = -(-sources // n)
        real = (sources,) * len(lengths) if factors.lengths is None else factors.lengths
        block_lengths = [
            max(targets, min(n, count - block * n))
            for targets, count in zip(lengths, real, strict=True)
            for block in range(blocks)
        ]
        return cls(n, sources, blocks, block_lengths)

    def factors(self, given: Factors, weights: Tensor | None = None) -> Factors:
        """The same parts, block by block; `weights` if theirs are cut already."""
        return replace(
            given,
            weights=self._cut(given.weights) if weights is None else weights,
            scale=self.repeated(given.scale),
            heads=self._cut(given.heads),
            reach=Reach(),
            source=None,
            lengths=None,
        )

    def job(self, job: FeedForwardJob) -> FeedForwardJob:
        """The same job, block by block; each block's parts have their own sum."""
        factors = self.factors(job.factors)
        tail: list[TailStep] = []
        for step in job.tail:
            if isinstance(step, Normalise):
                inverse = self.repeated(step.step.inverse_deviation)
                tail.append(replace(step, step=replace(step.step, inverse_deviation=inverse)))
                continue
            bypassed = step.factors
            if bypassed is not None:  # the kernels read one set of weights for both
                same = bypassed.weights is job.factors.weights
                bypassed = self.factors(bypassed, factors.weights if same else None)
            tail.append(AddBypass(step.scope, bypassed, self.repeated(step.own)))
        slopes = tuple(map(self.repeated, job.slopes))
        output = None if job.output is None else self.repeated(job.output)
        cut = replace(job, factors=factors, slopes=slopes, tail=tuple(tail), output=output)
        return replace(cut, mixed=cut.sum_behind_block())

    def norms(self, blocks: Tensor) -> Tensor:
        """Norms (b · blocks, i, j) of the blocks as (b, i, j) of all sources."""
        joined = blocks.unflatten(0, (-1, self.blocks)).transpose(1, 2).flatten(2)
        return joined[..., : self.sources]

    def joined(self, pairs: PairNorms) -> PairNorms:
        """The result of the blocks' job as that of the job that was cut."""
        norms = {scope: self.norms(norms) for scope, norms in pairs.norms.items()}
        mixed = pairs.mixed.unflatten(0, (-1, self.blocks)).sum(1)
        return PairNorms(norms, mixed, pairs.error)

    def repeated(self, of_targets: Tensor) -> Tensor:
        """What belongs to targets, (b, i, …), once for each block."""
        return of_targets.repeat_interleave(self.blocks, dim=0)

    def _cut(self, of_sources: Tensor) -> Tensor:
        """What belongs to sources, (b, j, …, …), in blocks, (b · blocks, j, …, …)."""
        missing = self.blocks * self.n - self.sources
        padded = F.pad(of_sources, (0, 0, 0, 0, 0, missing))
        return padded.unflatten(1, (self.blocks, self.n)).flatten(0, 1)


# The choice between PyTorch and the fused kernels for the norms of pairs, made only here.
#
# The kernels run on CUDA, where Triton is installed and they support the layer. In every other
# case `parts` and `tiles` compute the norms by PyTorch, in the precision of the weights. Experts
# have no kernels: each target has its own weights.


#: The fastest precision whose error cannot change a Spearman's ρ at three decimals
#: (docs/performance.md).
DEFAULT_PRECISION = "float32"


def run_feed_forward(
    job: StageJob, lengths: Sequence[int], precision: str, memory_limit: int | None
) -> tuple[PairNorms, str]:
    """The norms behind the block, and the precision of their products."""
    if (
        not isinstance(job, FeedForwardJob)
        or not has_kernels(job.ff.down.weight)
        or tail_of(job) is None  # steps behind the block that the kernels do not know
    ):
        norms = feed_forward_norms(job, lengths, memory_limit)
        return norms, str(job.factors.scale.dtype).removeprefix("torch.")
    from normlens.gpu.feed_forward import fused_norms

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
    from normlens.gpu.rows import fused_factored_norms

    if factors.source is not None:
        squares = Squares.of(factors, lengths)
        cut = fused_factored_norms(squares.factors(factors), squares.block_lengths)
        return squares.norms(cut)
    return fused_factored_norms(factors, lengths)


def has_kernels(weight: Tensor) -> bool:
    """Whether kernels can work with this weight's device and dtype."""
    return kernels_run_on(weight.device, weight.dtype)


# From factored parts to the norms behind the feed-forward block and the steps that follow it.
#
# Behind the nonlinearity parts no longer factor, so they exist only inside tiles or kernels, and
# only norms and sums come out.


@dataclass(frozen=True)
class StageResult:
    """The norms and sums behind the block, and their errors."""

    sums: Parts  # just behind the block, without factors
    norms: dict[str, Tensor]  # scope → (b, i, j), of the block and of every step behind it
    precision: str | None = None  # of the products; None: sampled
    #: errors of the kernels' parts: of their sum, and of a sample of their norms
    kernel_error: Tensor | None = None
    sampled_error: Tensor | None = None
    standard_error: dict[str, Tensor] = field(default_factory=dict)  # Shapley only


def feed_forward_stage(
    block: FrozenBlock,
    parts: Parts,
    bias: Tensor | None,
    jobs: Sequence[StageJob],
    lengths: Sequence[int],
    settings: Settings,
) -> StageResult:
    """Norms of all parts behind the block, and sums of the parts; a job for each group of sources.

    Tiles sum the mixed vectors from their parts. The fused kernels give no vectors; there the mixed
    vector is the real output without diagonal and `bias`, and the kernels' parts are compared with
    it.
    """
    groups = parts.groups
    if isinstance(block, SampledFeedForward):
        sampled = shapley_norms(
            [job for job in jobs if isinstance(job, FeedForwardJob)], parts, lengths, settings
        )
        norms = _joined(sampled.norms, groups)
        spread = _joined(sampled.standard_error, groups, math.nan)
        sums = Parts(sampled.diagonal, sampled.bias, sampled.mixed)
        return StageResult(sums, norms, standard_error=spread)
    own = block.linear(parts.own)
    results, samples = [], []
    for job in jobs:
        if len(jobs) > 1:  # products are kept of the first attention, and of all its parts' norms
            job = replace(job, kept=None)
        elif job.output is not None:
            job = replace(job, mixed=job.output - own if bias is None else job.output - own - bias)
        group, precision = run_feed_forward(job, lengths, settings.precision, settings.memory_limit)
        results.append(group)
        if isinstance(job, FeedForwardJob) and group.error is not None and settings.sample_kernels:
            samples.append(sampled_error(job, lengths, group.norms))
    mixed = results[0].mixed
    for group in results[1:]:
        mixed = mixed + group.mixed
    norms = _joined([group.norms for group in results], groups)
    error = _largest([group.error for group in results if group.error is not None])
    return StageResult(Parts(own, bias, mixed), norms, precision, error, _largest(samples))


def _joined(
    norms: Sequence[Mapping[str, Tensor]], groups: Sequence[Factors], fill: float = 0
) -> dict[str, Tensor]:
    """Each scope's map of all groups of sources, side by side."""
    return {
        scope: side_by_side([group[scope] for group in norms], groups, fill) for scope in norms[0]
    }


def _largest(errors: Sequence[Tensor]) -> Tensor | None:
    """The largest of the groups' errors; None if nothing was compared."""
    return torch.stack(list(errors)).amax() if errors else None
