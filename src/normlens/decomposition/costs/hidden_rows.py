"""Hidden rows of the method source by source: mixed anew by each program, or stored.

A kernel that mixes a row itself does so for each block of dimensions, and its block of rows has one
source, so with few targets most of it is empty. Rows that are stored are those of allowed pairs
alone, one behind the other; but they have to be written and read.

Costs are the dimensions that a processor multiplies rows into, program after program:

    anew     waves · targets · (dims + mixing)
    stored   waves · targets · dims  +  pairs · storing / processors
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normlens.decomposition.fused.precision import Precision
from normlens.decomposition.fused.tiling import LONGEST_SUM, PROCESSORS, Tiling, block_of_heads

#: Dimensions that take as long as mixing a row, for each head and projection, and as storing it, at
#: all and for each projection. Fitted to an H200 (docs/performance.md).
MIXING, STORING, STORING_EACH = 2, 100, 150


@dataclass(frozen=True)
class Text:
    """The size of one text."""

    tokens: int
    pairs: int  # that attention allows

    def blocks(self, targets: int) -> int:
        """Blocks of targets that have a pair, over all sources; for windows, about."""
        most = self.tokens * -(-self.tokens // targets)
        if 2 * self.pairs == self.tokens * (self.tokens + 1):  # causal: those before it have none
            whole, rest = divmod(self.tokens, targets)
            return most - targets * whole * (whole - 1) // 2 - whole * rest
        return min(most, self.pairs // targets + self.tokens)


@dataclass(frozen=True)
class HiddenRows:
    """The hidden rows of a batch; `m` is padded."""

    texts: Sequence[Text]
    heads: int
    projections: int
    d: int
    m: int
    precision: Precision

    @property
    def stored(self) -> bool:
        """Whether they are stored; longer sums need it to be exact."""
        too_long = self.precision.split and self.m > LONGEST_SUM
        return too_long or self.cost_of_storing < self.cost_of_mixing

    @property
    def pairs(self) -> int:
        return sum(text.pairs for text in self.texts)

    @property
    def cost_of_mixing(self) -> float:
        """The cost of mixing them anew for each block of dimensions, and of their products."""
        tiling = self._tiling(max(text.tokens for text in self.texts), stored=False)
        blocks = sum(text.blocks(tiling.targets) for text in self.texts)
        mixing = MIXING * self.projections * block_of_heads(self.heads)
        return tiling.waves(blocks, self.d) * tiling.targets * (tiling.dims + mixing)

    @property
    def cost_of_storing(self) -> float:
        """The cost of storing them, and of their products."""
        tiling = self._tiling(self.pairs, stored=True)
        blocks = -(-self.pairs // tiling.targets)
        storing = self.pairs * (STORING + STORING_EACH * self.projections)
        products = tiling.waves(blocks, self.d) * tiling.targets * tiling.dims
        return products + storing / PROCESSORS

    def _tiling(self, rows: int, stored: bool) -> Tiling:
        gated = self.projections > 1
        return Tiling.choose(rows, self.d, self.m, self.precision, gated, stored)
