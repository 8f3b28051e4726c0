"""What an analysis costs, before it runs: operations and memory from a model's sizes alone.

Operations are multiplications and additions of matrix products, for one batch of `b` sequences
of `n` tokens (H heads of width d_head, k input projections of the feed-forward block):

    forward pass        2n · (elements of all matrices) + 4n²·H·d_head             per layer
    checks              2·ROWS · (elements of its linear maps)                     per layer
    attention parts     U = v B, their sum over sources, Gram matrices             per layer
    feed-forward rows   slopes, the token's own part, and Q = U W                  per layer
    feed-forward pairs  `decomposition.plan`: tiles, or one matrix per target      per layer

Only the forward pass runs through layers that were not asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from normlens.components import FeedForward, Layer, ParallelFeedForward, Reach
from normlens.decomposition.parts import NORM_CHUNK_ELEMENTS
from normlens.decomposition.plan import Plan, Shape, choose_plan
from normlens.errors import InputError
from normlens.lens import Lens
from normlens.rows import ROWS


def skeleton(config: Any, name: str | None = None) -> Lens:
    """A lens on a model of this configuration that has shapes but no weights."""
    from transformers import AutoModel

    from normlens.models import adapter_class

    adapter_class(config)
    with torch.device("meta"):
        model = AutoModel.from_config(config, attn_implementation="eager")
    return Lens(model, name=name)


# Sizes ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerSizes:
    """What one layer's cost depends on."""

    d: int
    heads: int
    groups: int
    d_head: int
    matrices: int  # elements of all its matrices
    linear: int  # elements of the linear maps that are compared with what their modules did
    symbols: tuple[str, ...]  # components from the attention on, in order
    reach: Reach
    m: int = 0  # 0: no feed-forward block behind the attention
    projections: int = 0
    parallel: int = 0  # elements of a feed-forward block beside the attention

    @property
    def feed_forward_at(self) -> int | None:
        """Position of the feed-forward block among the symbols, if it stands behind ATTN."""
        return self.symbols.index("FF") if self.m else None


@dataclass(frozen=True)
class ModelSizes:
    """What the cost of a whole analysis depends on."""

    layers: tuple[LayerSizes, ...]
    parameters: int
    itemsize: int  # of the model's weights
    compute_itemsize: int  # of the algebra


def sizes_of(lens: Lens, dtype: torch.dtype | None = None) -> ModelSizes:
    """The sizes of a lens's model (a skeleton will do), in `dtype` or its own."""
    adapter = lens.adapter
    own = dtype or lens.dtype
    return ModelSizes(
        layers=tuple(_layer_sizes(adapter.layer(block), block) for block in adapter.blocks()),
        parameters=sum(p.numel() for p in lens.model.parameters()),
        itemsize=own.itemsize,
        compute_itemsize=max(4, own.itemsize),
    )


def _layer_sizes(layer: Layer, block: Any) -> LayerSizes:
    attention, ff = layer.attention, layer.feed_forward
    beside = [step.feed_forward for step in layer.steps if isinstance(step, ParallelFeedForward)]
    return LayerSizes(
        d=attention.output.weight.shape[1],
        heads=attention.heads,
        groups=attention.groups,
        d_head=attention.value.weight.shape[1] // attention.groups,
        matrices=sum(p.numel() for p in block.parameters() if p.dim() == 2),
        linear=sum(linear.weight.numel() for linear in layer.linear_maps),
        symbols=tuple(layer.steps[index].symbol for index in layer.scope_of_step),
        reach=layer.reach,
        m=0 if ff is None else ff.up.weight.shape[1],
        projections=0 if ff is None else (1 if ff.gate is None else 2),
        parallel=sum(_elements(block) for block in beside),
    )


def _elements(ff: FeedForward) -> int:
    gate = 0 if ff.gate is None else ff.gate.weight.numel()
    return gate + ff.up.weight.numel() + ff.down.weight.numel()


# Pairs and tiles --------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def allowed_pairs(reach: Reach, n: int) -> int:
    """How many (target, source) pairs attention allows, without a mask of n×n."""
    total = 0
    for i in range(n):
        first, last = reach.sources(i, i + 1, n)
        total += last - first
    return total


@lru_cache(maxsize=256)
def covered(reach: Reach, n: int, plan: Plan) -> tuple[int, int]:
    """Tiles that are not empty, and the pairs inside them (tiles are rectangles, masks are not)."""
    tiles = pairs = 0
    for j in range(0, n, plan.sources):
        for i in range(0, n, plan.targets):
            targets = min(i + plan.targets, n)
            low, high = reach.sources(i, targets, n)
            sources = min(high, j + plan.sources, n) - max(low, j)
            if sources > 0:
                tiles += 1
                pairs += sources * (targets - i)
    return tiles, pairs


def shape_of(layer: LayerSizes, n: int, itemsize: int) -> Shape:
    """The shape of a layer's feed-forward stage, as `decomposition.plan` wants it."""
    pairs = allowed_pairs(layer.reach, n)
    return Shape(n, pairs, layer.d, layer.m, layer.heads, layer.projections, itemsize)


# The request ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Analysis:
    """What is asked for."""

    tokens: int
    layers: tuple[int, ...]  # from 0
    scopes: tuple[str, ...]
    batch: int = 1
    heads: bool = False
    rule: str = "ig"
    samples: int = 64
    memory_limit: int | None = None

    def depth(self, layer: LayerSizes) -> int:
        """How many components, counted from the attention, the deepest scope takes; 0 is none."""
        prefix, deepest = "", 0
        for position, symbol in enumerate(layer.symbols, start=1):
            prefix += symbol
            if f"{prefix}-N" in self.scopes:
                deepest = position
        return max(deepest, 1) if self.heads else deepest

    def wants_factored(self, layer: LayerSizes) -> bool:
        """Whether norms of parts before the feed-forward block are asked for."""
        before = len(layer.symbols) if layer.feed_forward_at is None else layer.feed_forward_at
        return any(self.wants(layer, position) for position in range(before))

    def wants(self, layer: LayerSizes, position: int) -> bool:
        return f"{''.join(layer.symbols[: position + 1])}-N" in self.scopes


@dataclass(frozen=True)
class Estimate:
    """Operations and bytes, item by item, of one batch."""

    operations: dict[str, int]
    memory: dict[str, int]
    plan: Plan | None  # of the first layer that has a feed-forward stage
    tiles: int  # in one such layer and sequence
    published: int  # bytes of one layer's n×n×H×d tensor

    @property
    def total_operations(self) -> int:
        return sum(self.operations.values())

    @property
    def peak_memory(self) -> int:
        return sum(self.memory.values())

    @property
    def working_memory(self) -> int:
        """What the analysis adds to a model that is loaded already."""
        return self.peak_memory - self.memory["model weights"]


def estimate(sizes: ModelSizes, analysis: Analysis) -> Estimate:
    """Operations and memory of an analysis; a pure function of sizes."""
    if analysis.tokens < 1 or analysis.batch < 1:
        raise InputError("an estimate needs at least one token and one sequence")
    chosen = [sizes.layers[index] for index in analysis.layers]
    operations = {"forward pass": analysis.batch * _forward_operations(sizes, analysis.tokens)}
    for layer in chosen:
        for item, count in _layer_operations(layer, sizes, analysis).items():
            operations[item] = operations.get(item, 0) + count
    plan, tiles = None, 0
    for layer in chosen:
        if _reaches_feed_forward(layer, analysis):
            plan = _plan(layer, sizes, analysis)
            tiles, _ = covered(layer.reach, analysis.tokens, plan)
            break
    widest = max(layer.heads * layer.d for layer in chosen)
    return Estimate(
        operations=operations,
        memory=_memory(chosen, sizes, analysis),
        plan=plan,
        tiles=tiles,
        published=analysis.batch * analysis.tokens**2 * widest * sizes.compute_itemsize,
    )


def _reaches_feed_forward(layer: LayerSizes, analysis: Analysis) -> bool:
    at = layer.feed_forward_at
    return at is not None and analysis.depth(layer) > at


def _plan(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> Plan:
    shape = shape_of(layer, analysis.tokens, sizes.compute_itemsize)
    return choose_plan(shape, analysis.memory_limit)


def _projects_heads(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> bool:
    """Whether B W is formed instead of U W, as `decomposition.projections` decides it."""
    n = analysis.tokens
    if analysis.rule == "shapley" or _plan(layer, sizes, analysis).method != "tiles":
        return False
    return n * layer.d > layer.d_head * (layer.d + n)


def _head_projections(layer: LayerSizes) -> int:
    """Elements of B W."""
    return layer.projections * layer.heads * layer.d_head * layer.m


# Operations -------------------------------------------------------------------------------------


def _forward_operations(sizes: ModelSizes, n: int) -> int:
    return sum(
        2 * n * layer.matrices + 4 * n * n * layer.heads * layer.d_head for layer in sizes.layers
    )


def _layer_operations(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> dict[str, int]:
    depth, b = analysis.depth(layer), analysis.batch
    operations = {"checks": 2 * min(ROWS, b * analysis.tokens) * layer.linear}
    if depth == 0:
        return operations
    operations["attention parts"] = b * _attention_operations(layer, analysis, depth)
    if _reaches_feed_forward(layer, analysis):
        operations |= _feed_forward_operations(layer, sizes, analysis, depth)
    return operations


def _attention_operations(layer: LayerSizes, analysis: Analysis, depth: int) -> int:
    n, d, heads = analysis.tokens, layer.d, layer.heads
    values = 2 * n * heads * layer.d_head * d  # U, or a sum of it
    projection = 2 * n * d * layer.groups * layer.d_head
    total = projection + 2 * values + 2 * n * n * heads * layer.d_head
    gram = 2 * n * heads * heads * d + 2 * n * n * heads * heads
    seen = False  # a residual leaves the factors, and so their norms, as they were
    last = depth if layer.feed_forward_at is None else min(depth, layer.feed_forward_at)
    for position in range(last):
        if layer.symbols[position] == "LN":
            seen = False
        if layer.symbols[position] == "FF":
            total += 2 * n * layer.parallel
        if analysis.wants(layer, position) and not seen:
            total += gram + values
            seen = True
    return total


def _feed_forward_operations(
    layer: LayerSizes, sizes: ModelSizes, analysis: Analysis, depth: int
) -> dict[str, int]:
    n, b, d, m, k = analysis.tokens, analysis.batch, layer.d, layer.m, layer.projections
    plan = _plan(layer, sizes, analysis)
    if analysis.rule == "shapley":
        blocks = -(-n // plan.targets)
        players = blocks * 2 * n * layer.heads * d * m * k + 2 * n * n * layer.heads * m * k
        # Orders are elementwise; their mean, and a gradient of each norm, pass W_down once.
        behind = _scopes_behind(layer, depth) if analysis.samples > 1 else 0
        products = 2 * n * m * d * (n + 1 + behind * n)
        return {
            "feed-forward rows": b * 2 * n * m * d * (k + 2),
            "feed-forward pairs": b * (players + products),
        }
    # Two products with each input projection (the real vector, the token's own part) and three
    # with the output projection; the bias's share has a few rows only.
    rows = b * 2 * n * d * m * (2 * k + 3)
    per_source = d
    if _projects_heads(layer, sizes, analysis):
        rows += 2 * d * _head_projections(layer)
        per_source = layer.d_head
    if plan.method == "tiles":
        rows += b * 2 * n * layer.heads * per_source * m * k
    _, pairs = covered(layer.reach, n, plan)
    inside = Shape(n, pairs, d, m, layer.heads, k, sizes.compute_itemsize)
    count = inside.matrix_operations if plan.method == "matrices" else inside.tile_operations
    tail = layer.symbols[depth - _scopes_behind(layer, depth) + 1 : depth]
    bypass = tail.count("RES") * 2 * pairs * layer.heads * d
    return {"feed-forward rows": rows, "feed-forward pairs": b * (count + bypass)}


def _scopes_behind(layer: LayerSizes, depth: int) -> int:
    """Scopes from the feed-forward block on, up to the deepest that is asked for."""
    assert layer.feed_forward_at is not None
    return depth - layer.feed_forward_at


# Memory -----------------------------------------------------------------------------------------


def _memory(chosen: Sequence[LayerSizes], sizes: ModelSizes, analysis: Analysis) -> dict[str, int]:
    """Bytes of what is alive when a layer is analysed; layers are forgotten one after another."""
    n, b, item = analysis.tokens, analysis.batch, sizes.compute_itemsize
    maps = len(analysis.scopes)
    if analysis.heads:
        maps += 2 * max(layer.heads for layer in chosen)
    per_layer = [_layer_memory(layer, sizes, analysis) for layer in chosen]
    worst = max(per_layer, key=lambda items: sum(items.values()))
    return {
        "model weights": sizes.parameters * sizes.itemsize,
        **worst,
        # The layer's own maps are still there while they join those of the layers before.
        "result maps": b * (len(chosen) + 1) * maps * n * n * item,
    }


def _layer_memory(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> dict[str, int]:
    n, b, item, d = analysis.tokens, analysis.batch, sizes.compute_itemsize, layer.d
    converted = sizes.itemsize != item
    # What the model returned, the copy by source, and one more in a product or a conversion.
    attention = b * layer.heads * n * n * (sizes.itemsize + 2 * item)
    factors = b * n * layer.heads * (2 * d + layer.d_head) + layer.heads * layer.d_head * d
    tokens = b * n * d * (10 + len(layer.symbols))
    buffers = _gram_buffer(layer, analysis) if analysis.wants_factored(layer) else 0
    copy = layer.matrices if converted else 0
    if _reaches_feed_forward(layer, analysis):
        tokens += b * n * layer.m * (layer.projections + 4)
        if _projects_heads(layer, sizes, analysis):
            factors += _head_projections(layer)
        buffers = max(buffers, _tile_buffer(layer, sizes, analysis))
    return {
        "attention weights": attention,
        "factors": (factors + copy) * item,
        "token vectors": tokens * item,
        "tile buffers": buffers,
    }


def _gram_buffer(layer: LayerSizes, analysis: Analysis) -> int:
    """Norms before the feed-forward block are taken in float64, some sources at a time."""
    n, width = analysis.tokens, layer.heads * max(analysis.tokens, layer.d)
    sources = min(analysis.batch * n, max(1, NORM_CHUNK_ELEMENTS // width))
    return 8 * sources * layer.heads * (layer.d + 3 * n)


def _tile_buffer(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> int:
    plan = _plan(layer, sizes, analysis)
    if analysis.rule == "shapley":
        rows = (analysis.tokens + 1) * plan.targets
        wide = 2 * layer.projections + 5 + _scopes_behind(layer, analysis.depth(layer))
        return rows * (layer.m * wide + 4 * layer.d) * sizes.compute_itemsize
    return plan.memory(shape_of(layer, analysis.tokens, sizes.compute_itemsize))
