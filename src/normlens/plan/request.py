"""The analysis that an estimate is for: a model's sizes, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from normlens.errors import InputError
from normlens.frozen.network import source_memory
from normlens.frozen.stage import kernel_precision
from normlens.gpu.sizes import Precision
from normlens.layers import (
    Attention,
    Experts,
    FeedForward,
    Layer,
    ParallelFeedForward,
    Projection,
    Reach,
)
from normlens.lens import Lens
from normlens.models.parts import DECODER, ENCODER, TwoStacks
from normlens.options import AUTO, AnalysisOptions
from normlens.pipeline.stack_run import stacks_of
from normlens.plan.memory import DEFAULT_LIMIT, kernels_run_on
from normlens.plan.method import check_limit

# A model without weights, and the sizes that the cost of an analysis depends on.


def skeleton(config: Any, name: str | None = None) -> Lens:
    """A lens on a model of this configuration that has shapes but no weights."""
    from normlens.models import adapter_class
    from normlens.models.unwrapping import model_of

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


# The analysis that an estimate is for.


@dataclass(frozen=True)
class SourceGroup:
    """The sources that one attention of a layer reads, for one sequence."""

    heads: int
    groups: int
    d_head: int
    targets: int
    sources: int
    reach: Reach
    is_own: bool  # whether they are the targets' tokens

    @property
    def blocks(self) -> int:
        """Squares that the kernels cut the sources into (`decomposition.squares`)."""
        return 1 if self.is_own else -(-self.sources // self.targets)


@dataclass(frozen=True)
class Analysis:
    """The analysis to estimate: lengths, layers, scopes, options and device.

    Of an encoder–decoder `tokens` are the source's and `scopes` the decoder's.
    """

    tokens: int
    layers: tuple[int, ...]  # from 0; an encoder's come first
    scopes: tuple[str, ...]
    batch: int = 1
    heads: bool = False
    rule: str = "ig"
    samples: int = 64
    memory_limit: int | None = None
    device: str = "cpu"  # need not be in this machine
    precision: str = AUTO  # of the kernels' products
    target_tokens: int | None = None  # what a decoder reads; None: the model has one stack
    encoder_scopes: tuple[str, ...] = ()

    def has_kernels(self, sizes: ModelSizes) -> bool:
        """Whether the GPU kernels support this device and the model's precision."""
        dtype = torch.float64 if sizes.compute_itemsize == 8 else torch.float32
        return kernels_run_on(torch.device(self.device), dtype)

    @property
    def kernel_precision(self) -> Precision:
        """The precision of the kernels' products."""
        return kernel_precision(self.precision)

    def targets(self, layer: LayerSizes) -> int:
        """The number of tokens that a layer's stack reads."""
        if layer.stack != DECODER:
            return self.tokens
        assert self.target_tokens is not None
        return self.target_tokens

    def groups(self, layer: LayerSizes) -> list[SourceGroup]:
        """The sources of each of a layer's attentions, its own tokens first.

        Another sequence that a model of one stack reads is taken to be as long as the text.
        """
        n, cross = self.targets(layer), layer.cross
        sizes = layer.heads, layer.groups, layer.d_head
        groups = [SourceGroup(*sizes, n, n, layer.reach, is_own=True)]
        if cross is not None:
            sizes = cross.heads, cross.groups, cross.d_head
            groups.append(SourceGroup(*sizes, n, self.tokens, Reach(), is_own=False))
        return groups

    def scopes_of(self, layer: LayerSizes) -> tuple[str, ...]:
        """The scopes that are requested of a layer's stack."""
        return self.encoder_scopes if layer.stack == ENCODER else self.scopes

    def depth(self, layer: LayerSizes) -> int:
        """The number of components of the deepest scope, from the attention on; 0: none."""
        prefix, deepest = "", 0
        for position, symbol in enumerate(layer.symbols, start=1):
            prefix += symbol
            if f"{prefix}-N" in self.scopes_of(layer):
                deepest = position
        return max(deepest, 1) if self.heads else deepest

    def reaches_feed_forward(self, layer: LayerSizes) -> bool:
        """Whether the deepest scope stands behind the feed-forward block."""
        at = layer.feed_forward_at
        return at is not None and self.depth(layer) > at

    def scopes_behind(self, layer: LayerSizes) -> int:
        """The number of scopes from the feed-forward block on, up to the deepest requested one."""
        assert layer.feed_forward_at is not None
        return self.depth(layer) - layer.feed_forward_at

    def tail(self, layer: LayerSizes) -> tuple[str, ...]:
        """The components behind the feed-forward block, up to the deepest scope."""
        assert layer.feed_forward_at is not None
        return layer.symbols[layer.feed_forward_at + 1 : self.depth(layer)]

    def wants_factored(self, layer: LayerSizes) -> bool:
        """Whether norms of parts before the feed-forward block are requested."""
        before = len(layer.symbols) if layer.feed_forward_at is None else layer.feed_forward_at
        return any(self.wants(layer, position) for position in range(before))

    def wants(self, layer: LayerSizes, position: int) -> bool:
        """Whether the scope that ends with this component is requested."""
        return f"{''.join(layer.symbols[: position + 1])}-N" in self.scopes_of(layer)


# What a user asks to be estimated, judged as the lens would judge it.


def check_lengths(lens: Lens, tokens: int, target_tokens: int | None) -> None:
    """Raise for texts that the model does not take, and say which of two is too long."""
    if not isinstance(lens.adapter, TwoStacks):
        if target_tokens is not None:
            raise InputError(f"--target-tokens is for encoder–decoders; {lens.name} reads one text")
        limits = {"": (tokens, lens.max_tokens)}
    elif target_tokens is None:
        raise InputError(
            f"{lens.name} is an encoder–decoder; give the length of its target with --target-tokens"
        )
    else:
        frames = lens.adapter.max_source_positions()
        if lens.adapter.hears and tokens != frames:
            raise InputError(
                f"{lens.name} hears its source, which always has {frames} frames; give --tokens "
                f"{frames}"
            )
        source = (tokens, frames)
        limits = {" in its source": source, " in its target": (target_tokens, lens.max_tokens)}
    for where, (count, most) in limits.items():
        if most is not None and count > most:
            raise InputError(f"{lens.name} takes at most {most} tokens{where}, not {count}")


def layers_and_scopes(lens: Lens, asked: AnalysisOptions) -> dict[str, Any]:
    """The layers and scopes of an `Analysis`: the model's, or those of either stack."""
    if not lens.two_stacks:
        layers, scopes = asked.layers_of(lens.n_layers, lens.name), asked.scopes_of(lens.scopes)
        return {"layers": tuple(layers), "scopes": tuple(scopes)}
    *encoder, decoder = stacks_of(lens, asked, arrays=True, correlations=False)
    layers = [stack.first + k for stack in (*encoder, decoder) for k in stack.request.layers]
    return {
        "layers": tuple(layers),
        "scopes": tuple(decoder.request.scopes),
        "encoder_scopes": tuple(scope for stack in encoder for scope in stack.request.scopes),
    }


def check_memory_limit(lens: Lens, sizes: ModelSizes, analysis: Analysis) -> None:
    """Raise unless the analysis's limit suffices for each stack."""
    for stack in dict.fromkeys(sizes.layers[index].stack for index in analysis.layers):
        here = [index for index in analysis.layers if sizes.layers[index].stack == stack]
        first = sizes.layers[here[0]]
        check_limit(
            analysis.memory_limit or DEFAULT_LIMIT,
            [lens.layers[index] for index in here],
            [analysis.targets(first)],
            analysis.scopes_of(first),
            analysis.rule,
            sizes.compute_itemsize,
            [analysis.tokens],
        )
