"""The plan of a layer's feed-forward stage, chosen as the lens chooses it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from normlens.components import Reach
from normlens.decomposition.costs.head_products import head_products_pay
from normlens.decomposition.costs.kernel_memory import KernelMemory
from normlens.decomposition.costs.kernels import KernelCosts
from normlens.decomposition.costs.shape import Shape
from normlens.decomposition.costs.tiles import TILES
from normlens.decomposition.fused.tail import Slots, is_supported
from normlens.decomposition.plan import BY_SOURCE, KernelPlan, Plan, choose_kernel_plan, choose_plan
from normlens.estimate.request import Analysis
from normlens.estimate.sizes import LayerSizes, ModelSizes
from normlens.nonlinearities import SHAPLEY


def plan_of(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> Plan | KernelPlan:
    """The kernels' plan where they run and support the layer; otherwise PyTorch's."""
    if is_fused(layer, sizes, analysis):
        costs = kernel_costs(layer, sizes, analysis)
        pays = head_products_pay(layer.d_head, layer.d, analysis.batch * analysis.tokens)
        return choose_kernel_plan(costs, silent=layer.silent, head_products=pays)
    return choose_plan(sequence_shape(layer, sizes, analysis), analysis.memory_limit)


def is_fused(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> bool:
    """Whether the kernels do the stage.

    They neither sample nor read another sequence, and know nothing of experts.
    """
    if not analysis.has_kernels(sizes) or analysis.rule == SHAPLEY or layer.attentions > 1:
        return False
    if layer.widest is not None:
        return False
    return is_supported(analysis.tail(layer))


def sequence_shape(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> Shape:
    """The sizes of one sequence's feed-forward stage."""
    return layer.shape(analysis.tokens, sizes.compute_itemsize)


def kernel_costs(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> KernelCosts:
    """The cost of each of the kernels' methods for the batch."""
    one, b = sequence_shape(layer, sizes, analysis), analysis.batch
    whole = replace(one, n=b * one.n, pairs=b * one.pairs)
    return KernelCosts(whole, analysis.kernel_precision)


def kernel_memory(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> KernelMemory:
    """The memory that the kernels take."""
    tail = analysis.tail(layer)
    slots = Slots.for_steps(
        ordinary=False,
        normed="LN" in tail,
        centred="LN" in tail and layer.centred,
        bypassed="RES" in tail,
        norm_first=tail[:1] == ("LN",),
    )
    return KernelMemory(
        shape=sequence_shape(layer, sizes, analysis),
        d_head=layer.d_head,
        batch=analysis.batch,
        precision=analysis.kernel_precision,
        slots=slots.count,
        bypassed="RES" in tail,
        head_products=forms_head_products(layer, sizes, analysis),
        memory_limit=analysis.memory_limit,
    )


def forms_head_products(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> bool:
    """Whether rows come from head products B_h W_k, formed for them, and not from U W_k.

    Tiles decide it for each sequence, the kernels for the whole batch.
    """
    plan = plan_of(layer, sizes, analysis)
    if isinstance(plan, KernelPlan):
        tokens = analysis.batch * analysis.tokens
        return plan.method == BY_SOURCE and head_products_pay(layer.d_head, layer.d, tokens)
    if analysis.rule == SHAPLEY or plan.method != TILES or layer.widest is not None:
        return False
    return head_products_pay(layer.d_head, layer.d, analysis.tokens)


@lru_cache(maxsize=256)
def covered(reach: Reach, n: int, plan: Plan) -> tuple[int, int]:
    """The number of tiles that are not empty, and of the pairs inside them.

    Tiles are rectangles and masks are not, so these are more pairs than the mask allows.
    """
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
