"""Memory of an analysis: bytes of the tensors that are alive while a layer is analysed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from normlens.decomposition.costs.gram import gram_memory
from normlens.decomposition.costs.head_products import head_product_elements
from normlens.decomposition.costs.tiles import MATRICES, player_memory
from normlens.decomposition.plan import KernelPlan, sampled_targets
from normlens.estimate.plans import forms_head_products, kernel_memory, plan_of, sequence_shape
from normlens.estimate.request import Analysis
from normlens.estimate.sizes import LayerSizes, ModelSizes
from normlens.nonlinearities import SHAPLEY


def memory_of(
    chosen: Sequence[LayerSizes], sizes: ModelSizes, analysis: Analysis
) -> dict[str, int]:
    """Bytes of an analysis, item by item; only one layer's tensors are alive at a time."""
    n, b, item = analysis.tokens, analysis.batch, sizes.compute_itemsize
    maps = len(analysis.scopes)
    if analysis.heads:
        maps += 2 * max(layer.heads for layer in chosen)
    per_layer = [_layer_memory(layer, sizes, analysis) for layer in chosen]
    worst = max(per_layer, key=lambda items: sum(items.values()))
    return {
        "model weights": sizes.parameters * sizes.itemsize,
        **worst,
        # A layer's maps are still there while they are copied to those of all layers.
        "result maps": b * (len(chosen) + 1) * maps * n * n * item,
    }


def _layer_memory(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> dict[str, int]:
    n, b, item, d = analysis.tokens, analysis.batch, sizes.compute_itemsize, layer.d
    converted = sizes.itemsize != item
    # The weights that the model returned, a copy by source, and one in a product or conversion.
    attention = b * layer.heads * n * n * (sizes.itemsize + 2 * item)
    factors = b * n * layer.heads * (2 * d + layer.d_head) + layer.heads * layer.d_head * d
    tokens = b * n * d * (10 + len(layer.symbols))
    copy = layer.matrices if converted else layer.scaled
    name, buffers = "tile buffers", _factored_buffers(layer, sizes, analysis)
    if analysis.reaches_feed_forward(layer):
        tokens += b * n * layer.m * (layer.projections + 4)
        if forms_head_products(layer, sizes, analysis):
            factors += head_product_elements(layer.heads, layer.d_head, layer.m, layer.projections)
        if isinstance(plan_of(layer, sizes, analysis), KernelPlan):
            name = "kernel buffers"
        buffers = max(buffers, _stage_buffers(layer, sizes, analysis))
    return {
        "attention weights": attention,
        "factors": (factors + copy) * item,
        "token vectors": tokens * item,
        name: buffers,
    }


def _factored_buffers(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> int:
    """Bytes for norms before the feed-forward block; the kernel needs none beside its result."""
    if not analysis.wants_factored(layer) or analysis.has_kernels(sizes):
        return 0
    n, device = analysis.tokens, torch.device(analysis.device).type
    return gram_memory(analysis.batch * n, layer.heads, n, layer.d, device)


def _stage_buffers(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> int:
    """Bytes of the feed-forward stage's intermediates."""
    shape = sequence_shape(layer, sizes, analysis)
    if analysis.rule == SHAPLEY:
        behind = analysis.scopes_behind(layer)
        targets = sampled_targets(shape, behind, analysis.memory_limit)
        shares = 4 * (shape.n + 1) * layer.d * sizes.compute_itemsize
        return targets * (player_memory(shape, behind) + shares)
    plan = plan_of(layer, sizes, analysis)
    if isinstance(plan, KernelPlan):
        kernels = kernel_memory(layer, sizes, analysis)
        return kernels.matrices if plan.method == MATRICES else kernels.by_source
    return plan.memory(shape)
