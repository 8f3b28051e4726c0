"""Operations of an analysis: multiplications and additions of matrix products.

For one batch of `b` sequences of `n` tokens (H heads of width d_head, k input projections of the
feed-forward block; a decoder that reads an encoder has two groups of sources, each with its costs):

    forward pass        2n · (elements of all matrices) + 4n²·H·d_head             per layer
    checks              2·ROWS · (elements of its linear maps)                     per layer
    attention parts     U = v B, their sum over sources, norms of parts            per layer
    feed-forward rows   slopes, the token's own part, and Q = U W                  per layer
    feed-forward pairs  `decomposition.costs`: the method of the stage             per layer

Layers that are not requested take part in the forward pass only. A product of the kernels in
"float32" is three of short numbers, and counts as three.
"""

from __future__ import annotations

from dataclasses import replace

from normlens.decomposition.costs.head_products import head_product_operations, row_operations
from normlens.decomposition.costs.tiles import (
    MATRICES,
    TILES,
    matrix_operations,
    mix_operations,
    tile_operations,
)
from normlens.decomposition.plan import KernelPlan, Plan, sampled_targets
from normlens.estimate.attention_walk import attention_operations
from normlens.estimate.plans import (
    covered,
    forms_head_products,
    kernel_costs,
    plan_of,
    sequence_shape,
)
from normlens.estimate.request import Analysis, SourceGroup
from normlens.estimate.sizes import LayerSizes, ModelSizes
from normlens.nonlinearities import SHAPLEY
from normlens.tracing.rows import ROWS


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
