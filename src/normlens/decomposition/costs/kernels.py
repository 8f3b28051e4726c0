"""The feed-forward stage by GPU kernels: by source, or matrices.

Operations of the matrix units and bytes that move, for `pairs` allowed (target, source) pairs, k
input projections and H heads; an item is an operand's element, and a product of split operands
counts three:

    by source   pairs · 2m(d + kH)
    matrices    tokens · 2d²m + pairs · 2d²  and  pairs · 2d items stored

What is stored (parts at the block's input, bypassed parts) is written and read again.
"""

from __future__ import annotations

from dataclasses import dataclass

from normlens.decomposition.costs.shape import Shape
from normlens.decomposition.fused.precision import Precision
from normlens.decomposition.fused.tiling import aligned, block_of_heads

# Fitted to an H200 (docs/performance.md): operations of the matrix units while a byte is stored and
# read again, and those that the extra launches are worth.
STORED_BYTE, LAUNCHES = 800.0, 5e10


@dataclass(frozen=True)
class KernelCosts:
    """The cost of each method for a whole batch, in operations."""

    shape: Shape  # n: real tokens of the batch, pairs: of all its sequences
    precision: Precision

    @property
    def by_source(self) -> int:
        """``pairs · 2m(d + kH)``: rows are mixed and multiplied by W_down in one kernel."""
        shape = self.shape
        mixed = shape.projections * block_of_heads(shape.heads)
        return self.precision.products * shape.pairs * 2 * aligned(shape.m) * (shape.d + mixed)

    @property
    def matrix_operations(self) -> int:
        """``tokens · 2d²m + pairs · 2d²``: a matrix per target, and a product per pair."""
        shape = self.shape
        products = shape.n * shape.d * aligned(shape.m) + shape.pairs * shape.d
        return self.precision.products * 2 * shape.d * products

    @property
    def matrices(self) -> float:
        """The operations, and storing each pair's part and bypassed part."""
        item = self.precision.itemsize
        stored = STORED_BYTE * item * self.shape.pairs * 2 * self.shape.d
        return LAUNCHES + self.matrix_operations + stored
