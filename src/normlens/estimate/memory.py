"""Memory of an analysis: bytes of the tensors that are alive while a layer is analysed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from normlens.decomposition.costs.gram import gram_memory
from normlens.decomposition.costs.head_products import head_product_elements
from normlens.decomposition.costs.tiles import MATRICES, player_memory
from normlens.decomposition.plan import KernelPlan, Plan, sampled_targets
from normlens.estimate.plans import (
    forms_head_products,
    kernel_memory,
    part_memory,
    plan_of,
    sequence_shape,
)
from normlens.estimate.request import Analysis, SourceGroup
from normlens.estimate.sizes import LayerSizes, ModelSizes
from normlens.nonlinearities import SHAPLEY


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
