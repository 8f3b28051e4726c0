"""Costs and memory of the GPU kernels' methods, and the choice among them.

Nothing here needs Triton: everything is a function of sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normlens.gpu import sizes
from normlens.plan.costs import MATRICES, Shape, head_product_elements, head_products_pay

# The feed-forward stage by GPU kernels: by source, or matrices.
#
# Operations of the matrix units and bytes that move, for `pairs` allowed (target, source) pairs, k
# input projections and H heads; an item is an operand's element, and a product of split operands
# counts three:
#
#     by source   pairs · 2m(d + kH)
#     matrices    tokens · 2d²m + pairs · 2d²  and  pairs · 2d items stored
#
# What is stored (parts at the block's input, bypassed parts) is written and read again.


BY_SOURCE = "by source"
# Fitted to an H200 (docs/performance.md): operations of the matrix units while a byte is stored and
# read again, and those that the extra launches are worth.
STORED_BYTE, LAUNCHES = 800.0, 5e10


# Hidden rows of the method source by source: mixed anew by each program, or stored.
#
# A kernel that mixes a row itself does so for each block of dimensions, and its block of rows has
# one source, so with few targets most of it is empty. Rows that are stored are those of allowed
# pairs alone, one behind the other; but they have to be written and read.
#
# Costs are the dimensions that a processor multiplies rows into, program after program:
#
#     anew     waves · targets · (dims + mixing)
#     stored   waves · targets · dims  +  pairs · storing / processors


#: Dimensions that take as long as mixing a row, for each head and projection, and as storing it, at
#: all and for each projection. Fitted to an H200 (docs/performance.md).
MIXING, STORING, STORING_EACH = 2, 100, 150

Text = tuple[int, int]  # its tokens, and the pairs that attention allows


def stores_hidden_rows(texts: Sequence[Text], shape: Shape, precision: sizes.Precision) -> bool:
    """Whether hidden rows are stored, by cost; longer sums need it to be exact."""
    mixing, storing = hidden_row_costs(texts, shape, precision)
    return storing < mixing or (precision.split and sizes.aligned(shape.m) > sizes.LONGEST_SUM)


def hidden_row_costs(
    texts: Sequence[Text], shape: Shape, precision: sizes.Precision
) -> tuple[float, float]:
    """The costs of mixing and of storing the hidden rows of some texts, with their products.

    Of the shape, what does not depend on the texts is read.
    """
    d, m, k = shape.d, sizes.aligned(shape.m), shape.projections
    tiling = sizes.Tiling.choose(max(n for n, _ in texts), d, m, precision, k > 1, False)
    blocks = sum(target_blocks(n, pairs, tiling.targets) for n, pairs in texts)
    mixing = tiling.dims + MIXING * k * sizes.block_of_heads(shape.heads)
    anew = tiling.waves(blocks, d) * tiling.targets * mixing
    pairs = sum(pairs for _, pairs in texts)
    tiling = sizes.Tiling.choose(pairs, d, m, precision, k > 1, True)
    products = tiling.waves(-(-pairs // tiling.targets), d) * tiling.targets * tiling.dims
    return anew, products + pairs * (STORING + STORING_EACH * k) / sizes.PROCESSORS


def target_blocks(n: int, pairs: int, targets: int) -> int:
    """Blocks of targets of a text that have a pair, over all sources; for windows, about."""
    most = n * -(-n // targets)
    if 2 * pairs == n * (n + 1):  # causal: those before it have none
        whole, rest = divmod(n, targets)
        return most - targets * whole * (whole - 1) // 2 - whole * rest
    return min(most, pairs // targets + n)


# Memory of the GPU kernels: sums, operands, and intermediates in pieces that fit.
#
# An item is one element of an operand; M and W are the padded numbers of neurons and dimensions.


#: The most bytes of one kind of intermediate; more would make no launch faster.
CHUNK_BYTES = 256 << 20


def chunk_limit(memory_limit: int | None) -> int:
    """Bytes that one kind of intermediate may take under a memory limit."""
    return min(memory_limit or CHUNK_BYTES, CHUNK_BYTES)


def at_once(limit: int, size: int) -> int:
    """How many pieces of `size` bytes fit into `limit`; at least one."""
    return max(1, limit // size)


@dataclass(frozen=True)
class TargetPieces:
    """How the method target by target cuts targets and sources into launches."""

    tiling: sizes.TargetTiling
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


@dataclass(frozen=True)
class KernelStage:
    """The stage of a batch of equal sequences by kernels: the cost and the memory of each method.

    Costs are operations; memory is what the stage takes beside its inputs and its norms.
    """

    shape: Shape  # of one sequence, or for costs alone of a whole batch
    precision: sizes.Precision
    batch: int = 1
    d_head: int = 0
    slots: int = 0  # sums per pair
    bypassed: bool = False
    memory_limit: int | None = None

    @property
    def method(self) -> str:
        """The cheaper one: `BY_SOURCE` or `MATRICES`."""
        return MATRICES if self.matrices < self.by_source else BY_SOURCE

    @property
    def by_source(self) -> int:
        """``pairs · 2m(d + kH)``: rows are mixed and multiplied by W_down in one kernel."""
        shape, pairs = self.shape, self.batch * self.shape.pairs
        mixed = shape.projections * sizes.block_of_heads(shape.heads)
        return self.precision.products * pairs * 2 * sizes.aligned(shape.m) * (shape.d + mixed)

    @property
    def matrix_operations(self) -> int:
        """``tokens · 2d²m + pairs · 2d²``: a matrix per target, and a product per pair."""
        shape = self.shape
        products = shape.n * shape.d * sizes.aligned(shape.m) + shape.pairs * shape.d
        return self.precision.products * 2 * shape.d * products * self.batch

    @property
    def matrices(self) -> float:
        """The operations, and storing each pair's part and bypassed part."""
        numbers = 2 * self.batch * self.shape.pairs * self.shape.d
        stored = STORED_BYTE * self.precision.itemsize * numbers
        return LAUNCHES + self.matrix_operations + stored

    @property
    def forms_head_products(self) -> bool:
        """Whether rows come from head products B_h W_k, which are formed for the whole batch."""
        tokens = self.batch * self.shape.n
        return self.method == BY_SOURCE and head_products_pay(self.d_head, self.shape.d, tokens)

    @property
    def memory(self) -> int:
        """Bytes of the cheaper method."""
        return self.matrix_memory if self.method == MATRICES else self.source_memory

    @property
    def source_memory(self) -> int:
        """Sums, operands, rows of some sources, and their hidden rows where these are stored."""
        shape, item, limit = self.shape, self.precision.itemsize, chunk_limit(self.memory_limit)
        m, pairs = sizes.aligned(shape.m), self.batch * shape.pairs
        texts = [(shape.n, shape.pairs)] * self.batch
        stored = stores_hidden_rows(texts, shape, self.precision)
        rows, gated = pairs if stored else shape.n, shape.projections > 1
        tiling = sizes.Tiling.choose(rows, shape.d, m, self.precision, gated, stored)
        row = shape.projections * shape.heads * m * item
        sources = min(self.batch * shape.n, sizes.sources_at_once(limit, row))
        total = self._operands(tiling.dims, self.forms_head_products) + sources * row
        if stored:
            block = tiling.targets * m * item
            blocks = -(-min(pairs, sources * shape.n) // tiling.targets)
            total += min(blocks, at_once(limit, block)) * block
        return total

    @property
    def matrix_memory(self) -> int:
        """Sums, operands; parts, matrices and scaled projections of some tiles of targets."""
        shape, item, limit = self.shape, self.precision.itemsize, chunk_limit(self.memory_limit)
        m, width, products = sizes.aligned(shape.m), sizes.aligned(shape.d), self.precision.products
        tiling = sizes.TargetTiling.choose(shape.d, self.precision.split)
        pieces = TargetPieces(tiling, shape.n, item * width * (1 + self.bypassed))
        sources = pieces.sources(limit)
        matrix = tiling.tile * item * shape.d * width
        all_tiles = self.batch * -(-shape.n // tiling.tile)
        tiles = min(all_tiles, pieces.tiles(limit, sources), at_once(limit, matrix))
        scaled = 2 * products * shape.d * m
        targets = min(tiles * tiling.tile, at_once(limit, scaled))
        # The product of the scaled projections is in float32 before it is rounded to operands.
        made = targets * (scaled + shape.d * width * (4 + item))
        parts = tiles * tiling.tile * sources * pieces.pair_bytes
        whole = self._operands(tiling.dims, head_products=False) + 2 * products * m * width
        return whole + tiles * matrix + max(parts, made)

    def _operands(self, dims: int, head_products: bool) -> int:
        """Sums (d blocks, slots, b, j, i); slopes (b, i, k, M), W_down (M, W), and the inputs.

        Those are the head products or the input projections.
        """
        shape, m, k = self.shape, sizes.aligned(self.shape.m), self.shape.projections
        width = sizes.aligned(shape.d)
        sums = 4 * -(-width // dims) * self.slots * self.batch * shape.n**2
        inputs = k * shape.d * m
        if head_products:
            inputs = head_product_elements(shape.heads, self.d_head, m, k)
        return sums + self.precision.itemsize * (self.batch * shape.n * m * k + m * width + inputs)
