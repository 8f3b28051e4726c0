"""Choose the cheapest method for a feed-forward stage within a memory limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from normlens.errors import MemoryLimitError
from normlens.frozen.network import source_memory
from normlens.layers import Layer
from normlens.plan.costs import (
    MATRICES,
    TILES,
    KernelCosts,
    Shape,
    VectorSizes,
    cheaper_method,
    least_memory,
    player_memory,
    tile_memory,
)
from normlens.scopes import components_of

# The plan for a feed-forward stage: the cheapest method by `costs`, in pieces that fit.
#
# PyTorch takes tiles or one matrix per target, sequence by sequence (`choose_plan`); the kernels
# of a GPU take one of their methods for a whole batch (`choose_kernel_plan`).


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

    method: str  # `TILES` or `MATRICES`; `VECTORS`: parts are followed as vectors
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


# The least memory limit of the feed-forward stage, checked before anything runs.
#
# A lower limit would be exceeded, or would force tiles of a few pairs, each of which reads all of
# W_down: a text of some hundred tokens would take hours.


_UNITS = (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10))


def check_limit(
    limit: int,
    layers: Iterable[Layer],
    lengths: Sequence[int],
    scopes: Iterable[str],
    rule: str,
    itemsize: int,
    others: Sequence[int] = (),
) -> None:
    """Raise unless a memory limit suffices for sequences of these lengths.

    `others` are the lengths of the other sequences that layers read, one for each. Without a scope
    behind the feed-forward block there are no tiles, so any limit does.
    """
    asked = [scope for scope in scopes if "FF" in components_of(scope)]
    needs = []
    for layer in layers:
        behind = sum(scope in layer.scopes for scope in asked)
        if layer.feed_forward is None or not behind:
            continue
        if layer.by_source:
            needs += [(source_memory(layer, 1, n, itemsize), n) for n in lengths]
            continue
        for attention in layer.attentions:
            ff, heads = layer.feed_forward, attention.heads
            sizes: set[tuple[int, int | None]] = {(n, None) for n in lengths}
            if attention.source is not None:
                sizes = {(n, k) for n, k in zip(lengths, others, strict=False)}
            for n, sources in sizes:
                shape = Shape.of_block(ff, heads, layer.reach, n, itemsize, sources)
                needs.append((least_memory(shape, rule, behind), n))
    least, n = max(needs, default=(0, 0))
    if limit < least:
        raise MemoryLimitError(
            f"the memory limit of {_size(limit)} is too low for {n} tokens: the feed-forward block "
            f"needs {_size(least)}; give that much (or leave the limit out), a shorter text, "
            "or only scopes before the block"
        )


def check_vectors_limit(
    limit: int, layers: Sequence[Layer], lengths: Sequence[int], itemsize: int
) -> None:
    """Raise unless a memory limit suffices for whole vectors in sequences of these lengths."""
    n = max(lengths, default=1)
    least = VectorSizes.of(layers, 1, n, itemsize).least
    if limit < least:
        raise MemoryLimitError(
            f"the memory limit of {_size(limit)} is too low for {n} tokens: the vectors of one "
            f"input token need {_size(least)}; give that much (or leave the limit out), or a "
            "shorter text"
        )


def _size(count: int) -> str:
    """Bytes in the form that `parse_bytes` reads, rounded up so that the size shown is enough."""
    for unit, size in _UNITS:
        if count >= size:
            return f"{math.ceil(10 * count / size) / 10:g}{unit}"
    return f"{count} bytes"
