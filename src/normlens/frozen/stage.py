"""The stage behind the feed-forward block by GPU kernels: what they support and take.

The kernels run on CUDA, where Triton is installed and they support the layer. In every other case
`parts` and `tiles` compute the norms by PyTorch, in the precision of the weights. Experts have no
kernels: each target has its own weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normlens.frozen.activations import Linearised
from normlens.frozen.feedforward import FrozenFeedForward
from normlens.frozen.parts import Factors, FrozenNorm, Parts
from normlens.frozen.tiles import Job, PairNorms, scope_norms
from normlens.gpu.sizes import PRECISIONS as KERNEL_PRECISIONS
from normlens.gpu.sizes import Precision
from normlens.layers import Norm, Reach
from normlens.options import AUTO, AnalysisOptions

#: The fastest precision whose error cannot change a Spearman's ρ at three decimals
#: (docs/performance.md).
DEFAULT_PRECISION = "float32"


def kernel_precision(name: str) -> Precision:
    """The kernels' precision for a name that the user may give; "auto" is the default."""
    return KERNEL_PRECISIONS[DEFAULT_PRECISION if name == AUTO else name]


def stage_by_kernels(
    job: Job, lengths: Sequence[int], options: AnalysisOptions, sample: bool = True
) -> PairNorms:
    """The norms behind the block; sources of another sequence go through the kernels in blocks."""
    from normlens.gpu.feed_forward import fused_norms  # Triton is slow to import

    given = kernel_precision(options.precision).name, options.limit
    if job.factors.source is None:
        pairs = fused_norms(job, lengths, *given)
    else:
        squares = Squares.of(job.factors, lengths)
        pairs = squares.joined(fused_norms(squares.job(job), squares.block_lengths, *given))
    if not sample:
        return pairs
    pairs.errors["sample"] = sampled_error(job, lengths, pairs.norms)
    return pairs


def norms_by_kernel(factors: Factors, lengths: Sequence[int]) -> Tensor:
    """Norms (b, i, j) of factored parts before the block, 0 where i = j."""
    from normlens.gpu.rows import fused_factored_norms  # Triton is slow to import

    if factors.source is None:
        return fused_factored_norms(factors, lengths)
    squares = Squares.of(factors, lengths)
    return squares.norms(fused_factored_norms(squares.factors(factors), squares.block_lengths))


# The steps behind the feed-forward block that the kernels support, and the sums they keep.


@dataclass(frozen=True)
class Tail:
    """The steps behind the block, in an order that the kernels support: RES LN, RES, LN RES, LN."""

    bypass: Parts | None = None
    factors: Factors | None = None  # of `bypass`; None where only the diagonal is bypassed
    norm: FrozenNorm | None = None
    norm_first: bool = False


def is_supported(kinds: Sequence[type]) -> bool:
    """Whether the kernels support a tail of these kinds of steps: at most one of each."""
    return len(kinds) <= 2 and len(set(kinds)) == len(kinds)


def tail_of(job: Job) -> Tail | None:
    """The job's tail, or None if the kernels do not support it."""
    steps = list(job.tail.values())
    if not is_supported([type(step) for step in steps]):
        return None
    bypass = next((step for step in steps if isinstance(step, Parts)), None)
    norm = next((step for step in steps if isinstance(step, FrozenNorm)), None)
    factors = None if bypass is None else bypass.factors_of(job.factors.source)
    if factors is not None and factors.weights is not job.factors.weights:
        return None  # the kernels read one set of weights for both
    return Tail(bypass, factors, norm, norm is not None and norm is steps[0])


#: The sums of a pair that a kernel may keep, in the order of their slots: Σ v² of the ordinary
#: dimensions; Σ (γv)², Σ v and Σ γ²v of a norm; Σ u² behind the residual, and Σ γu if a norm stood
#: before it. Slot 0 is the pair's largest weight, 1 is Σ v² and 2 is Σ v just behind the block.
SLOTS = ("ORDINARY", "NORMED", "NORMED_MEAN", "NORMED_CROSS", "ADDED", "ADDED_CROSS")


def kernel_slots(
    ordinary: bool, norm: Norm | None, bypassed: bool, norm_first: bool
) -> dict[str, Any]:
    """The slot of each sum as a constant of a kernel; −1: not kept. "SLOTS" counts them."""
    centred = norm is not None and norm.centred
    kept = (
        ordinary,
        norm is not None,
        centred,
        centred,
        bypassed,
        bypassed and norm_first and centred,
    )
    slots, count = {}, 3
    for name, is_kept in zip(SLOTS, kept, strict=True):
        slots[name] = count if is_kept else -1
        count += is_kept
    return {"SLOTS": count, **slots}


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

    def job(self, job: Job) -> Job:
        """The same job, block by block; each block's parts have their own sum."""
        factors, block = self.factors(job.factors), job.block
        assert isinstance(block, FrozenFeedForward)
        tail: dict[str, FrozenNorm | Parts] = {}
        for scope, step in job.tail.items():
            if isinstance(step, FrozenNorm):
                inverse = self.repeated(step.inverse_deviation)
                tail[scope] = replace(step, inverse_deviation=inverse)
                continue
            bypassed, groups = step.factors_of(job.factors.source), tuple[Factors, ...]()
            if bypassed is not None:  # the kernels read one set of weights for both
                same = bypassed.weights is job.factors.weights
                groups = (self.factors(bypassed, factors.weights if same else None),)
            tail[scope] = Parts(self.repeated(step.own), groups=groups)
        slopes = tuple(map(self.repeated, block.neurons.slopes))
        neurons = Linearised(slopes, self.repeated(block.neurons.hidden), None)
        cut = FrozenFeedForward(block.ff, neurons)
        return replace(job, block=cut, factors=factors, tail=tail, mixed=None)

    def norms(self, blocks: Tensor) -> Tensor:
        """Norms (b · blocks, i, j) of the blocks as (b, i, j) of all sources."""
        joined = blocks.unflatten(0, (-1, self.blocks)).transpose(1, 2).flatten(2)
        return joined[..., : self.sources]

    def joined(self, pairs: PairNorms) -> PairNorms:
        """The result of the blocks' job as that of the job that was cut."""
        norms = {scope: self.norms(norms) for scope, norms in pairs.norms.items()}
        mixed = pairs.mixed.unflatten(0, (-1, self.blocks)).sum(1)
        return replace(pairs, norms=norms, mixed=mixed)

    def repeated(self, of_targets: Tensor) -> Tensor:
        """What belongs to targets, (b, i, …), once for each block."""
        return of_targets.repeat_interleave(self.blocks, dim=0)

    def _cut(self, of_sources: Tensor) -> Tensor:
        """What belongs to sources, (b, j, …, …), in blocks, (b · blocks, j, …, …)."""
        missing = self.blocks * self.n - self.sources
        padded = F.pad(of_sources, (0, 0, 0, 0, 0, missing))
        return padded.unflatten(1, (self.blocks, self.n)).flatten(0, 1)


# A few norms of the kernels, compared with a recomputation in float32.
#
# Comparing the sum of all parts (`Stage.norms`) does not notice errors of both signs that cancel;
# norms of single pairs do. The sample takes some fifteen short launches, about as long as the
# whole stage of a short text, so a lens takes it in its first and last layers only.


TARGETS = SOURCES = 4  # of the sample


def sampled_error(job: Job, lengths: Sequence[int], norms: Mapping[str, Tensor]) -> Tensor:
    """``√(Σ (‖part‖ − exact)² / Σ exact²)`` over sampled pairs, in the scope where it is largest.

    The sample lies in the longest sequence of the batch: targets from its second half, which see
    the most sources, and sources from all of it. The number stays on the device.
    """
    index = max(range(len(lengths)), key=lambda place: lengths[place])
    n, count = lengths[index], job.sources(index, lengths[index])
    targets = slice(n // 2, n, max(1, (n - n // 2) // TARGETS))
    sources = slice(0, count, max(1, count // SOURCES))
    values = torch.einsum("jhe,hed->jhd", job.factors.heads[index, sources], job.factors.basis)
    assert isinstance(job.block, FrozenFeedForward)
    rows = [values @ linear.weight for linear in job.block.ff.inputs]
    errors = []
    tile = job.block.tile(job, index, targets, sources, rows)
    for scope, exact in scope_norms(job, index, targets, sources, tile):
        sampled = norms[scope][index, targets, sources].T  # (j, i)
        size = exact.square().sum().clamp_min(torch.finfo(exact.dtype).tiny)
        errors.append(((sampled - exact).square().sum() / size).sqrt())
    # NaN must not pass as a small error.
    return torch.stack(errors).max().nan_to_num(nan=float("inf"), posinf=float("inf"))
