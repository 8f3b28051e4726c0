"""From factored parts to the norms behind the feed-forward block, by tiles or by GPU kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from normlens.frozen.experts import FrozenExperts
from normlens.frozen.feedforward import FrozenFeedForward, SampledFeedForward
from normlens.frozen.head_products import KeptProducts
from normlens.frozen.norm import FrozenNorm, FrozenResidual
from normlens.frozen.parts import Bias, Factors, Parts, side_by_side
from normlens.frozen.rules import projections
from normlens.frozen.shapley import shapley_norms
from normlens.frozen.tiles import (
    AddBypass,
    Buffers,
    ExpertsJob,
    FeedForwardJob,
    Normalise,
    PairNorms,
    TailStep,
    feed_forward_norms,
    scope_norms,
    tail_of,
    tile_by_rows,
)
from normlens.gpu.sizes import PRECISIONS as KERNEL_PRECISIONS
from normlens.gpu.sizes import Precision
from normlens.layers import Reach
from normlens.options import AUTO, Settings
from normlens.plan.memory import kernels_run_on

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
    n = lengths[index]
    targets = _spread(n // 2, n, TARGETS)
    sources = _spread(0, job.sources(index, n), SOURCES)
    errors = []
    tile = tile_by_rows(job, index, targets, sources, _rows(job, index, sources))
    for scope, exact in scope_norms(job, index, targets, sources, tile):
        sampled = norms[scope][index, targets, sources].T  # (j, i)
        size = exact.square().sum().clamp_min(torch.finfo(exact.dtype).tiny)
        errors.append(((sampled - exact).square().sum() / size).sqrt())
    # NaN must not pass as a small error.
    return torch.stack(errors).max().nan_to_num(nan=float("inf"), posinf=float("inf"))


def _rows(job: FeedForwardJob, index: int, sources: slice) -> list[Tensor]:
    """``Q^k_jh = U_jh W_k`` of the sampled sources, each (j, h, m)."""
    values = torch.einsum("jhe,hed->jhd", job.factors.heads[index, sources], job.factors.basis)
    return [values @ w for w in projections(job.ff)]


def _spread(start: int, stop: int, count: int) -> slice:
    """About `count` positions between `start` and `stop`, evenly spread."""
    return slice(start, stop, max(1, (stop - start) // count))


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
    lengths: tuple[int, ...]  # of the targets
    source_lengths: tuple[int, ...]

    @classmethod
    def of(cls, factors: Factors, lengths: Sequence[int]) -> Squares:
        _, sources, n, _ = factors.weights.shape
        real = (sources,) * len(lengths) if factors.lengths is None else factors.lengths
        return cls(n, sources, tuple(lengths), real)

    @property
    def blocks(self) -> int:
        """Blocks of each sequence's sources."""
        return -(-self.sources // self.n)

    @property
    def block_lengths(self) -> list[int]:
        """The length of each block: that of its targets, or of its sources where these are more."""
        return [
            max(targets, min(self.n, sources - first))
            for targets, sources in zip(self.lengths, self.source_lengths, strict=True)
            for first in range(0, self.blocks * self.n, self.n)
        ]

    def factors(self, given: Factors) -> Factors:
        """The same parts, block by block."""
        return replace(
            given,
            weights=self._cut(given.weights),
            scale=self.repeated(given.scale),
            heads=self._cut(given.heads),
            reach=Reach(),
            source=None,
            lengths=None,
        )

    def job(self, job: FeedForwardJob) -> FeedForwardJob:
        """The same job, block by block; each block's parts have their own sum."""
        factors = self.factors(job.factors)
        tail = tuple(self._step(step, job.factors, factors) for step in job.tail)
        cut = replace(
            job,
            factors=factors,
            slopes=tuple(map(self.repeated, job.slopes)),
            tail=tail,
            output=None if job.output is None else self.repeated(job.output),
        )
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

    def _step(self, step: TailStep, given: Factors, cut: Factors) -> TailStep:
        if isinstance(step, Normalise):
            inverse = self.repeated(step.step.inverse_deviation)
            return replace(step, step=replace(step.step, inverse_deviation=inverse))
        bypassed = step.factors
        if bypassed is not None:
            same = bypassed.weights is given.weights
            bypassed = self.factors(bypassed)
            # The kernels read one set of weights for both.
            bypassed = replace(bypassed, weights=cut.weights) if same else bypassed
        return AddBypass(step.scope, bypassed, self.repeated(step.own))


# The choice between PyTorch and the fused kernels for the norms of pairs, made only here.
#
# The kernels run on CUDA, where Triton is installed and they support the layer. In every other
# case `parts` and `tiles` compute the norms by PyTorch, in the precision of the weights. Experts
# have no kernels: each target has its own weights.


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
    from normlens.gpu.choice import fused_norms

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
    from normlens.gpu.operands import fused_factored_norms

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
# only norms and sums come out. This module assembles their inputs for each group of sources.


class Behind(NamedTuple):
    """A step behind the feed-forward block, with its position and scope."""

    position: int  # among the layer's steps
    scope: str
    step: FrozenNorm | FrozenResidual
    saved: Parts | None = None  # the parts that a residual adds


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
    block: FrozenFeedForward | FrozenExperts | SampledFeedForward,
    parts: Parts,
    scope: str,
    tail: Sequence[Behind],
    lengths: Sequence[int],
    settings: Settings,
    kept: KeptProducts | None = None,
    buffers: Buffers | None = None,
    ordinary: Tensor | None = None,
) -> StageResult:
    """Norms of all parts behind the block, and sums of the parts.

    Tiles sum the mixed vectors from their parts. The fused kernels give no vectors; there the mixed
    vector is the real output without diagonal and bias, and the kernels' parts are compared with
    it. `kept` are products of the layer's weights, `buffers` the memory that layers share for their
    tiles, and `ordinary` the dimensions of one more map.
    """
    if isinstance(block, SampledFeedForward):
        return _sampled(block, parts, scope, tail, lengths, settings, ordinary)
    own, bias, output = block.linear(parts.own), block.outgoing, block.output
    alone = len(parts.groups) == 1
    results, sampled = [], []
    for factors in parts.groups:
        steps, memory = _tail_of_group(tail, factors), buffers or Buffers()
        job: FeedForwardJob | ExpertsJob
        if isinstance(block, FrozenExperts):
            job = ExpertsJob(scope, factors, steps, memory, ordinary, block=block)
        else:
            job = FeedForwardJob(
                scope,
                factors,
                steps,
                memory,
                ordinary,
                ff=block.ff,
                slopes=block.neurons.slopes,
                # They are of the first attention, and of the norms that all its parts pass.
                kept=kept if alone else None,
                output=output,
                mixed=output - own - bias.vectors if alone else None,
            )
        group, precision = run_feed_forward(job, lengths, settings.precision, settings.memory_limit)
        results.append(group)
        if isinstance(job, FeedForwardJob) and group.error is not None and settings.sample_kernels:
            sampled.append(sampled_error(job, lengths, group.norms))
    mixed = results[0].mixed
    if len(results) > 1:
        mixed = torch.stack([group.mixed for group in results]).sum(0)
    norms = {
        name: side_by_side([group.norms[name] for group in results], parts.groups)
        for name in results[0].norms
    }
    errors = [group.error for group in results if group.error is not None]
    return StageResult(
        Parts(own, bias, mixed), norms, precision, _largest(errors), _largest(sampled)
    )


def _largest(errors: Sequence[Tensor]) -> Tensor | None:
    """The largest of the groups' errors; None if nothing was compared."""
    return torch.stack(list(errors)).amax() if errors else None


def _sampled(
    block: SampledFeedForward,
    parts: Parts,
    scope: str,
    tail: Sequence[Behind],
    lengths: Sequence[int],
    settings: Settings,
    ordinary: Tensor | None,
) -> StageResult:
    jobs = [
        FeedForwardJob(
            scope,
            factors,
            _tail_of_group(tail, factors),
            ordinary=ordinary,
            ff=block.ff,
            slopes=(),
        )
        for factors in parts.groups
    ]
    sampled = shapley_norms(
        jobs, parts, lengths, settings.samples, settings.seed, settings.memory_limit
    )
    sums = Parts(sampled.diagonal, Bias.dense(sampled.bias), sampled.mixed)
    norms, errors = (
        {
            name: side_by_side([group[name] for group in groups], parts.groups, fill)
            for name in groups[0]
        }
        for groups, fill in ((sampled.norms, 0.0), (sampled.standard_error, math.nan))
    )
    return StageResult(sums, norms, standard_error=errors)


def _tail_of_group(tail: Sequence[Behind], factors: Factors) -> tuple[TailStep, ...]:
    """The steps behind the block, for one group of sources."""
    steps: list[TailStep] = []
    for behind in tail:
        if isinstance(behind.step, FrozenNorm):
            steps.append(Normalise(behind.scope, behind.step))
        else:
            assert behind.saved is not None
            same = [group for group in behind.saved.groups if group.source == factors.source]
            steps.append(AddBypass(behind.scope, same[0] if same else None, behind.saved.own))
    return tuple(steps)
