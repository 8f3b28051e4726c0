"""From factored parts to the norms behind the feed-forward block and the steps that follow it.

Behind the nonlinearity parts no longer factor, so they exist only inside tiles or kernels, and only
norms and sums come out. This module assembles their inputs for each group of sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from normlens.decomposition.buffers import Buffers
from normlens.decomposition.engine import run_feed_forward
from normlens.decomposition.experts import FrozenExperts
from normlens.decomposition.feedforward import FrozenFeedForward, SampledFeedForward
from normlens.decomposition.feedforward_job import (
    AddBypass,
    ExpertsJob,
    FeedForwardJob,
    Normalise,
    TailStep,
)
from normlens.decomposition.head_products import KeptProducts
from normlens.decomposition.norm import FrozenNorm
from normlens.decomposition.parts import Bias, Factors, Parts, side_by_side
from normlens.decomposition.residual import FrozenResidual
from normlens.decomposition.sample import sampled_error
from normlens.decomposition.settings import Settings
from normlens.decomposition.shapley import shapley_norms


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
