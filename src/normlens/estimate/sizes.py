"""A model without weights, and the sizes that the cost of an analysis depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from normlens.components import (
    Attention,
    Experts,
    FeedForward,
    Layer,
    ParallelFeedForward,
    Projection,
    Reach,
)
from normlens.decomposition.source_parts import source_memory
from normlens.lens import Lens
from normlens.models.two_stacks import DECODER, ENCODER, TwoStacks


def skeleton(config: Any, name: str | None = None) -> Lens:
    """A lens on a model of this configuration that has shapes but no weights."""
    from normlens.models import adapter_class
    from normlens.models.classes import model_of

    adapter_class(config)
    with torch.device("meta"):
        model = model_of(config)
    return Lens(model, name=name)


@dataclass(frozen=True)
class CrossSizes:
    """The sizes of an attention to another sequence."""

    heads: int
    groups: int
    d_head: int
    value: int  # elements of its value projection; its keys are as many


@dataclass(frozen=True)
class BySource:
    """The sizes of a layer whose parts are followed as vectors (`decomposition.by_source`)."""

    width: int  # of the widest vectors
    elements: int  # of the matrices that each part passes, from W_O on
    blocks: int  # elements of all feed-forward blocks
    before: int  # elements that a token meets before the attention, beyond values of `d` numbers
    part: int  # numbers that one part takes on its way


@dataclass(frozen=True)
class LayerSizes:
    """The sizes that decide one layer's cost; heads are those of the attention to its tokens."""

    d: int
    heads: int
    groups: int
    d_head: int
    matrices: int  # elements of all its matrices
    linear: int  # elements of the linear maps that are compared with their modules' outputs
    symbols: tuple[str, ...]  # components from the attention on, in order
    reach: Reach
    path: tuple[str, ...] = ()  # all steps in order; "": a branching point
    m: int = 0  # neurons that a token uses; 0: no feed-forward block behind the attention
    projections: int = 0
    parallel: int = 0  # elements of a feed-forward block beside the attention
    centred: bool = False  # whether the norm behind the block subtracts the mean
    cross: CrossSizes | None = None  # None: it reads its own tokens alone
    stack: str = ""  # of an encoder–decoder: "encoder" or "decoder"
    scaled: int = 0  # elements of the matrices that are copied with a factor inside them
    widest: int | None = None  # neurons of the largest expert; None: one block for all tokens
    by_source: BySource | None = None  # None: parts behind the block are inside tiles or kernels

    @property
    def feed_forward_at(self) -> int | None:
        """Position of the feed-forward block among the symbols, if it stands behind ATTN."""
        return self.symbols.index("FF") if self.m else None


@dataclass(frozen=True)
class ModelSizes:
    """The sizes that decide the cost of a whole analysis."""

    layers: tuple[LayerSizes, ...]
    parameters: int
    itemsize: int  # of the model's weights
    compute_itemsize: int  # of the algebra


def sizes_of(lens: Lens, dtype: torch.dtype | None = None) -> ModelSizes:
    """The sizes of a lens's model (a skeleton will do), in `dtype` or else the model's."""
    adapter, weights = lens.adapter, dtype or lens.dtype
    blocks, stacks = adapter.blocks(), [""] * len(adapter.blocks())
    if isinstance(adapter, TwoStacks):
        count = len(adapter.encoder_blocks())
        stacks = [ENCODER] * count + [DECODER] * (len(blocks) - count)
    return ModelSizes(
        layers=tuple(
            _layer_sizes(adapter.layer(block), block, stack)
            for block, stack in zip(blocks, stacks, strict=True)
        ),
        parameters=sum(p.numel() for p in lens.model.parameters()),
        itemsize=weights.itemsize,
        compute_itemsize=max(4, weights.itemsize),
    )


def _layer_sizes(layer: Layer, block: Any, stack: str) -> LayerSizes:
    attention, block_behind = layer.attention, layer.feed_forward
    experts = layer.experts
    ff = block_behind.members[0] if isinstance(block_behind, Experts) else block_behind
    beside = [step.feed_forward for step in layer.steps if isinstance(step, ParallelFeedForward)]
    behind = layer.norm_behind_feed_forward
    return LayerSizes(
        d=attention.output.weight.shape[1],
        heads=attention.heads,
        groups=attention.groups,
        d_head=attention.value.weight.shape[1] // attention.groups,
        matrices=_matrices(layer, block),
        linear=sum(linear.weight.numel() for linear in layer.linear_maps),
        symbols=tuple(layer.steps[index].symbol for index in layer.scope_of_step),
        reach=layer.reach,
        path=tuple(step.symbol for step in layer.steps),
        m=0 if ff is None else ff.up.weight.shape[1] if experts is None else experts.active,
        projections=0 if ff is None else (1 if ff.gate is None else 2),
        parallel=sum(_elements(block) for block in beside),
        centred=behind is not None and behind.centred,
        cross=next((_cross_sizes(a) for a in layer.attentions if a.source is not None), None),
        stack=stack,
        scaled=sum(linear.weight.numel() for linear in layer.linear_maps if linear.is_scaled),
        widest=None if experts is None else experts.widest,
        by_source=_by_source(layer) if layer.by_source else None,
    )


def _by_source(layer: Layer) -> BySource:
    blocks = [step for step in layer.steps if isinstance(step, FeedForward)]
    inside = sum(_elements(block) for block in blocks)
    behind = layer.steps[layer.steps.index(layer.attention) :]
    projected = sum(s.linear.weight.numel() for s in behind if isinstance(s, Projection))
    elements = layer.attention.output.weight.numel() + inside + projected
    value, d = layer.attention.value.weight, layer.attention.output.weight.shape[1]
    # A bottleneck's way in is passed when the layer is frozen, by the tokens, and by the sources.
    before = sum(linear.weight.numel() for linear in layer.projections) - projected
    before = 3 * before + value.numel() - d * value.shape[1]
    return BySource(layer.width, elements, inside, before, source_memory(layer, 1, 1, 1))


def _cross_sizes(attention: Attention) -> CrossSizes:
    value = attention.value.weight
    d_head = value.shape[1] // attention.groups
    return CrossSizes(attention.heads, attention.groups, d_head, value.numel())


def _matrices(layer: Layer, block: Any) -> int:
    """Elements of the matrices that a token meets in a layer: of experts, those of its own."""
    matrices = sum(p.numel() for p in block.parameters() if p.dim() == 2)
    if layer.experts is not None:
        matrices += layer.experts.used * _elements(layer.experts.members[0])
    return matrices


def _elements(ff: FeedForward) -> int:
    gate = 0 if ff.gate is None else ff.gate.weight.numel()
    return gate + ff.up.weight.numel() + ff.down.weight.numel()
