"""Cost of every method of analysing a layer, in operations and bytes: each formula once.

Nothing here runs a model or needs Triton: everything is a function of sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from normlens.frozen.rules import projections
from normlens.gpu.sizes import (
    LONGEST_SUM,
    PROCESSORS,
    Precision,
    TargetTiling,
    Tiling,
    aligned,
    block_of_heads,
    sources_at_once,
)
from normlens.layers import Experts, FeedForward, Layer, ParallelFeedForward, Reach
from normlens.options import SHAPLEY
from normlens.plan.memory import device_memory

# The sizes that decide what a feed-forward stage costs.


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


# The cost of the head products ``B_h W_k``, from a head's value vector to the neurons.
#
# ``Q_jh = U_jh W_k = v_jh (B_h W_k)``: the rows of n sources come from U, which takes
# n·k·H·2dm operations, or from the head products, which takes k·H·2·d_head·dm operations to form
# them and then n·k·H·2·d_head·m.


def head_products_pay(d_head: int, d: int, tokens: int) -> bool:
    """Whether head products that are formed for n tokens cost less than they save.

    ``H·d_head·d·m + n·H·d_head·m < n·H·d·m``, from which H and m cancel.
    """
    return d_head * (d + tokens) < tokens * d


def head_product_elements(heads: int, d_head: int, m: int, projections: int) -> int:
    """Elements of the head products (k, H, d_head, m)."""
    return projections * heads * d_head * m


def head_product_operations(heads: int, d_head: int, d: int, m: int, projections: int) -> int:
    """Operations that form the head products: each element is a sum over d dimensions."""
    return 2 * d * head_product_elements(heads, d_head, m, projections)


def row_operations(sources: int, heads: int, width: int, m: int, projections: int) -> int:
    """Operations of Q_jh from vectors of `width` numbers: d for U, d_head with head products."""
    return 2 * sources * projections * heads * width * m


# The feed-forward stage by PyTorch: tiles, one matrix per target, or sampled players.
#
# Operations for one sequence and layer, with `pairs` allowed (target, source) pairs:
#
#     tiles      pairs · 2m(d + kH)            mix H rows, scale, multiply by W_down
#     matrices   n · 2d²m + pairs · 2d(d + H)  M_i = Σ_k W_k diag(r^k_i) W_down once per target
#
# where k counts the input projections (2 in a gated block). Matrices win for long inputs. With
# experts, m counts the neurons that a target uses, and tiles form the parts themselves, because
# targets share no rows:
#
#     experts    pairs · 2d(H + (k + 1)m)


TILES, MATRICES = "tiles", "matrices"
#: Rows of the smallest tile that makes reading W_down worth it.
FEWEST_ROWS = 16


def tile_operations(shape: Shape) -> int:
    """Operations of all tiles: kH rows of m numbers are mixed, and one is multiplied by W_down."""
    if shape.widest is not None:
        products = shape.pairs * 2 * shape.d * shape.m * (shape.projections + 1)
        return products + mix_operations(shape)
    return shape.pairs * 2 * shape.m * (shape.d + shape.projections * shape.heads)


def matrix_operations(shape: Shape) -> int:
    """Operations of the matrices: (d×m)(m×d) per target; a part mixed and (d)(d×d) per pair."""
    matrices = shape.n * 2 * shape.d * shape.d * shape.m
    return matrices + shape.pairs * 2 * shape.d * shape.d + mix_operations(shape)


def mix_operations(shape: Shape) -> int:
    """Operations of the parts ``Σ_h A_ijh U_jh``: H vectors of d numbers for each pair."""
    return shape.pairs * 2 * shape.d * shape.heads


def cheaper_method(shape: Shape) -> str:
    """`TILES` or `MATRICES`, by operations."""
    return MATRICES if matrix_operations(shape) < tile_operations(shape) else TILES


def tile_memory(shape: Shape, method: str, sources: int, targets: int) -> int:
    """Bytes of the largest intermediate tensors of one tile.

    Tiles: for each projection the rows Q (j, h, m) and the U (j, h, d) that they come from; per
    pair k hidden rows of m numbers, and the part, its copy in a norm and the bypassed part.
    Matrices: d×d per target, the scaled projection and a temporary of its size; per pair four
    vectors, among them the part before and behind the block.
    Experts: one expert's weights in the algebra's precision; per pair k of its hidden rows, the
    part before and behind the experts, and a copy of either for one of them.
    """
    rows, k = sources * targets, shape.projections
    if shape.widest is not None:
        expert = (k + 2) * shape.d * shape.widest
        matrices = targets * shape.d * shape.d if method == MATRICES else rows * k * shape.widest
        return (expert + matrices + 8 * rows * shape.d) * shape.itemsize
    if method == MATRICES:
        elements = targets * shape.d * shape.d + 2 * shape.d * shape.m + 4 * rows * shape.d
    else:
        rows_of_sources = sources * shape.heads * k * (shape.m + shape.d)
        elements = rows_of_sources + rows * (k * shape.m + 3 * shape.d)
    return elements * shape.itemsize


def player_memory(shape: Shape, scopes: int) -> int:
    """Bytes for sampling one target: its n tokens, other sources and the bias, m neurons each.

    The players and one order's running sums, for each input projection (2k); the means, and one
    order's values and contributions, each with a temporary copy (5); and a gradient for each scope
    behind the block.
    """
    players = shape.n + (shape.sources or 0) + 1
    return players * shape.m * (2 * shape.projections + 5 + scopes) * shape.itemsize


def least_memory(shape: Shape, rule: str, scopes: int = 1) -> int:
    """Bytes of the smallest tile that still finishes in reasonable time.

    `scopes` counts those from the feed-forward block on.
    """
    if rule == SHAPLEY:
        return player_memory(shape, scopes)
    method, sources = cheaper_method(shape), shape.source_count
    # Matrices would be formed again for every block of sources, so there is only one block.
    if method == TILES:
        sources = min(sources, FEWEST_ROWS)
    return tile_memory(shape, method, sources, 1)


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


# Memory of the GPU kernels: sums, operands, and intermediates in pieces that fit.
#
# An item is one element of an operand; M and W are the padded numbers of neurons and dimensions.


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


# Memory of a sequence in a batch, and the number of sequences that fit on a device.


LARGEST_BATCH = 64
SHARE = 4  # a batch takes this fraction (1/4) of the memory that the weights leave free


def sequence_memory(n: int, heads: int, d: int, itemsize: int) -> int:
    """Bytes of one sequence of n tokens in a batch.

    The attention weights (h, i, j) as the model returned them, by source, and in two products; U
    (j, h, d) before, inside and behind a norm; twelve vectors per token.
    """
    return itemsize * n * (4 * heads * n + 3 * heads * d + 12 * d)


def affordable_sequences(device: torch.device, weights: int, per_sequence: int) -> int:
    """How many sequences fit into a quarter of the memory that `weights` bytes leave free.

    The memory that happens to be free at the moment does not count: results must not depend on
    what ran before. On a CPU one sequence already fills the machine, and padding would only add
    work.
    """
    if device.type == "cpu":
        return 1
    room = max(0, device_memory(device) - weights)
    return max(1, min(LARGEST_BATCH, room // SHARE // per_sequence))


def affordable_batch(
    device: torch.device, layers: Sequence[Layer], weights: int, n: int, itemsize: int
) -> int:
    """How many sequences of n tokens a batch of a model with these layers has on a device.

    `weights` are the bytes of the model, `itemsize` those of one of the algebra's numbers.
    """
    # A decoder layer that reads the encoder has the weights of two attentions.
    heads = max(sum(attention.heads for attention in layer.attentions) for layer in layers)
    each = sequence_memory(n, heads, layers[0].width, itemsize)
    return affordable_sequences(device, weights, each)


# Whole vectors: which sources pass a layer together, and which pass the model together.
#
# A chunk of sources is one product with each weight. A group of chunks is held in memory from
# layer to layer, so that each layer is frozen once for all of them.


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
