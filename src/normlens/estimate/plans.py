"""The plan of a layer's feed-forward stage, chosen as the lens chooses it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from normlens.components import Reach
from normlens.decomposition.by_source import sources_at_once
from normlens.decomposition.costs.head_products import head_products_pay
from normlens.decomposition.costs.kernel_memory import KernelMemory
from normlens.decomposition.costs.kernels import KernelCosts
from normlens.decomposition.costs.shape import Shape
from normlens.decomposition.costs.tiles import TILES
from normlens.decomposition.fused.tail import Slots, is_supported
from normlens.decomposition.plan import (
    BY_SOURCE,
    VECTORS,
    KernelPlan,
    Plan,
    choose_kernel_plan,
    choose_plan,
)
from normlens.estimate.request import Analysis, SourceGroup
from normlens.estimate.sizes import LayerSizes, ModelSizes
from normlens.nonlinearities import SHAPLEY


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
