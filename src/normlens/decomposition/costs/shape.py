"""The sizes that decide what a feed-forward stage costs."""

from __future__ import annotations

from dataclasses import dataclass

from normlens.components import FeedForward, Reach
from normlens.decomposition.rules import projections


@dataclass(frozen=True)
class Shape:
    """The sizes of one layer's feed-forward stage, for one sequence or a batch of them."""

    n: int  # targets
    pairs: int  # allowed (target, source) pairs
    d: int
    m: int
    heads: int
    projections: int  # k: 2 in a gated block, 1 in others
    itemsize: int = 4  # bytes of a number
    sources: int | None = None  # None: as many as targets

    @classmethod
    def of_block(
        cls,
        ff: FeedForward,
        heads: int,
        reach: Reach,
        n: int,
        itemsize: int,
        sources: int | None = None,
    ) -> Shape:
        """The shape of a sequence of n targets.

        `sources` counts the tokens of another sequence, all of which every target sees.
        """
        d, m = ff.up.weight.shape
        pairs = reach.pairs(n) if sources is None else n * sources
        return cls(n, pairs, d, m, heads, len(projections(ff)), itemsize, sources)

    @property
    def source_count(self) -> int:
        return self.n if self.sources is None else self.sources
