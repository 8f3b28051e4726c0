"""Estimate operations and memory of an analysis before it runs, by the formulas that plan it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from normlens.errors import InputError
from normlens.frozen.network import sources_at_once
from normlens.frozen.parts import gram_memory, gram_operations
from normlens.frozen.tiles import Slots, is_supported
from normlens.gpu.sizes import SPLIT_PRODUCTS
from normlens.layers import Reach
from normlens.models.parts import ENCODER
from normlens.options import NOT_BY_SOURCE, SHAPLEY
from normlens.plan.costs import (
    MATRICES,
    TILES,
    KernelCosts,
    KernelMemory,
    Shape,
    affordable_sequences,
    head_product_elements,
    head_product_operations,
    head_products_pay,
    matrix_operations,
    mix_operations,
    player_memory,
    row_operations,
    sequence_memory,
    tile_operations,
)
from normlens.plan.method import (
    BY_SOURCE,
    VECTORS,
    KernelPlan,
    Plan,
    choose_kernel_plan,
    choose_plan,
    sampled_targets,
)
from normlens.plan.request import Analysis, LayerSizes, ModelSizes, SourceGroup
from normlens.trace.recorder import ROWS

# The plan of a layer's feed-forward stage, chosen as the lens chooses it.


def plan_of(
    layer: LayerSizes, sizes: ModelSizes, analysis: Analysis, group: SourceGroup | None = None
) -> Plan | KernelPlan:
    """The plan for one group of sources, by default the layer's own tokens.

    The kernels' plan where they run and support the layer; otherwise PyTorch's.
    """
    group = group or analysis.groups(layer)[0]
    if layer.by_source is not None:
        n, one = group.targets, part_memory(layer, sizes, analysis)
        return Plan(VECTORS, sources_at_once(one, n, analysis.memory_limit), n)
    if is_fused(layer, sizes, analysis):
        return choose_kernel_plan(kernel_costs(layer, sizes, analysis, group))
    return choose_plan(sequence_shape(layer, sizes, analysis, group), analysis.memory_limit)


def part_memory(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> int:
    """Bytes that the parts of one source of a batch take where they are followed as vectors."""
    assert layer.by_source is not None
    return analysis.batch * analysis.targets(layer) * layer.by_source.part * sizes.compute_itemsize


def is_fused(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> bool:
    """Whether the kernels do the stage; they do not sample, and know one block without experts."""
    if not analysis.has_kernels(sizes) or analysis.rule == SHAPLEY:
        return False
    if layer.widest is not None or layer.by_source is not None:
        return False
    return is_supported(analysis.tail(layer))


def sequence_shape(
    layer: LayerSizes, sizes: ModelSizes, analysis: Analysis, group: SourceGroup | None = None
) -> Shape:
    """The sizes of one sequence's feed-forward stage, for one group of its sources."""
    group = group or analysis.groups(layer)[0]
    n, k = group.targets, group.sources
    pairs, sources = (group.reach.pairs(n), None) if group.is_own else (n * k, k)
    return Shape(
        n,
        pairs,
        layer.d,
        layer.m,
        group.heads,
        layer.projections,
        sizes.compute_itemsize,
        sources,
        layer.widest,
    )


def square_shape(
    layer: LayerSizes, sizes: ModelSizes, analysis: Analysis, group: SourceGroup
) -> Shape:
    """The same as the kernels see it: another sequence in blocks as long as the targets."""
    shape = sequence_shape(layer, sizes, analysis, group)
    return shape if group.is_own else replace(shape, pairs=shape.n**2, sources=None)


def kernel_costs(
    layer: LayerSizes, sizes: ModelSizes, analysis: Analysis, group: SourceGroup | None = None
) -> KernelCosts:
    """The cost of each of the kernels' methods for the batch."""
    group = group or analysis.groups(layer)[0]
    one, b = square_shape(layer, sizes, analysis, group), analysis.batch * group.blocks
    whole = replace(one, n=b * one.n, pairs=b * one.pairs)
    return KernelCosts(whole, analysis.kernel_precision)


def kernel_memory(
    layer: LayerSizes, sizes: ModelSizes, analysis: Analysis, group: SourceGroup | None = None
) -> KernelMemory:
    """The memory that the kernels take."""
    group = group or analysis.groups(layer)[0]
    tail = analysis.tail(layer)
    slots = Slots.for_steps(
        ordinary=False,
        normed="LN" in tail,
        centred="LN" in tail and layer.centred,
        bypassed="RES" in tail,
        norm_first=tail[:1] == ("LN",),
    )
    return KernelMemory(
        shape=square_shape(layer, sizes, analysis, group),
        d_head=group.d_head,
        batch=analysis.batch * group.blocks,
        precision=analysis.kernel_precision,
        slots=slots.count,
        bypassed="RES" in tail,
        head_products=forms_head_products(layer, sizes, analysis, group),
        memory_limit=analysis.memory_limit,
    )


def forms_head_products(
    layer: LayerSizes, sizes: ModelSizes, analysis: Analysis, group: SourceGroup | None = None
) -> bool:
    """Whether rows come from head products B_h W_k, formed for them, and not from U W_k.

    Tiles decide it for each sequence, the kernels for the whole batch.
    """
    group = group or analysis.groups(layer)[0]
    plan = plan_of(layer, sizes, analysis, group)
    if isinstance(plan, KernelPlan):
        tokens = analysis.batch * group.blocks * group.targets
        return plan.method == BY_SOURCE and head_products_pay(group.d_head, layer.d, tokens)
    if analysis.rule == SHAPLEY or plan.method != TILES or layer.widest is not None:
        return False
    return head_products_pay(group.d_head, layer.d, group.sources)


@lru_cache(maxsize=256)
def covered(reach: Reach, n: int, plan: Plan, sources: int | None = None) -> tuple[int, int]:
    """The number of tiles that are not empty, and of the pairs inside them.

    Tiles are rectangles and masks are not, so these are more pairs than the mask allows. There are
    as many `sources` as targets, unless said otherwise.
    """
    tiles = pairs = 0
    last = n if sources is None else sources
    for j in range(0, last, plan.sources):
        for i in range(0, n, plan.targets):
            targets = min(i + plan.targets, n)
            low, high = reach.sources(i, targets, last)
            count = min(high, j + plan.sources, last) - max(low, j)
            if count > 0:
                tiles += 1
                pairs += count * (targets - i)
    return tiles, pairs


# Operations of a layer's factored parts, followed from its attention to the feed-forward block.
#
# Norms of a group of sources are taken where a requested scope has them, and again only where its
# factors have changed: behind a norm, or behind an attention that stood between.


@dataclass(eq=False)  # two that look alike are not the same factors
class _Factors:
    """The parts of one group at some point of the layer."""

    group: SourceGroup
    has_values: bool = False  # whether U (j, h, d) is at hand


def attention_operations(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> int:
    """Operations of one sequence before the feed-forward block, as deep as scopes need it."""
    own, *others = analysis.groups(layer)
    depth = analysis.depth(layer)
    last = depth if layer.feed_forward_at is None else min(depth, layer.feed_forward_at)
    total, position = 0, -1
    parts: list[_Factors] = []
    saved: list[list[_Factors]] = []
    normed: list[_Factors] = []  # those of the last scope
    for symbol in layer.path:
        if symbol == "":
            saved.append(parts)
            continue
        if symbol == "ATTN" or position >= 0:
            position += 1
        if position >= last:
            break
        if symbol in ("ATTN", "CROSS"):
            group = own if symbol == "ATTN" else others[0]
            total += _sums(group, layer.d)
            parts = [_Factors(group)]
        elif symbol == "LN":
            parts = [_Factors(each.group) for each in parts]
        elif symbol == "RES":
            parts = [*saved.pop(), *parts]
        elif symbol == "FF":  # beside the attention
            total += 2 * own.targets * layer.parallel
        if position >= 0 and analysis.wants(layer, position):
            for each in (each for each in parts if each not in normed):
                total += _norms(each.group, layer, sizes, analysis)
                total += 0 if each.has_values else _product(each.group.sources, each.group, layer.d)
                each.has_values = True
            normed = parts
    return total


def _product(tokens: int, group: SourceGroup, d: int) -> int:
    """Operations of all heads' vectors of some tokens times W_O: U, or a sum of it."""
    return 2 * tokens * group.heads * group.d_head * d


def _sums(group: SourceGroup, d: int) -> int:
    """Operations of the values and of their sums over sources; the token's own part is apart."""
    projection = 2 * group.sources * d * group.groups * group.d_head
    summed = 2 * group.targets * group.sources * group.heads * group.d_head
    return projection + summed + (2 if group.is_own else 1) * _product(group.targets, group, d)


def _norms(group: SourceGroup, layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> int:
    """Operations of the norms of a group's parts."""
    if analysis.has_kernels(sizes):
        # The parts themselves, by products of two numbers each.
        shape = square_shape(layer, sizes, analysis, group)
        return SPLIT_PRODUCTS * group.blocks * mix_operations(shape)
    return gram_operations(group.sources, group.heads, group.targets, layer.d)


# Operations of an analysis: multiplications and additions of matrix products.
#
# For one batch of `b` sequences of `n` tokens (H heads of width d_head, k input projections of the
# feed-forward block; a decoder that reads an encoder has two groups of sources, each with its
# costs):
#
#     forward pass        2n · (elements of all matrices) + 4n²·H·d_head             per layer
#     checks              2·ROWS · (elements of its linear maps)                     per layer
#     attention parts     U = v B, their sum over sources, norms of parts            per layer
#     feed-forward rows   slopes, the token's own part, and Q = U W                  per layer
#     feed-forward pairs  `decomposition.costs`: the method of the stage             per layer
#
# Layers that are not requested take part in the forward pass only. A product of the kernels in
# "float32" is three of short numbers, and counts as three.


def forward_operations(sizes: ModelSizes, analysis: Analysis) -> int:
    """Operations of the model's forward pass on one sequence, or pair of sequences."""
    total = 0
    for layer in sizes.layers:
        n = analysis.targets(layer)
        total += 2 * n * layer.matrices
        if layer.cross is not None:  # whose keys and values are the other sequence's
            total += 2 * (analysis.tokens - n) * 2 * layer.cross.value
        for group in analysis.groups(layer):
            total += 4 * n * group.sources * group.heads * group.d_head
    return total


def layer_operations(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> dict[str, int]:
    """Operations of the analysis of one layer, item by item."""
    b = analysis.batch
    operations = {"checks": 2 * min(ROWS, b * analysis.targets(layer)) * layer.linear}
    if analysis.depth(layer) == 0:
        return operations
    operations["attention parts"] = b * attention_operations(layer, sizes, analysis)
    if layer.by_source is not None:
        operations["attention parts"] += 2 * b * analysis.targets(layer) * layer.by_source.before
    if not analysis.reaches_feed_forward(layer):
        return operations
    if layer.by_source is not None:
        n = analysis.targets(layer)
        # Slopes need every block at the real vector, and what no token owns passes its products.
        rows, pairs = 4 * b * n * layer.by_source.blocks, 2 * b * n * n * layer.by_source.elements
        return operations | {"feed-forward rows": rows, "feed-forward pairs": pairs}
    if analysis.rule == SHAPLEY:
        return operations | _sampled_operations(layer, sizes, analysis)
    rows, pairs = _token_operations(layer, analysis), 0
    groups = analysis.groups(layer)
    for group in groups:
        plan = plan_of(layer, sizes, analysis, group)
        rows += _row_operations(layer, sizes, analysis, plan, group)
        if isinstance(plan, KernelPlan):
            pairs += _kernel_operations(layer, sizes, analysis, plan, group)
            rows += _sum_operations(layer, analysis, group) if len(groups) > 1 else 0
        else:
            pairs += b * _tile_operations(layer, sizes, analysis, plan, group)
    return operations | {"feed-forward rows": rows, "feed-forward pairs": pairs}


def _sampled_operations(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> dict[str, int]:
    n, b, d, m, k = analysis.targets(layer), analysis.batch, layer.d, layer.m, layer.projections
    shape = sequence_shape(layer, sizes, analysis)
    behind = analysis.scopes_behind(layer)
    blocks = -(-n // sampled_targets(shape, behind, analysis.memory_limit))
    players = blocks * row_operations(n, layer.heads, d, m, k) + 2 * n * n * layer.heads * m * k
    # Orders are elementwise; W_down multiplies their mean, and a gradient of each norm, once.
    gradients = behind if analysis.samples > 1 else 0
    products = 2 * n * m * d * (n + 1 + gradients * n)
    return {
        "feed-forward rows": b * 2 * n * m * d * (k + 2),
        "feed-forward pairs": b * (players + products),
    }


def _token_operations(layer: LayerSizes, analysis: Analysis) -> int:
    """Operations of the block that are done once per token.

    Two products with each input projection (the real vector, the token's own part) and three with
    the output projection; the bias's share has a few rows only.
    """
    tokens = analysis.batch * analysis.targets(layer)
    return 2 * tokens * layer.d * layer.m * (2 * layer.projections + 3)


def _row_operations(
    layer: LayerSizes,
    sizes: ModelSizes,
    analysis: Analysis,
    plan: Plan | KernelPlan,
    group: SourceGroup,
) -> int:
    """Operations of the rows of a group's sources that are mixed."""
    if plan.method == MATRICES or layer.widest is not None:
        return 0
    d, m, heads, k = layer.d, layer.m, group.heads, layer.projections
    sources = group.sources if plan.method == TILES else group.blocks * group.targets
    tokens, rows = analysis.batch * sources, 0
    width, products = d, 1 if plan.method == TILES else analysis.kernel_precision.products
    if forms_head_products(layer, sizes, analysis, group):
        rows = head_product_operations(heads, group.d_head, d, m, k)
        width = group.d_head
    return rows + products * row_operations(tokens, heads, width, m, k)


def _sum_operations(layer: LayerSizes, analysis: Analysis, group: SourceGroup) -> int:
    """Operations of the sum of one group's parts behind the block, which its kernels must meet."""
    n, width = group.targets, group.heads * group.d_head
    mixed = 2 * n * n * width + 2 * n * width * layer.d  # of a square of sources
    block = 2 * n * layer.d * layer.m * (layer.projections + 1)
    return analysis.batch * group.blocks * (mixed + block)


def _tile_operations(
    layer: LayerSizes, sizes: ModelSizes, analysis: Analysis, plan: Plan, group: SourceGroup
) -> int:
    """Operations of one sequence's tiles, for all pairs that they cover, allowed or not."""
    _, pairs = covered(group.reach, group.targets, plan, group.sources)
    inside = replace(sequence_shape(layer, sizes, analysis, group), pairs=pairs)
    count = matrix_operations(inside) if plan.method == MATRICES else tile_operations(inside)
    return count + analysis.tail(layer).count("RES") * mix_operations(inside)


def _kernel_operations(
    layer: LayerSizes, sizes: ModelSizes, analysis: Analysis, plan: KernelPlan, group: SourceGroup
) -> int:
    """Operations of the kernels for the whole batch, if all neurons are active."""
    costs = kernel_costs(layer, sizes, analysis, group)
    mixed = costs.precision.products * mix_operations(costs.shape)
    bypass = analysis.tail(layer).count("RES") * mixed
    if plan.method == MATRICES:
        return costs.matrix_operations + mixed + bypass
    return costs.by_source + bypass


# Memory of an analysis: bytes of the tensors that are alive while a layer is analysed.


def memory_of(
    chosen: Sequence[LayerSizes], sizes: ModelSizes, analysis: Analysis
) -> dict[str, int]:
    """Bytes of an analysis, item by item; only one layer's tensors are alive at a time."""
    per_layer = [_layer_memory(layer, sizes, analysis) for layer in chosen]
    worst = max(per_layer, key=lambda items: sum(items.values()))
    return {
        "model weights": sizes.parameters * sizes.itemsize,
        **worst,
        "result maps": sum(
            _result_memory([layer for layer in chosen if layer.stack == stack], sizes, analysis)
            for stack in {layer.stack for layer in chosen}
        ),
    }


def _result_memory(layers: Sequence[LayerSizes], sizes: ModelSizes, analysis: Analysis) -> int:
    """Bytes of the maps of one stack's layers, over all their sources."""
    groups = [analysis.groups(layer) for layer in layers]
    maps = len(analysis.scopes_of(layers[0]))
    if analysis.heads:
        maps += 2 * max(sum(group.heads for group in each) for each in groups)
    columns = max(sum(group.sources for group in each) for each in groups)
    pairs = analysis.targets(layers[0]) * columns
    # A layer's maps are still there while they are copied to those of all layers.
    return analysis.batch * (len(layers) + 1) * maps * pairs * sizes.compute_itemsize


def _layer_memory(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> dict[str, int]:
    n, b, item, d = analysis.targets(layer), analysis.batch, sizes.compute_itemsize, layer.d
    converted = sizes.itemsize != item
    groups = analysis.groups(layer)
    attention = factors = 0
    for group in groups:
        # The weights that the model returned, a copy by source, and one in a product or conversion.
        attention += b * group.heads * n * group.sources * (sizes.itemsize + 2 * item)
        factors += b * group.sources * group.heads * (2 * d + group.d_head)
        factors += group.heads * group.d_head * d
    width = d if layer.by_source is None else layer.by_source.width
    tokens = b * n * width * (10 + len(layer.symbols))
    tokens += sum(b * group.sources * d for group in groups if not group.is_own)
    copy = layer.matrices if converted else layer.scaled
    name = "tile buffers"
    buffers = max(_factored_buffers(layer, sizes, analysis, group) for group in groups)
    if analysis.reaches_feed_forward(layer):
        tokens += b * n * layer.m * (layer.projections + 4)
        for group in groups:
            if forms_head_products(layer, sizes, analysis, group):
                factors += head_product_elements(
                    group.heads, group.d_head, layer.m, layer.projections
                )
            if isinstance(plan_of(layer, sizes, analysis, group), KernelPlan):
                name = "kernel buffers"
            buffers = max(buffers, _stage_buffers(layer, sizes, analysis, group))
    return {
        "attention weights": attention,
        "factors": (factors + copy) * item,
        "token vectors": tokens * item,
        name: buffers,
    }


def _factored_buffers(
    layer: LayerSizes, sizes: ModelSizes, analysis: Analysis, group: SourceGroup
) -> int:
    """Bytes for norms before the feed-forward block; the kernel needs none beside its result."""
    if not analysis.wants_factored(layer) or analysis.has_kernels(sizes):
        return 0
    sources, device = analysis.batch * group.sources, torch.device(analysis.device).type
    return gram_memory(sources, group.heads, group.targets, layer.d, device)


def _stage_buffers(
    layer: LayerSizes, sizes: ModelSizes, analysis: Analysis, group: SourceGroup
) -> int:
    """Bytes of the feed-forward stage's intermediates."""
    if layer.by_source is not None:
        plan = plan_of(layer, sizes, analysis, group)
        assert isinstance(plan, Plan)
        return plan.sources * part_memory(layer, sizes, analysis)
    shape = sequence_shape(layer, sizes, analysis, group)
    if analysis.rule == SHAPLEY:
        behind = analysis.scopes_behind(layer)
        targets = sampled_targets(shape, behind, analysis.memory_limit)
        shares = 4 * (shape.n + 1) * layer.d * sizes.compute_itemsize
        return targets * (player_memory(shape, behind) + shares)
    plan = plan_of(layer, sizes, analysis, group)
    if isinstance(plan, KernelPlan):
        kernels = kernel_memory(layer, sizes, analysis, group)
        return kernels.matrices if plan.method == MATRICES else kernels.by_source
    return plan.memory(shape)


# The estimate of a batch: operations, memory and the plan of the feed-forward stage.


@dataclass(frozen=True)
class Stage:
    """The plan of a feed-forward stage, for one group of sources of one kind of layer."""

    name: str  # "decoder, sources of the encoder"; empty where there is one
    plan: Plan | KernelPlan
    tiles: int  # of one sequence in a layer; 0: kernels do it


@dataclass(frozen=True)
class Estimate:
    """The operations and bytes of one batch, item by item."""

    operations: dict[str, int]
    memory: dict[str, int]
    stages: tuple[Stage, ...]  # of the first layer of each stack that has one
    published: int  # bytes of one layer's n×n×H×d tensor

    @property
    def plan(self) -> Plan | KernelPlan | None:
        """The plan of the first feed-forward stage."""
        return self.stages[0].plan if self.stages else None

    @property
    def tiles(self) -> int:
        """The tiles of the first feed-forward stage."""
        return self.stages[0].tiles if self.stages else 0

    @property
    def total_operations(self) -> int:
        return sum(self.operations.values())

    @property
    def peak_memory(self) -> int:
        return sum(self.memory.values())

    @property
    def working_memory(self) -> int:
        """The memory of the analysis beside a loaded model."""
        return self.peak_memory - self.memory["model weights"]


def estimate(sizes: ModelSizes, analysis: Analysis) -> Estimate:
    """Operations and memory of an analysis on its device; a function of sizes."""
    _check(sizes, analysis)
    chosen = [sizes.layers[index] for index in analysis.layers]
    operations = {"forward pass": analysis.batch * forward_operations(sizes, analysis)}
    for layer in chosen:
        for item, count in layer_operations(layer, sizes, analysis).items():
            operations[item] = operations.get(item, 0) + count
    pairs = max(
        layer.d * sum(group.heads * group.targets * group.sources for group in groups)
        for layer, groups in ((layer, analysis.groups(layer)) for layer in chosen)
    )
    return Estimate(
        operations=operations,
        memory=memory_of(chosen, sizes, analysis),
        stages=tuple(_stages(chosen, sizes, analysis)),
        published=analysis.batch * pairs * sizes.compute_itemsize,
    )


def _check(sizes: ModelSizes, analysis: Analysis) -> None:
    """Raise where there is nothing to estimate, or a length too few or too many."""
    targets = 1 if analysis.target_tokens is None else analysis.target_tokens
    if analysis.tokens < 1 or analysis.batch < 1 or targets < 1:
        raise InputError("an estimate needs at least one token and one sequence")
    if any(layer.stack for layer in sizes.layers) != (analysis.target_tokens is not None):
        raise InputError(
            "target_tokens are what the decoder of an encoder–decoder reads: give them for such a "
            "model, and for no other"
        )
    layers = [sizes.layers[k] for k in analysis.layers]
    deep = any(layer.by_source and analysis.reaches_feed_forward(layer) for layer in layers)
    if analysis.rule == SHAPLEY and deep:
        raise InputError(NOT_BY_SOURCE)
    if analysis.rule == SHAPLEY and any(layer.cross for layer in layers):
        raise InputError("Shapley values are sampled for layers with one attention only")


def _stages(chosen: Sequence[LayerSizes], sizes: ModelSizes, analysis: Analysis) -> Iterator[Stage]:
    """The plan of each group of sources in the first layer of each stack that has a stage."""
    seen = set()
    for layer in chosen:
        if layer.stack in seen or not analysis.reaches_feed_forward(layer):
            continue
        seen.add(layer.stack)
        for group in analysis.groups(layer):
            plan, tiles = plan_of(layer, sizes, analysis, group), 0
            if isinstance(plan, Plan):
                tiles, _ = covered(group.reach, group.targets, plan, group.sources)
            name = layer.stack
            if layer.cross is not None:
                name += f", sources of the {layer.stack if group.is_own else ENCODER}"
            yield Stage(name, plan, tiles)


def automatic_batch(sizes: ModelSizes, tokens: int, device: torch.device) -> int:
    """How many sequences of so many tokens a lens runs together on `device`."""
    heads = max(layer.heads + (layer.cross.heads if layer.cross else 0) for layer in sizes.layers)
    first = sizes.layers[0]
    width = first.d if first.by_source is None else first.by_source.width
    each = sequence_memory(tokens, heads, width, sizes.compute_itemsize)
    return affordable_sequences(device, sizes.parameters * sizes.itemsize, each)
