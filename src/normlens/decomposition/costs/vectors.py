"""Whole vectors: which sources pass a layer together, and which pass the model together.

A chunk of sources is one product with each weight. A group of chunks is held in memory from layer
to layer, so that each layer is frozen once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normlens.components import Experts, FeedForward, Layer, ParallelFeedForward
from normlens.decomposition.rules import projections

#: Vectors that a product should have to make reading the weights worth it; more are not faster.
ROWS = 1024
#: Chunks that a causal text is cut into at least: each computes the targets of its first source on.
CAUSAL_CHUNKS = 8
#: Copies of a chunk's vectors while they pass a layer: saved for the residual connections, laid out
#: by head, mixed, and written.
COPIES = 8

Chunk = tuple[int, int]  # the first source, and how many


@dataclass(frozen=True)
class VectorSizes:
    """What the memory of whole vectors depends on."""

    n: int
    batch: int
    d: int
    neurons: int  # of a feed-forward block, those of every input projection
    itemsize: int

    @classmethod
    def of(cls, layers: Sequence[Layer], batch: int, n: int, itemsize: int) -> VectorSizes:
        """The sizes of a batch's vectors in these layers, the widest of which decides."""
        blocks: list[FeedForward] = []
        for step in (step for layer in layers for step in layer.steps):
            if isinstance(step, FeedForward):
                blocks.append(step)
            elif isinstance(step, ParallelFeedForward):
                blocks.append(step.feed_forward)
            elif isinstance(step, Experts):  # which pass one after the other
                blocks += step.examples
        neurons = max((sum(w.shape[1] for w in projections(block)) for block in blocks), default=0)
        return cls(n, batch, layers[0].width, neurons, itemsize)

    @property
    def kept(self) -> int:
        """Bytes of one source's vectors."""
        return self.batch * self.n * self.d * self.itemsize

    @property
    def passing(self) -> int:
        """Bytes that one source takes while it passes a layer."""
        return COPIES * self.kept + self.batch * self.n * self.neurons * self.itemsize

    @property
    def least(self) -> int:
        """The smallest limit under which one source after the other can pass."""
        return 2 * self.passing


def chunk_sources(sizes: VectorSizes, limit: int, causal: bool) -> int:
    """How many sources pass a layer together: half of the limit is theirs."""
    worth = -(-ROWS // (sizes.batch * sizes.n))
    if causal:
        worth = min(worth, -(-sizes.n // CAUSAL_CHUNKS))
    return max(1, min(worth, limit // (2 * sizes.passing), sizes.n))


def group_sources(
    sizes: VectorSizes, limit: int, causal: bool, sources: int | None = None
) -> list[list[Chunk]]:
    """All sources in chunks, in groups of which the other half of the limit holds one.

    There are as many `sources` as targets, or fewer.
    """
    count = chunk_sources(sizes, limit, causal)
    every = sizes.n if sources is None else sources
    groups: list[list[Chunk]] = []
    held = limit
    for first in range(0, every, count):
        size = min(count, every - first)
        targets = sizes.n - first if causal else sizes.n
        needed = size * sizes.kept * targets // sizes.n
        if held + needed > limit // 2 or not groups:
            groups.append([])
            held = 0
        groups[-1].append((first, size))
        held += needed
    return groups
