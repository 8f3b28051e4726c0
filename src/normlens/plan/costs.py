"""Cost of every method of analysing a layer, in operations and bytes, and the choice of a method.

Nothing here runs a model: everything is a function of sizes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from normlens.errors import MemoryLimitError
from normlens.layers import Experts, FeedForward, Layer, Reach, blocks_of
from normlens.options import DEFAULT_LIMIT, SHAPLEY
from normlens.scopes import components_of

# Memory limits and memory of devices.


GIB = 1 << 30
DEFAULT_PREPARED = GIB // 2  # of products that a prepared lens keeps


def free_memory(device: torch.device) -> int:
    """Bytes free on `device`; for a CPU, what Linux calls available memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    try:  # half of what macOS says is there
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return 4 * GIB


def device_memory(device: torch.device) -> int:
    """Total memory of a device in bytes; 4 GiB where it does not tell."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return 4 * GIB


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
        (d, m), widest = block.up.weight.shape, None
        if isinstance(ff, Experts):
            m, widest = ff.active, ff.widest
        return cls(n, pairs, d, m, heads, len(block.inputs), itemsize, sources, widest)


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


def operations(shape: Shape, method: str) -> int:
    """Operations of the stage by `TILES` or `MATRICES`."""
    n, pairs, d, m, k = shape.n, shape.pairs, shape.d, shape.m, shape.projections
    if method == MATRICES:  # (d×m)(m×d) per target; a part mixed and (d)(d×d) per pair
        return n * 2 * d * d * m + pairs * 2 * d * d + mix_operations(shape)
    if shape.widest is not None:
        return pairs * 2 * d * m * (k + 1) + mix_operations(shape)
    return pairs * 2 * m * (d + k * shape.heads)  # kH rows are mixed, one is multiplied by W_down


def mix_operations(shape: Shape) -> int:
    """Operations of the parts ``Σ_h A_ijh U_jh``: H vectors of d numbers for each pair."""
    return shape.pairs * 2 * shape.d * shape.heads


def cheaper_method(shape: Shape) -> str:
    """`TILES` or `MATRICES`, by operations."""
    return MATRICES if operations(shape, MATRICES) < operations(shape, TILES) else TILES


def player_memory(shape: Shape, scopes: int) -> int:
    """Bytes for sampling one target: its n tokens, other sources and the bias, m neurons each.

    The players and one order's running sums, for each input projection (2k); the means, and one
    order's values and contributions, each with a temporary copy (5); and a gradient for each scope
    behind the block.
    """
    players = shape.n + (shape.sources or 0) + 1
    return players * shape.m * (2 * shape.projections + 5 + scopes) * shape.itemsize


# The plan for a feed-forward stage: the cheapest method by `costs`, in pieces that fit.
#
# PyTorch takes tiles or one matrix per target, sequence by sequence (`choose_plan`).


# Rows of one tile: enough for the matrix product to run at full speed, small enough that the
# mixed rows are still in the cache when it reads them.
SOURCES = 128
TARGETS = 16
MATRIX_TARGETS = 4

VECTORS = "vectors"


@dataclass(frozen=True)
class Plan:
    """The method of the PyTorch stage and the sizes of its tiles."""

    method: str  # `TILES` or `MATRICES`; `VECTORS`: parts are followed as vectors
    sources: int
    targets: int

    def memory(self, shape: Shape) -> int:
        """Bytes of the largest intermediate tensors of one tile.

        Tiles: for each projection the rows Q (j, h, m) and the U (j, h, d) that they come from; per
        pair k hidden rows of m numbers, and the part, its copy in a norm and the bypassed part.
        Matrices: d×d per target, the scaled projection and a temporary of its size; per pair four
        vectors, among them the part before and behind the block.
        Experts: one expert's weights in the algebra's precision; per pair k of its hidden rows, the
        part before and behind the experts, and a copy of either for one of them.
        """
        rows, d, m, k = self.sources * self.targets, shape.d, shape.m, shape.projections
        matrices = self.targets * d * d
        if shape.widest is not None:
            inside = matrices if self.method == MATRICES else rows * k * shape.widest
            elements = (k + 2) * d * shape.widest + inside + 8 * rows * d
        elif self.method == MATRICES:
            elements = matrices + 2 * d * m + 4 * rows * d
        else:
            elements = self.sources * shape.heads * k * (m + d) + rows * (k * m + 3 * d)
        return elements * shape.itemsize

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
        plan = Plan(MATRICES, shape.sources or shape.n, min(MATRIX_TARGETS, half))
    else:
        plan = Plan(TILES, min(SOURCES, shape.sources or shape.n), min(TARGETS, half))
    while limit is not None and plan.memory(shape) > limit and (smaller := plan.halved()):
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


def least_memory(shape: Shape, rule: str, scopes: int = 1) -> int:
    """Bytes of the smallest tile that still finishes in reasonable time.

    `scopes` counts those from the feed-forward block on.
    """
    if rule == SHAPLEY:
        return player_memory(shape, scopes)
    method, sources = cheaper_method(shape), shape.sources or shape.n
    # Matrices would be formed again for every block of sources, so there is only one block.
    if method == TILES:
        sources = min(sources, FEWEST_ROWS)
    return Plan(method, sources, 1).memory(shape)


# Parts that are followed as vectors, source by source.


def source_memory(layer: Layer, b: int, n: int, itemsize: int) -> int:
    """Bytes that the parts of one source of b sequences of n tokens take on their way.

    Six vectors and, of the largest feed-forward block, its projections with two products of theirs;
    or four of the wider vectors outside a bottleneck.
    """
    inside = [0]
    for step in layer.steps:
        if isinstance(step, Experts):  # vectors and neurons of one expert, and the sum of all
            inside.append(4 * step.members[0].down.weight.shape[1] + 4 * step.widest)
        elif isinstance(step, FeedForward):
            inside.append((2 + len(step.inputs)) * step.down.weight.shape[0])
    numbers = 6 * max(layer.attention.output.weight.shape) + max(inside)
    return b * n * max(numbers, 4 * layer.width) * itemsize


def sources_at_once(one: int, n: int, limit: int | None) -> int:
    """How many of n sources pass together, where each takes `one` byte count on its way."""
    return max(1, min(n, (DEFAULT_LIMIT if limit is None else limit) // one))


# Memory of a sequence in a batch, and the number of sequences that fit on a device.


LARGEST_BATCH = 64
SHARE = 4  # a batch takes this fraction (1/4) of the memory that the weights leave free


def sequence_memory(n: int, heads: int, d: int, itemsize: int) -> int:
    """Bytes of one sequence of n tokens in a batch.

    The attention weights (h, i, j) as the model returned them, by source, and in two products; U
    (j, h, d) before, inside and behind a norm; twelve vectors per token.
    """
    return itemsize * n * (4 * heads * n + 3 * heads * d + 12 * d)


def affordable_batch(
    device: torch.device, layers: Sequence[Layer], weights: int, n: int, itemsize: int
) -> int:
    """How many sequences of n tokens fit into a quarter of the memory that the model leaves free.

    `weights` are the bytes of the model, `itemsize` those of one of the algebra's numbers. The
    memory that happens to be free at the moment does not count: results must not depend on what ran
    before. On a CPU one sequence already fills the machine, and padding would only add work.
    """
    if device.type == "cpu":
        return 1
    # A decoder layer that reads the encoder has the weights of two attentions.
    heads = max(sum(attention.heads for attention in layer.attentions) for layer in layers)
    each = sequence_memory(n, heads, layers[0].width, itemsize)
    return max(1, min(LARGEST_BATCH, (device_memory(device) - weights) // SHARE // each))


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
    """What whole vectors of a batch of `batch` sequences of `n` tokens take."""

    n: int
    batch: int
    kept: int  # bytes of one source's vectors
    passing: int  # bytes that one source takes while it passes a layer

    @classmethod
    def of(cls, layers: Sequence[Layer], batch: int, n: int, itemsize: int) -> VectorSizes:
        """The sizes of a batch's vectors in these layers, the widest of which decides."""
        # Experts pass one after the other.
        steps = [step for layer in layers for step in layer.steps]
        blocks = [block for step in steps for block in blocks_of(step)]
        neurons = [len(block.inputs) * block.up.weight.shape[1] for block in blocks]
        numbers = batch * n * itemsize
        kept = numbers * layers[0].width
        return cls(n, batch, kept, COPIES * kept + numbers * max(neurons, default=0))

    @property
    def least(self) -> int:
        """The smallest limit under which one source after the other can pass."""
        return 2 * self.passing


def group_sources(sizes: VectorSizes, limit: int, causal: bool, sources: int) -> list[list[Chunk]]:
    """All sources in chunks that pass a layer together, in groups that pass the model together.

    Half of the limit is a chunk's, the other half holds a group. There are as many `sources` as
    targets, or fewer.
    """
    n = sizes.n
    count = min(-(-ROWS // (sizes.batch * n)), limit // sizes.least, n)
    if causal:
        count = min(count, -(-n // CAUSAL_CHUNKS))
    count = max(1, count)
    groups: list[list[Chunk]] = []
    held = limit
    for first in range(0, sources, count):
        size = min(count, sources - first)
        needed = size * sizes.kept * (n - first if causal else n) // n
        if held + needed > limit // 2 or not groups:
            groups.append([])
            held = 0
        groups[-1].append((first, size))
        held += needed
    return groups


# The least memory limit of the feed-forward stage, checked before anything runs.
#
# A lower limit would be exceeded, or would force tiles of a few pairs, each of which reads all of
# W_down: a text of some hundred tokens would take hours.


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
        ff, reach = layer.feed_forward, layer.reach
        for attention in layer.attentions:
            own = attention.source is None
            counts: Iterable[int | None] = [None] * len(lengths) if own else others
            for n, sources in set(zip(lengths, counts, strict=False)):
                shape = Shape.of_block(ff, attention.heads, reach, n, itemsize, sources)
                needs.append((least_memory(shape, rule, behind), n))
    least, n = max(needs, default=(0, 0))
    _check(
        limit,
        least,
        n,
        "feed-forward block needs",
        ", a shorter text, or only scopes before the block",
    )


def check_vectors_limit(
    limit: int, layers: Sequence[Layer], lengths: Sequence[int], itemsize: int
) -> None:
    """Raise unless a memory limit suffices for whole vectors in sequences of these lengths."""
    n = max(lengths, default=1)
    least = VectorSizes.of(layers, 1, n, itemsize).least
    _check(limit, least, n, "vectors of one input token need", ", or a shorter text")


def _check(limit: int, least: int, n: int, what: str, instead: str) -> None:
    if limit < least:
        raise MemoryLimitError(
            f"the memory limit of {_size(limit)} is too low for {n} tokens: the {what} "
            f"{_size(least)}; give that much (or leave the limit out){instead}"
        )


def _size(count: int) -> str:
    """Bytes in the form that `parse_bytes` reads, rounded up so that the size shown is enough."""
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= size:
            return f"{math.ceil(10 * count / size) / 10:g}{unit}"
    return f"{count} bytes"
