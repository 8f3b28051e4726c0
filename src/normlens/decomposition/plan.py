"""The plan for a feed-forward stage: the cheapest method by `costs`, in pieces that fit.

PyTorch takes tiles or one matrix per target, sequence by sequence (`choose_plan`); the kernels of
a GPU take one of their methods for a whole batch (`choose_kernel_plan`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from normlens.decomposition.costs.kernels import KernelCosts
from normlens.decomposition.costs.shape import Shape
from normlens.decomposition.costs.tiles import (
    MATRICES,
    TILES,
    cheaper_method,
    player_memory,
    tile_memory,
)

# Rows of one tile: enough for the matrix product to run at full speed, small enough that the
# mixed rows are still in the cache when it reads them.
SOURCES = 128
TARGETS = 16
MATRIX_TARGETS = 4

BY_SOURCE = "by source"
VECTORS = "vectors"


@dataclass(frozen=True)
class Plan:
    """The method of the PyTorch stage and the sizes of its tiles."""

    method: str  # `TILES` or `MATRICES`; `VECTORS`: parts as vectors (`decomposition.by_source`)
    sources: int
    targets: int

    def memory(self, shape: Shape) -> int:
        """Bytes of the largest intermediate tensors of one tile."""
        return tile_memory(shape, self.method, self.sources, self.targets)

    def halved(self) -> Plan | None:
        """The next smaller plan, or None if this is the smallest."""
        if self.targets > 1:
            return replace(self, targets=self.targets // 2)
        if self.sources > 1:
            return replace(self, sources=self.sources // 2)
        return None


def choose_plan(shape: Shape, limit: int | None) -> Plan:
    """The cheaper method, in the largest standard tile that fits `limit` bytes.

    A tile never covers all pairs of a sequence, so that no tensor of n×n×m elements exists
    however short the sequence is.
    """
    half = max(1, shape.n // 2)
    if cheaper_method(shape) == MATRICES:
        plan = Plan(MATRICES, shape.source_count, min(MATRIX_TARGETS, half))
    else:
        plan = Plan(TILES, min(SOURCES, shape.source_count), min(TARGETS, half))
    while limit is not None and plan.memory(shape) > limit:
        smaller = plan.halved()
        if smaller is None:
            break
        plan = smaller
    return plan


def sampled_targets(shape: Shape, scopes: int, limit: int | None) -> int:
    """How many targets the Shapley rule samples at once.

    As many as the plan's tiles have, or fewer where all their players do not fit; `scopes` counts
    those from the feed-forward block on.
    """
    targets = choose_plan(shape, limit).targets
    if limit is None:
        return targets
    return max(1, min(targets, limit // player_memory(shape, scopes)))


@dataclass(frozen=True)
class KernelPlan:
    """The method that the kernels take for a batch."""

    method: str  # `BY_SOURCE` or `MATRICES`


def choose_kernel_plan(costs: KernelCosts) -> KernelPlan:
    """The cheapest method by sizes alone."""
    return KernelPlan(MATRICES if costs.matrices < costs.by_source else BY_SOURCE)
