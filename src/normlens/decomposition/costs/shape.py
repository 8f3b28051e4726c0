"""The sizes that decide what a feed-forward stage costs."""

from __future__ import annotations

from dataclasses import dataclass

from normlens.components import Experts, FeedForward, Reach
from normlens.decomposition.rules import projections


@dataclass(frozen=True)
class Shape:
    """The sizes of one layer's feed-forward stage, for one sequence or a batch of them."""

    n: int  # targets
    pairs: int  # allowed (target, source) pairs
    d: int
    m: int  # neurons that a target uses
    heads: int
    projections: int  # k: 2 in a gated block, 1 in others
    itemsize: int = 4  # bytes of a number
    sources: int | None = None  # None: as many as targets
    widest: int | None = None  # neurons of the largest expert; None: all targets use one block

    @classmethod
    def of_block(
        cls,
        ff: FeedForward | Experts,
        heads: int,
        reach: Reach,
        n: int,
        itemsize: int,
        sources: int | None = None,
    ) -> Shape:
        """The shape of a sequence of n targets.

        `sources` counts the tokens of another sequence, all of which every target sees.
        """
        pairs = reach.pairs(n) if sources is None else n * sources
        block = ff.members[0] if isinstance(ff, Experts) else ff
        d, m = block.up.weight.shape
        count = len(projections(block))
        if isinstance(ff, Experts):
            return cls(n, pairs, d, ff.active, heads, count, itemsize, sources, ff.widest)
        return cls(n, pairs, d, m, heads, count, itemsize, sources)

    @property
    def source_count(self) -> int:
        return self.n if self.sources is None else self.sources
