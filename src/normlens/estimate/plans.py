"""The way that a layer's feed-forward stage will take, chosen as the lens chooses it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from normlens.components import Reach
from normlens.decomposition.costs.kernel_memory import KernelMemory
from normlens.decomposition.costs.kernels import KernelCosts
from normlens.decomposition.costs.paths import paths_pay
from normlens.decomposition.costs.shape import Shape
from normlens.decomposition.costs.tiles import TILES
from normlens.decomposition.fused.tail import Slots, is_known
from normlens.decomposition.plan import BY_SOURCE, KernelPlan, Plan, choose_plan, choose_way
from normlens.estimate.request import Analysis
from normlens.estimate.sizes import LayerSizes, ModelSizes
from normlens.nonlinearities import SHAPLEY


def plan_of(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> Plan | KernelPlan:
    """The kernels' way on a GPU that they run on, where they know the layer; else PyTorch's."""
    if is_fused(layer, sizes, analysis):
        costs = kernel_costs(layer, sizes, analysis)
        paths = paths_pay(layer.d_head, layer.d, analysis.batch * analysis.tokens)
        return choose_way(costs, silent=layer.silent, paths=paths)
    return choose_plan(sequence_shape(layer, sizes, analysis), analysis.memory_limit)


def is_fused(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> bool:
    """Whether the kernels do the stage; they do not sample, nor read another sequence."""
    if not analysis.has_kernels(sizes) or analysis.rule == SHAPLEY or layer.attentions > 1:
        return False
    return is_known(analysis.tail(layer))


def sequence_shape(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> Shape:
    """The stage of one sequence."""
    return layer.shape(analysis.tokens, sizes.compute_itemsize)


def kernel_costs(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> KernelCosts:
    """What the kernels' ways through the batch cost."""
    one, b = sequence_shape(layer, sizes, analysis), analysis.batch
    whole = replace(one, n=b * one.n, pairs=b * one.pairs)
    return KernelCosts(whole, analysis.kernel_precision)


def kernel_memory(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> KernelMemory:
    """What the kernels keep in memory."""
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
        paths=forms_paths(layer, sizes, analysis),
        memory_limit=analysis.memory_limit,
    )


def forms_paths(layer: LayerSizes, sizes: ModelSizes, analysis: Analysis) -> bool:
    """Whether rows come from B W that is formed for them, and not from U W.

    Tiles decide it for each sequence, the kernels for the batch.
    """
    plan = plan_of(layer, sizes, analysis)
    if isinstance(plan, KernelPlan):
        tokens = analysis.batch * analysis.tokens
        return plan.method == BY_SOURCE and paths_pay(layer.d_head, layer.d, tokens)
    if analysis.rule == SHAPLEY or plan.method != TILES:
        return False
    return paths_pay(layer.d_head, layer.d, analysis.tokens)


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
