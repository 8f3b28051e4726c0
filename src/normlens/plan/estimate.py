"""Estimate operations and memory of an analysis before it runs, by the functions that plan it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch

from normlens.errors import InputError
from normlens.frozen.network import source_memory, sources_at_once
from normlens.frozen.parts import gram_memory, gram_operations
from normlens.frozen.rules import projections
from normlens.frozen.stage import kernel_precision
from normlens.frozen.tiles import Slots, is_supported
from normlens.gpu.sizes import SPLIT_PRODUCTS, Precision
from normlens.layers import (
    Attention,
    Branch,
    FeedForward,
    Layer,
    Norm,
    ParallelFeedForward,
    Projection,
    Reach,
    Residual,
    Step,
)
from normlens.lens import Lens
from normlens.models.parts import DECODER, ENCODER, TwoStacks
from normlens.options import AUTO, NOT_BY_SOURCE, SHAPLEY, AnalysisOptions
from normlens.pipeline.stack_run import stacks_of
from normlens.plan.costs import (
    MATRICES,
    TILES,
    KernelCosts,
    KernelMemory,
    Shape,
    affordable_batch,
    head_product_elements,
    head_product_operations,
    head_products_pay,
    matrix_operations,
    mix_operations,
    player_memory,
    row_operations,
    tile_operations,
)
from normlens.plan.memory import DEFAULT_LIMIT, kernels_run_on
from normlens.plan.method import (
    BY_SOURCE,
    VECTORS,
    KernelPlan,
    Plan,
    check_limit,
    choose_kernel_plan,
    choose_plan,
    sampled_targets,
)
from normlens.trace.recorder import ROWS

# A model without weights, and what the cost of an analysis depends on beside its layers.


def skeleton(config: Any, name: str | None = None) -> Lens:
    """A lens on a model of this configuration that has shapes but no weights."""
    from normlens.models import adapter_class
    from normlens.models.unwrapping import model_of

    adapter_class(config)
    with torch.device("meta"):
        model = model_of(config)
    return Lens(model, name=name)


@dataclass(frozen=True)
class SizedLayer:
    """A layer, of which only shapes are read, and what it does not say itself."""

    layer: Layer
    matrices: int  # elements of the matrices that a token meets: of experts, those of its own
    stack: str = ""  # of an encoder–decoder: "encoder" or "decoder"


@dataclass(frozen=True)
class ModelSizes:
    """The sizes that decide the cost of a whole analysis."""

    layers: tuple[SizedLayer, ...]
    parameters: int
    itemsize: int  # of the model's weights
    compute_itemsize: int  # of the algebra


def sizes_of(lens: Lens, dtype: torch.dtype | None = None) -> ModelSizes:
    """The sizes of a lens's model (a skeleton will do), in `dtype` or else the model's."""
    adapter, weights = lens.adapter, dtype or lens.dtype
    blocks, stacks = adapter.blocks(), [""] * len(lens.layers)
    if isinstance(adapter, TwoStacks):
        count = len(adapter.encoder_blocks())
        stacks = [ENCODER] * count + [DECODER] * (len(blocks) - count)
    layers = []
    for layer, block, stack in zip(lens.layers, blocks, stacks, strict=True):
        matrices = sum(p.numel() for p in block.parameters() if p.dim() == 2)
        if layer.experts is not None:
            matrices += layer.experts.used * _elements(layer.experts.members[0])
        layers.append(SizedLayer(layer, matrices, stack))
    return ModelSizes(
        layers=tuple(layers),
        parameters=sum(p.numel() for p in lens.model.parameters()),
        itemsize=weights.itemsize,
        compute_itemsize=max(4, weights.itemsize),
    )


def _elements(ff: FeedForward) -> int:
    gate = 0 if ff.gate is None else ff.gate.weight.numel()
    return gate + ff.up.weight.numel() + ff.down.weight.numel()


def automatic_batch(sizes: ModelSizes, tokens: int, device: torch.device) -> int:
    """How many sequences of so many tokens a lens runs together on `device`."""
    layers, weights = [each.layer for each in sizes.layers], sizes.parameters * sizes.itemsize
    return affordable_batch(device, layers, weights, tokens, sizes.compute_itemsize)


# What a user asks to be estimated, judged as the lens would judge it.


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

    @property
    def kernel_precision(self) -> Precision:
        """The precision of the kernels' products."""
        return kernel_precision(self.precision)


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


def check_memory_limit(sizes: ModelSizes, analysis: Analysis) -> None:
    """Raise unless the analysis's limit suffices for each stack."""
    chosen = [PlannedLayer(sizes.layers[index], sizes, analysis) for index in analysis.layers]
    for stack in dict.fromkeys(each.stack for each in chosen):
        here = [each for each in chosen if each.stack == stack]
        check_limit(
            analysis.memory_limit or DEFAULT_LIMIT,
            [each.layer for each in here],
            [here[0].n],
            here[0].scopes,
            analysis.rule,
            sizes.compute_itemsize,
            [analysis.tokens],
        )


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


# The sources that one attention reads, with the plan of their feed-forward stage.


@dataclass(eq=False)
class SourceGroup:
    """The sources that one attention of a layer reads, in one sequence of the batch."""

    at: PlannedLayer
    attention: Attention
    sources: int

    def __post_init__(self) -> None:
        self.is_own = self.attention.source is None  # whether they are the targets' tokens
        self.n, self.d, self.heads = self.at.n, self.at.d, self.attention.heads
        self.d_head = self.attention.value.weight.shape[1] // self.attention.groups
        self.reach = self.at.layer.reach if self.is_own else Reach()
        #: Squares that the kernels cut the sources into (`frozen.stage.Squares`).
        self.blocks = 1 if self.is_own else -(-self.sources // self.n)

    @property
    def name(self) -> str:
        """What a result calls them: "decoder, sources of the encoder"; empty where it has none."""
        if len(self.at.layer.attentions) == 1:
            return self.at.stack
        return f"{self.at.stack}, sources of the {self.at.stack if self.is_own else ENCODER}"

    @cached_property
    def shape(self) -> Shape:
        """The sizes of one sequence's feed-forward stage."""
        ff, sources = self.at.layer.feed_forward, None if self.is_own else self.sources
        assert ff is not None
        return Shape.of_block(ff, self.heads, self.reach, self.n, self.at.item, sources)

    @cached_property
    def plan(self) -> Plan | KernelPlan:
        """The kernels' plan where they run and support the layer; otherwise PyTorch's."""
        limit = self.at.analysis.memory_limit
        if self.at.layer.by_source:
            return Plan(VECTORS, sources_at_once(self.at.part_memory, self.n, limit), self.n)
        if self.at.is_fused:
            return choose_kernel_plan(self.kernel_costs)
        return choose_plan(self.shape, limit)

    @property
    def tiles(self) -> int:
        """Tiles of one sequence in a layer; 0: kernels do it."""
        if isinstance(self.plan, KernelPlan):
            return 0
        return covered(self.reach, self.n, self.plan, self.sources)[0]

    @cached_property
    def forms_head_products(self) -> bool:
        """Whether rows come from head products B_h W_k, formed for them, and not from U W_k.

        Tiles decide it for each sequence, the kernels for the whole batch.
        """
        if isinstance(self.plan, KernelPlan):
            tokens = self.at.analysis.batch * self.blocks * self.n
            return self.plan.method == BY_SOURCE and head_products_pay(self.d_head, self.d, tokens)
        if self.at.analysis.rule == SHAPLEY or self.plan.method != TILES or self.at.layer.experts:
            return False
        return head_products_pay(self.d_head, self.d, self.sources)

    # The kernels see another sequence in blocks as long as the targets.

    @property
    def _square(self) -> Shape:
        return self.shape if self.is_own else replace(self.shape, pairs=self.n**2, sources=None)

    @property
    def kernel_costs(self) -> KernelCosts:
        """The cost of each of the kernels' methods for the batch."""
        one, b = self._square, self.at.analysis.batch * self.blocks
        whole = replace(one, n=b * one.n, pairs=b * one.pairs)
        return KernelCosts(whole, self.at.analysis.kernel_precision)

    @property
    def kernel_memory(self) -> KernelMemory:
        """The memory that the kernels take."""
        kinds = [type(step) for step in self.at.tail]
        norm = next((step for step in self.at.tail if isinstance(step, Norm)), None)
        slots = Slots.for_steps(
            ordinary=False,
            normed=norm is not None,
            centred=norm is not None and norm.centred,
            bypassed=Residual in kinds,
            norm_first=kinds[:1] == [Norm],
        )
        return KernelMemory(
            shape=self._square,
            d_head=self.d_head,
            batch=self.at.analysis.batch * self.blocks,
            precision=self.at.analysis.kernel_precision,
            slots=slots.count,
            bypassed=Residual in kinds,
            head_products=self.forms_head_products,
            memory_limit=self.at.analysis.memory_limit,
        )

    # Operations before the feed-forward block, of one sequence.

    def products(self, tokens: int) -> int:
        """Operations of all heads' vectors of some tokens times W_O: U, or a sum of it."""
        return 2 * tokens * self.heads * self.d_head * self.d

    def sums(self) -> int:
        """Operations of the values and their sums over sources; the token's own part is apart."""
        projection = 2 * self.sources * self.d * self.attention.groups * self.d_head
        summed = 2 * self.n * self.sources * self.heads * self.d_head
        return projection + summed + (2 if self.is_own else 1) * self.products(self.n)

    def norms(self) -> int:
        """Operations of the norms of all parts."""
        if not self.at.has_kernels:
            return gram_operations(self.sources, self.heads, self.n, self.d)
        # The parts themselves, by products of two numbers each.
        pairs = self.reach.pairs(self.n) if self.is_own else self.blocks * self.n**2
        return SPLIT_PRODUCTS * mix_operations(Shape(self.n, pairs, self.d, 0, self.heads, 0))

    # Operations and memory of the feed-forward stage, of the whole batch.

    def rows(self) -> int:
        """Operations of the rows of the sources that are mixed."""
        if self.plan.method == MATRICES or self.at.layer.experts:
            return 0
        analysis, m, k = self.at.analysis, self.at.m, self.at.projections
        rows, width, products, sources = 0, self.d, 1, self.sources
        if isinstance(self.plan, KernelPlan):
            products, sources = analysis.kernel_precision.products, self.blocks * self.n
        if self.forms_head_products:
            rows = head_product_operations(self.heads, self.d_head, self.d, m, k)
            width = self.d_head
        tokens = analysis.batch * sources
        return rows + products * row_operations(tokens, self.heads, width, m, k)

    def pairs(self) -> int:
        """Operations of the kernels, if all neurons are active, or of all pairs in the tiles."""
        bypasses = sum(isinstance(step, Residual) for step in self.at.tail)
        if isinstance(self.plan, KernelPlan):
            costs = self.kernel_costs
            mixed = costs.precision.products * mix_operations(costs.shape)
            if self.plan.method == MATRICES:
                return costs.matrix_operations + (1 + bypasses) * mixed
            return costs.by_source + bypasses * mixed
        _, pairs = covered(self.reach, self.n, self.plan, self.sources)
        inside = replace(self.shape, pairs=pairs)
        count = matrix_operations if self.plan.method == MATRICES else tile_operations
        return self.at.analysis.batch * (count(inside) + bypasses * mix_operations(inside))

    def sum_behind_block(self) -> int:
        """Operations of the sum of the parts behind the block, which the kernels must meet."""
        n, width = self.n, self.heads * self.d_head
        mixed = 2 * n * n * width + 2 * n * width * self.d  # of a square of sources
        block = 2 * n * self.d * self.at.m * (self.at.projections + 1)
        return self.at.analysis.batch * self.blocks * (mixed + block)

    def factored_buffers(self) -> int:
        """Bytes for norms before the feed-forward block; the kernel needs none but its result."""
        if not self.at.wants_factored or self.at.has_kernels:
            return 0
        analysis = self.at.analysis
        device = torch.device(analysis.device).type
        return gram_memory(analysis.batch * self.sources, self.heads, self.n, self.d, device)

    def stage_buffers(self) -> int:
        """Bytes of the feed-forward stage's intermediates."""
        at, plan = self.at, self.plan
        if isinstance(plan, KernelPlan):
            kernels = self.kernel_memory
            return kernels.matrices if plan.method == MATRICES else kernels.by_source
        if plan.method == VECTORS:
            return plan.sources * at.part_memory
        if at.analysis.rule == SHAPLEY:
            shares = 4 * (self.n + 1) * self.d * at.item
            return self.sampled_targets * (player_memory(self.shape, at.scopes_behind) + shares)
        return plan.memory(self.shape)

    @property
    def sampled_targets(self) -> int:
        """How many targets the Shapley rule samples at once."""
        return sampled_targets(self.shape, self.at.scopes_behind, self.at.analysis.memory_limit)


# One layer of the analysis.
#
# Operations are multiplications and additions of matrix products. For one batch of `b` sequences of
# `n` tokens (H heads of width d_head, k input projections of the feed-forward block; a decoder that
# reads an encoder has two groups of sources, each with its costs):
#
#     forward pass        2n · (elements of all matrices) + 4n²·H·d_head             per layer
#     checks              2·ROWS · (elements of its linear maps)                     per layer
#     attention parts     U = v B, their sum over sources, norms of parts            per layer
#     feed-forward rows   slopes, the token's own part, and Q = U W                  per layer
#     feed-forward pairs  `plan.costs`: the method of the stage                      per layer
#
# Layers that are not requested take part in the forward pass only. A product of the kernels in
# "float32" is three of short numbers, and counts as three.


@dataclass(eq=False)  # two that look alike are not the same factors
class _Factors:
    """The parts of one group at some point of the layer."""

    group: SourceGroup
    has_values: bool = False  # whether U (j, h, d) is at hand


class PlannedLayer:
    """What an analysis asks of one layer, how that is computed, and what it costs."""

    def __init__(self, sized: SizedLayer, sizes: ModelSizes, analysis: Analysis):
        self.layer, self.stack, self.matrices = sized.layer, sized.stack, sized.matrices
        self.sizes, self.analysis, self.item = sizes, analysis, sizes.compute_itemsize
        tokens = analysis.target_tokens if self.stack == DECODER else analysis.tokens
        assert tokens is not None
        self.n, self.d = tokens, self.layer.attention.output.weight.shape[1]
        self.scopes = analysis.encoder_scopes if self.stack == ENCODER else analysis.scopes
        dtype = torch.float64 if self.item == 8 else torch.float32
        self.has_kernels = kernels_run_on(torch.device(analysis.device), dtype)
        ff, experts = self.layer.feed_forward, self.layer.experts
        one = ff if experts is None else experts.members[0]
        self.m = self.projections = 0
        if isinstance(one, FeedForward):
            self.m = one.up.weight.shape[1] if experts is None else experts.active
            self.projections = len(projections(one))
        named = self.layer.scope_of_step
        #: Steps whose scopes are requested, the deepest of them, and the feed-forward block.
        self.asked = [index for index, scope in named.items() if scope in self.scopes]
        first = [next(iter(named))] if analysis.heads else []
        self.deepest = max([*self.asked, *first], default=-1)
        self.block_at = len(self.layer.steps) if ff is None else self.layer.steps.index(ff)
        self.reaches_feed_forward = self.deepest >= self.block_at
        self.wants_factored = any(index < self.block_at for index in self.asked)

    @cached_property
    def groups(self) -> list[SourceGroup]:
        """The sources of each attention, its own tokens first.

        Another sequence that a model of one stack reads is taken to be as long as the text.
        """
        others = self.analysis.tokens
        return [
            SourceGroup(self, attention, self.n if attention.source is None else others)
            for attention in self.layer.attentions
        ]

    @property
    def tail(self) -> list[Step]:
        """The components behind the feed-forward block, up to the deepest scope."""
        steps = self.layer.steps[self.block_at + 1 : self.deepest + 1]
        return [step for step in steps if not isinstance(step, Branch)]

    @property
    def scopes_behind(self) -> int:
        """The number of scopes from the feed-forward block on, up to the deepest requested one."""
        return 1 + len(self.tail)

    @property
    def is_fused(self) -> bool:
        """Whether the kernels do the stage; they do not sample, and know one block, no experts."""
        if not self.has_kernels or self.analysis.rule == SHAPLEY:
            return False
        if self.layer.experts or self.layer.by_source:
            return False
        return is_supported([type(step) for step in self.tail])

    @property
    def part_memory(self) -> int:
        """Bytes that the parts of one source of a batch take where they are followed as vectors."""
        return source_memory(self.layer, self.analysis.batch, self.n, self.item)

    def forward_operations(self) -> int:
        """Operations of the model's forward pass on one sequence, or pair of sequences."""
        total = 2 * self.n * self.matrices
        for group in self.groups:
            total += 4 * self.n * group.sources * group.heads * group.d_head
            if not group.is_own:  # its keys and values are the other sequence's
                total += 4 * (group.sources - self.n) * group.attention.value.weight.numel()
        return total

    def operations(self) -> dict[str, int]:
        """Operations of the analysis, item by item."""
        b, n = self.analysis.batch, self.n
        linear = sum(linear.weight.numel() for linear in self.layer.linear_maps)
        operations = {"checks": 2 * min(ROWS, b * n) * linear}
        if self.deepest < 0:
            return operations
        operations["attention parts"] = b * self._attention_operations()
        if not self.reaches_feed_forward:
            return operations
        if self.layer.by_source:
            rows, pairs = self._vector_operations()
        elif self.analysis.rule == SHAPLEY:
            rows, pairs = self._sampled_operations()
        else:
            # Once per token: two products with each input projection (the real vector, the token's
            # own part) and three with the output projection; the bias's share has few rows.
            rows = 2 * b * n * self.d * self.m * (2 * self.projections + 3)
            rows += sum(group.rows() for group in self.groups)
            pairs = sum(group.pairs() for group in self.groups)
            if self.is_fused and len(self.groups) > 1:
                rows += sum(group.sum_behind_block() for group in self.groups)
        return operations | {"feed-forward rows": rows, "feed-forward pairs": pairs}

    def _attention_operations(self) -> int:
        """Operations of one sequence before the feed-forward block, as deep as scopes need it.

        Norms of a group of sources are taken where a requested scope has them, and again only where
        its factors have changed: behind a norm, or behind an attention that stood between.
        """
        groups = {group.attention: group for group in self.groups}
        total = self._bottleneck_operations() if self.layer.by_source else 0
        parts: list[_Factors] = []
        saved: list[list[_Factors]] = []
        normed: list[_Factors] = []  # those of the last scope
        for index, step in enumerate(self.layer.steps[: min(self.deepest + 1, self.block_at)]):
            if isinstance(step, Branch):
                saved.append(parts)
            elif isinstance(step, Attention):
                total += groups[step].sums()
                parts = [_Factors(groups[step])]
            elif isinstance(step, Norm):
                parts = [_Factors(each.group) for each in parts]
            elif isinstance(step, Residual):
                parts = [*saved.pop(), *parts]
            elif isinstance(step, ParallelFeedForward):
                total += 2 * self.n * _elements(step.feed_forward)
            if index in self.asked:
                for each in (each for each in parts if each not in normed):
                    total += each.group.norms()
                    total += 0 if each.has_values else each.group.products(each.group.sources)
                    each.has_values = True
                normed = parts
        return total

    def _bottleneck_operations(self) -> int:
        """Operations of one sequence before the attention, beyond values of `d` numbers.

        A bottleneck's way in is passed when the layer is frozen, by the tokens, and by the sources.
        """
        value = self.layer.attention.value.weight
        before = sum(linear.weight.numel() for linear in self.layer.projections) - self._projected
        return 2 * self.n * (3 * before + value.numel() - self.d * value.shape[1])

    @property
    def _projected(self) -> int:
        """Elements of the projections behind the attention."""
        behind = self.layer.steps[self.layer.steps.index(self.layer.attention) :]
        return sum(step.linear.weight.numel() for step in behind if isinstance(step, Projection))

    def _vector_operations(self) -> tuple[int, int]:
        blocks = sum(_elements(step) for step in self.layer.steps if isinstance(step, FeedForward))
        elements = self.layer.attention.output.weight.numel() + blocks + self._projected
        tokens = self.analysis.batch * self.n
        # Slopes need every block at the real vector, and what no token owns passes its products.
        return 4 * tokens * blocks, 2 * tokens * self.n * elements

    def _sampled_operations(self) -> tuple[int, int]:
        n, b, d, m, k = self.n, self.analysis.batch, self.d, self.m, self.projections
        own = self.groups[0]
        blocks = -(-n // own.sampled_targets)
        players = blocks * row_operations(n, own.heads, d, m, k) + 2 * n * n * own.heads * m * k
        # Orders are elementwise; W_down multiplies their mean, and a gradient of each norm, once.
        gradients = self.scopes_behind if self.analysis.samples > 1 else 0
        products = 2 * n * m * d * (n + 1 + gradients * n)
        return b * 2 * n * m * d * (k + 2), b * (players + products)

    def memory(self) -> dict[str, int]:
        """Bytes of the tensors that are alive while the layer is analysed, item by item."""
        n, b, item, d = self.n, self.analysis.batch, self.item, self.d
        itemsize, groups = self.sizes.itemsize, self.groups
        attention = factors = 0
        width = self.layer.width if self.layer.by_source else d
        tokens = b * n * width * (10 + len(self.layer.scope_of_step))
        for group in groups:
            # The weights that the model returned, a copy by source, and one in a product or
            # conversion.
            attention += b * group.heads * n * group.sources * (itemsize + 2 * item)
            factors += b * group.sources * group.heads * (2 * d + group.d_head)
            factors += group.heads * group.d_head * d
            tokens += 0 if group.is_own else b * group.sources * d
        # Matrices that are converted, or copied with a factor inside them.
        maps = self.layer.linear_maps
        scaled = sum(linear.weight.numel() for linear in maps if linear.is_scaled)
        factors += self.matrices if itemsize != item else scaled
        name = "tile buffers"
        buffers = max(group.factored_buffers() for group in groups)
        if self.reaches_feed_forward:
            tokens += b * n * self.m * (self.projections + 4)
            for group in groups:
                if group.forms_head_products:
                    factors += head_product_elements(
                        group.heads, group.d_head, self.m, self.projections
                    )
            name = "kernel buffers" if self.is_fused else name
            buffers = max(buffers, *(group.stage_buffers() for group in groups))
        return {
            "attention weights": attention,
            "factors": factors * item,
            "token vectors": tokens * item,
            name: buffers,
        }


# The estimate of a batch: operations, memory and the plan of the feed-forward stage.


@dataclass(frozen=True)
class Estimate:
    """The operations and bytes of one batch, item by item."""

    operations: dict[str, int]
    memory: dict[str, int]
    stages: tuple[SourceGroup, ...]  # of the first layer of each stack that has one
    published: int  # bytes of one layer's n×n×H×d tensor

    @property
    def plan(self) -> Plan | KernelPlan | None:
        """The plan of the first feed-forward stage."""
        return self.stages[0].plan if self.stages else None

    @property
    def tiles(self) -> int:
        """The tiles of the first feed-forward stage."""
        return self.stages[0].tiles if self.stages else 0

    @property
    def total_operations(self) -> int:
        return sum(self.operations.values())

    @property
    def peak_memory(self) -> int:
        return sum(self.memory.values())

    @property
    def working_memory(self) -> int:
        """The memory of the analysis beside a loaded model."""
        return self.peak_memory - self.memory["model weights"]


def estimate(sizes: ModelSizes, analysis: Analysis) -> Estimate:
    """Operations and memory of an analysis on its device; a function of sizes."""
    _check_lengths(sizes, analysis)
    every = [PlannedLayer(layer, sizes, analysis) for layer in sizes.layers]
    chosen = [every[index] for index in analysis.layers]
    _check_rule(chosen, analysis)
    forward = sum(layer.forward_operations() for layer in every)
    operations = {"forward pass": analysis.batch * forward}
    for layer in chosen:
        for item, count in layer.operations().items():
            operations[item] = operations.get(item, 0) + count
    stacks: dict[str, list[PlannedLayer]] = {}
    for layer in chosen:
        stacks.setdefault(layer.stack, []).append(layer)
    staged = {layer.stack: layer for layer in reversed(chosen) if layer.reaches_feed_forward}
    pairs = max(
        layer.d * sum(group.heads * layer.n * group.sources for group in layer.groups)
        for layer in chosen
    )
    # Only one layer's tensors are alive at a time.
    worst = max((layer.memory() for layer in chosen), key=lambda items: sum(items.values()))
    return Estimate(
        operations=operations,
        memory={
            "model weights": sizes.parameters * sizes.itemsize,
            **worst,
            "result maps": sum(_result_memory(layers, analysis) for layers in stacks.values()),
        },
        stages=tuple(g for stack in stacks if stack in staged for g in staged[stack].groups),
        published=analysis.batch * pairs * sizes.compute_itemsize,
    )


def _result_memory(layers: Sequence[PlannedLayer], analysis: Analysis) -> int:
    """Bytes of the maps of one stack's layers, over all their sources."""
    maps = len(layers[0].scopes)
    if analysis.heads:
        maps += 2 * max(sum(group.heads for group in layer.groups) for layer in layers)
    columns = max(sum(group.sources for group in layer.groups) for layer in layers)
    # A layer's maps are still there while they are copied to those of all layers.
    return analysis.batch * (len(layers) + 1) * maps * layers[0].n * columns * layers[0].item


def _check_lengths(sizes: ModelSizes, analysis: Analysis) -> None:
    """Raise for a length too few or too many."""
    targets = 1 if analysis.target_tokens is None else analysis.target_tokens
    if analysis.tokens < 1 or analysis.batch < 1 or targets < 1:
        raise InputError("an estimate needs at least one token and one sequence")
    if any(layer.stack for layer in sizes.layers) != (analysis.target_tokens is not None):
        raise InputError(
            "target_tokens are what the decoder of an encoder–decoder reads: give them for such a "
            "model, and for no other"
        )


def _check_rule(chosen: Sequence[PlannedLayer], analysis: Analysis) -> None:
    """Raise where Shapley values are asked of layers that have none."""
    if analysis.rule != SHAPLEY:
        return
    if any(layer.layer.by_source and layer.reaches_feed_forward for layer in chosen):
        raise InputError(NOT_BY_SOURCE)
    if any(len(layer.groups) > 1 for layer in chosen):
        raise InputError("Shapley values are sampled for layers with one attention only")
