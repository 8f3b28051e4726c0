"""Sources of another sequence, cut into blocks as long as the targets: the kernels know squares.

The fused kernels take sequences with as many sources as targets. The n targets of a sequence and
its k sources become ⌈k/n⌉ sequences, each with the same targets and n of the sources; what is
missing of the last block has no weight. Norms are put together again, and sums over sources added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor

from normlens.components import Reach
from normlens.decomposition.feedforward_job import (
    AddBypass,
    FeedForwardJob,
    Normalise,
    PairNorms,
    TailStep,
)
from normlens.decomposition.parts import Factors


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
