"""Operations of a layer's factored parts, followed from its attention to the feed-forward block.

Norms of a group of sources are taken where a requested scope has them, and again only where its
factors have changed: behind a norm, or behind an attention that stood between.
"""

from __future__ import annotations

from dataclasses import dataclass

from normlens.decomposition.costs.gram import gram_operations
from normlens.decomposition.costs.tiles import mix_operations
from normlens.decomposition.fused.precision import SPLIT_PRODUCTS
from normlens.estimate.plans import square_shape
from normlens.estimate.request import Analysis, SourceGroup
from normlens.estimate.sizes import LayerSizes, ModelSizes


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
