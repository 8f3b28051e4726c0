"""Operations of an analysis: multiplications and additions of matrix products.

For one batch of `b` sequences of `n` tokens (H heads of width d_head, k input projections of the
feed-forward block):

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

from normlens.decomposition.costs.gram import gram_operations
from normlens.decomposition.costs.head_products import head_product_operations, row_operations
from normlens.decomposition.costs.tiles import (
    MATRICES,
    TILES,
    matrix_operations,
    mix_operations,
    tile_operations,
)
from normlens.decomposition.fused.precision import SPLIT_PRODUCTS
from normlens.decomposition.plan import KernelPlan, Plan, sampled_targets
from normlens.estimate.plans import (
    covered,
    forms_head_products,
    kernel_costs,
    plan_of,
    sequence_shape,
)
from normlens.estimate.request import Analysis
from normlens.estimate.sizes import LayerSizes, ModelSizes
from normlens.nonlinearities import SHAPLEY
from normlens.tracing.rows import ROWS


def forward_operations(sizes: ModelSizes, n: int) -> int:
    """Operations of the model's forward pass on one sequence."""
    return sum(
        2 * n * layer.matrices + 4 * n * n * layer.heads * layer.d_head for layer in sizes.layers
    )


def layer_operations(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> dict[str, int]:
    """Operations of the analysis of one layer, item by item."""
    b = analysis.batch
    operations = {"checks": 2 * min(ROWS, b * analysis.tokens) * layer.linear}
    if analysis.depth(layer) == 0:
        return operations
    operations["attention parts"] = b * _attention_operations(layer, sizes, analysis)
    if not analysis.reaches_feed_forward(layer):
        return operations
    if analysis.rule == SHAPLEY:
        return operations | _sampled_operations(layer, sizes, analysis)
    plan = plan_of(layer, sizes, analysis)
    rows = _row_operations(layer, sizes, analysis, plan)
    if isinstance(plan, KernelPlan):
        pairs = _kernel_operations(layer, sizes, analysis, plan)
    else:
        pairs = b * _tile_operations(layer, sizes, analysis, plan)
    return operations | {"feed-forward rows": rows, "feed-forward pairs": pairs}


def _attention_operations(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> int:
    n, d, heads, depth = analysis.tokens, layer.d, layer.heads, analysis.depth(layer)
    values = 2 * n * heads * layer.d_head * d  # U, or a sum of it
    projection = 2 * n * d * layer.groups * layer.d_head
    total = projection + 2 * values + 2 * n * n * heads * layer.d_head
    if analysis.has_kernels(sizes):
        # The parts themselves, by products of two numbers each.
        norms = SPLIT_PRODUCTS * mix_operations(sequence_shape(layer, sizes, analysis))
    else:
        norms = gram_operations(n, heads, n, d)
    taken = False  # a residual does not change the factors, so their norms are taken once
    last = depth if layer.feed_forward_at is None else min(depth, layer.feed_forward_at)
    for position in range(last):
        if layer.symbols[position] == "LN":
            taken = False
        if layer.symbols[position] == "FF":
            total += 2 * n * layer.parallel
        if analysis.wants(layer, position) and not taken:
            total += norms + values
            taken = True
    return total


def _sampled_operations(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> dict[str, int]:
    n, b, d, m, k = analysis.tokens, analysis.batch, layer.d, layer.m, layer.projections
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


def _row_operations(
    layer: LayerSizes, sizes: ModelSizes, analysis: Analysis, plan: Plan | KernelPlan
) -> int:
    """Operations that are done once per token, and those of the rows that are mixed."""
    d, m, heads, k = layer.d, layer.m, layer.heads, layer.projections
    tokens = analysis.batch * analysis.tokens
    # Two products with each input projection (the real vector, the token's own part) and three
    # with the output projection; the bias's share has a few rows only.
    rows = 2 * tokens * d * m * (2 * k + 3)
    if plan.method == MATRICES or layer.widest is not None:
        return rows
    width, products = d, 1 if plan.method == TILES else analysis.kernel_precision.products
    if forms_head_products(layer, sizes, analysis):
        rows += head_product_operations(heads, layer.d_head, d, m, k)
        width = layer.d_head
    return rows + products * row_operations(tokens, heads, width, m, k)


def _tile_operations(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis, plan: Plan) -> int:
    """Operations of one sequence's tiles, for all pairs that they cover, allowed or not."""
    _, pairs = covered(layer.reach, analysis.tokens, plan)
    inside = replace(sequence_shape(layer, sizes, analysis), pairs=pairs)
    count = matrix_operations(inside) if plan.method == MATRICES else tile_operations(inside)
    return count + analysis.tail(layer).count("RES") * mix_operations(inside)


def _kernel_operations(
    layer: LayerSizes, sizes: ModelSizes, analysis: Analysis, plan: KernelPlan
) -> int:
    """Operations of the kernels for the whole batch, if all neurons are active."""
    costs = kernel_costs(layer, sizes, analysis)
    mixed = costs.precision.products * mix_operations(costs.shape)
    bypass = analysis.tail(layer).count("RES") * mixed
    if plan.method == MATRICES:
        return costs.matrix_operations + mixed + bypass
    return costs.by_source_operations + bypass
