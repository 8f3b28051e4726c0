"""Memory of the GPU kernels: sums, operands, and intermediates in pieces that fit.

An item is one element of an operand; M and W are the padded numbers of neurons and dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

from normlens.decomposition.costs.head_products import head_product_elements
from normlens.decomposition.costs.hidden_rows import HiddenRows, Text
from normlens.decomposition.costs.shape import Shape
from normlens.decomposition.fused.precision import Precision
from normlens.decomposition.fused.tiling import (
    TargetTiling,
    Tiling,
    aligned,
    sources_at_once,
)

#: The most bytes of one kind of intermediate; more would make no launch faster.
CHUNK_BYTES = 256 << 20


def chunk_limit(memory_limit: int | None) -> int:
    """Bytes that one kind of intermediate may take under a memory limit."""
    return min(memory_limit or CHUNK_BYTES, CHUNK_BYTES)


# Pieces of each method --------------------------------------------------------------------------


def source_row_bytes(heads: int, m: int, projections: int, itemsize: int) -> int:
    """Bytes of one source's rows Q (k, H, M)."""
    return projections * heads * m * itemsize


def value_bytes(heads: int, d: int) -> int:
    """Bytes of one source's vectors U (H, d)."""
    return 4 * heads * d


def hidden_row_bytes(m: int, itemsize: int) -> int:
    """Bytes of one pair's hidden row (M,)."""
    return m * itemsize


def at_once(limit: int, size: int) -> int:
    """How many pieces of `size` bytes fit into `limit`; at least one."""
    return max(1, limit // size)


@dataclass(frozen=True)
class TargetPieces:
    """How the method target by target cuts targets and sources into launches."""

    tiling: TargetTiling
    n: int
    pair_bytes: int  # of the left operand, and of the bypassed part

    @property
    def least_bytes(self) -> int:
        """Bytes of one tile of targets with the fewest sources."""
        return self.tiling.tile * self.tiling.sources * self.pair_bytes

    def sources(self, limit: int) -> int:
        """The number of sources in a launch, so that a tile of targets fits."""
        most = limit // (self.tiling.tile * self.pair_bytes)
        if most >= self.n:
            return self.n
        return min(self.n, max(1, most // self.tiling.sources) * self.tiling.sources)

    def tiles(self, limit: int, sources: int) -> int:
        """The number of tiles of targets in a launch."""
        return at_once(limit, sources * self.tiling.tile * self.pair_bytes)


def pair_bytes(capacity: int, bypassed: int, itemsize: int) -> int:
    """Bytes of a pair: the columns of its left operand and of its bypassed part."""
    return itemsize * (capacity + bypassed)


def matrix_tile_bytes(tile: int, d: int, width: int, itemsize: int) -> int:
    """Bytes of the matrices M_i (d, W) of one tile of targets."""
    return tile * itemsize * d * width


def scaled_bytes(d: int, m: int, products: int) -> int:
    """Bytes of one target's scaled projections (d, M), once for each product."""
    return 2 * products * d * m


# A whole stage ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelMemory:
    """Bytes that the stage of `batch` sequences takes beside its inputs and its norms."""

    shape: Shape  # of one sequence
    d_head: int
    batch: int
    precision: Precision
    slots: int  # sums per pair
    bypassed: bool
    head_products: bool  # whether rows come from head products B_h W_k
    memory_limit: int | None = None

    @property
    def _m(self) -> int:
        return aligned(self.shape.m)

    @property
    def _width(self) -> int:
        return aligned(self.shape.d)

    def sums(self, dims: int) -> int:
        """Sums (d blocks, slots, b, j, i) in float32."""
        blocks = -(-self._width // dims)
        return 4 * blocks * self.slots * self.batch * self.shape.n**2

    @property
    def by_source(self) -> int:
        """Sums, operands, rows of some sources, and their hidden rows where these are stored."""
        shape, item, limit = self.shape, self.precision.itemsize, chunk_limit(self.memory_limit)
        k, heads = shape.projections, shape.heads
        texts = [Text(shape.n, shape.pairs)] * self.batch
        stored = HiddenRows(texts, heads, k, shape.d, self._m, self.precision).stored
        rows = self.batch * shape.pairs if stored else shape.n
        tiling = Tiling.choose(rows, shape.d, self._m, self.precision, k > 1, stored)
        row = source_row_bytes(heads, self._m, k, item)
        sources = min(self.batch * shape.n, sources_at_once(limit, row))
        total = self.sums(tiling.dims) + self.operands(self.head_products) + sources * row
        if stored:
            block = tiling.targets * hidden_row_bytes(self._m, item)
            blocks = -(-min(self.batch * shape.pairs, sources * shape.n) // tiling.targets)
            total += min(blocks, at_once(limit, block)) * block
        return total

    @property
    def matrices(self) -> int:
        """Sums, operands; parts, matrices and scaled projections of some tiles of targets."""
        shape, item, limit = self.shape, self.precision.itemsize, chunk_limit(self.memory_limit)
        tiling = TargetTiling.choose(shape.d, self.precision.split)
        size = pair_bytes(self._width, self._width if self.bypassed else 0, item)
        pieces = TargetPieces(tiling, shape.n, size)
        sources = pieces.sources(limit)
        matrix = matrix_tile_bytes(tiling.tile, shape.d, self._width, item)
        all_tiles = self.batch * -(-shape.n // tiling.tile)
        tiles = min(all_tiles, pieces.tiles(limit, sources), at_once(limit, matrix))
        scaled = scaled_bytes(shape.d, self._m, self.precision.products)
        targets = min(tiles * tiling.tile, at_once(limit, scaled))
        # The product of the scaled projections is in float32 before it is rounded to operands.
        made = targets * (scaled + shape.d * self._width * (4 + item))
        parts = tiles * tiling.tile * sources * size
        down = self.precision.products * self._m * self._width * 2
        whole = self.sums(tiling.dims) + self.operands(head_products=False) + down
        return whole + tiles * matrix + max(parts, made)

    def operands(self, head_products: bool) -> int:
        """Slopes (b, i, k, M), W_down (M, W), and the head products or input projections."""
        shape, item = self.shape, self.precision.itemsize
        k = shape.projections
        slopes = self.batch * shape.n * self._m * k
        inputs = head_product_elements(shape.heads, self.d_head, self._m, k)
        if not head_products:
            inputs = k * shape.d * self._m
        return item * (slopes + self._m * self._width + inputs)
