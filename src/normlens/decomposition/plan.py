"""Which way through the feed-forward stage: the cheapest by `costs`, in pieces that fit.

PyTorch takes tiles or one matrix per target, sequence by sequence (`choose_plan`); the kernels of
a GPU take one of their ways for a whole batch (`choose_way`).
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


@dataclass(frozen=True)
class Plan:
    """Sizes of one tile and the method that fills it."""

    method: str  # `TILES` or `MATRICES`
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
    """Targets whose players are sampled at once.

    As many as the plan's tiles have, fewer where all their players do not fit; `scopes` counts
    those from the feed-forward block on.
    """
    targets = choose_plan(shape, limit).targets
    if limit is None:
        return targets
    return max(1, min(targets, limit // player_memory(shape, scopes)))


@dataclass(frozen=True)
class KernelPlan:
    """The way that the kernels take through a batch."""

    method: str  # `BY_SOURCE` or `MATRICES`
    #: whether leaving out silent neurons costs less if there are enough, which the input decides
    may_gather: bool = False


def choose_way(costs: KernelCosts, *, silent: bool, paths: bool) -> KernelPlan:
    """The cheapest way that needs no look at the input, and whether one is worth it.

    Neurons are gathered where the activation has `silent` ones and each head has `paths` to them.
    """
    least = min(costs.by_source, costs.matrices)
    method = MATRICES if costs.matrices < costs.by_source else BY_SOURCE
    return KernelPlan(method, silent and paths and costs.gather(0) < least)


def gathers(costs: KernelCosts, share: float) -> bool:
    """Whether gathering this share of the neurons is the cheapest way."""
    return costs.gather(share) < min(costs.by_source, costs.matrices)
