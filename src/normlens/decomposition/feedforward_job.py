"""The job of the stage behind the feed-forward block, and its result.

A job is one group of sources at one layer's block, with the steps that follow. Tiles (`tiles`), the
fused kernels (`fused`) and the Shapley rule (`shapley`) all take a job and return norms of pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from normlens.components import FeedForward, Reach
from normlens.decomposition.buffers import Buffers
from normlens.decomposition.costs.shape import Shape
from normlens.decomposition.experts import FrozenExperts
from normlens.decomposition.head_products import KeptProducts
from normlens.decomposition.norm import FrozenNorm
from normlens.decomposition.parts import Factors
from normlens.decomposition.rules import projections
from normlens.matmul import times

#: Name of the map just behind the block that leaves out special dimensions.
ORDINARY = "ordinary"


@dataclass(frozen=True)
class AddBypass:
    """RES behind the block: add the parts that this group of sources had at the branching point."""

    scope: str
    factors: Factors | None  # None: this group has no bypassed parts off the diagonal
    own: Tensor  # (b, i, d), the bypassed part of the token itself


@dataclass(frozen=True)
class Normalise:
    """LN behind the block."""

    scope: str
    step: FrozenNorm


TailStep = AddBypass | Normalise


@dataclass(frozen=True)
class StageJob:
    """One group of sources at the feed-forward block of one layer, and the steps behind it."""

    scope: str
    factors: Factors  # the group's parts at the block's input
    tail: tuple[TailStep, ...]
    buffers: Buffers = field(default_factory=Buffers)
    #: dimensions of the block's output in one more map, `ORDINARY`
    ordinary: Tensor | None = None

    @property
    def reach(self) -> Reach:
        return self.factors.reach

    @property
    def scopes(self) -> list[str]:
        ordinary = [] if self.ordinary is None else [ORDINARY]
        return [self.scope, *ordinary, *(step.scope for step in self.tail)]

    def sources(self, index: int, targets: int) -> int:
        """The number of sources of the sequence at `index`, which has so many targets."""
        return targets if self.factors.lengths is None else self.factors.lengths[index]


@dataclass(frozen=True, kw_only=True)
class FeedForwardJob(StageJob):
    """The job of a block that is the same for all targets."""

    ff: FeedForward
    slopes: tuple[Tensor, ...]  # r^k (b, i, m); empty where the rule has none
    kept: KeptProducts | None = None  # products of this layer's weights, if there are any
    #: the block's real output (b, i, d), and where it follows from that, the output without
    #: diagonal and bias: Σ_{j≠i} of the parts behind the block
    output: Tensor | None = None
    mixed: Tensor | None = None

    def sum_behind_block(self) -> Tensor:
        """``Σ_j`` of the group's parts just behind the block, (b, i, d), without its parts."""
        v = self.factors.sum_of_sources()
        hidden = sum(
            times(v, w) * slope for w, slope in zip(projections(self.ff), self.slopes, strict=True)
        )
        assert isinstance(hidden, Tensor)
        return times(hidden, self.ff.down.weight)

    def shape(self, targets: int, sources: int | None = None) -> Shape:
        """The sizes of a sequence with so many targets, and perhaps other `sources`."""
        return Shape.of_block(
            self.ff,
            self.factors.weights.shape[-1],
            self.reach,
            targets,
            self.ff.up.weight.element_size(),
            None if self.factors.source is None else sources,
        )


@dataclass(frozen=True, kw_only=True)
class ExpertsJob(StageJob):
    """The job of a mixture of experts, of which each target has its own."""

    block: FrozenExperts

    def shape(self, targets: int, sources: int | None = None) -> Shape:
        """The sizes of a sequence with so many targets, and perhaps other `sources`."""
        return Shape.of_block(
            self.block.experts,
            self.factors.weights.shape[-1],
            self.reach,
            targets,
            self.factors.scale.element_size(),
            None if self.factors.source is None else sources,
        )


@dataclass
class PairNorms:
    """The result of a job: off-diagonal norms per scope, and the sum of the block's parts."""

    norms: dict[str, Tensor]  # scope → (b, i, j), 0 where i = j
    mixed: Tensor  # (b, i, d), Σ_{j≠i} of the parts just behind the block
    #: relative error of the parts' sum against `mixed`; None where `mixed` was summed from them
    error: Tensor | None = None
