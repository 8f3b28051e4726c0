"""Estimate operations and memory of a call before it runs, by the functions that plan it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch

from normlens.errors import InputError
from normlens.frozen.parts import gram_memory, gram_operations
from normlens.frozen.stage import is_supported, kernel_precision, kernel_slots
from normlens.gpu.sizes import SPLIT_PRODUCTS, kernels_run_on
from normlens.layers import (
    Attention,
    Branch,
    FeedForward,
    Norm,
    ParallelFeedForward,
    Projection,
    Reach,
    Residual,
)
from normlens.lens import Lens
from normlens.models.parts import DECODER, ENCODER, TwoStacks
from normlens.options import DEFAULT_LIMIT, NOT_BY_SOURCE, SHAPLEY, AnalysisOptions, Settings
from normlens.pipeline.call import Stack, stacks_of
from normlens.plan import costs
from normlens.plan.costs import MATRICES, TILES, VECTORS, Plan, Shape
from normlens.plan.kernels import KernelStage
from normlens.trace.run import ROWS


def skeleton(config: Any, name: str | None = None) -> Lens:
    """A lens on a model of this configuration that has shapes but no weights."""
    from normlens.models import adapter_class
    from normlens.models.unwrapping import model_of

    adapter_class(config)
    with torch.device("meta"):
        model = model_of(config)
    return Lens(model, name=name)


# The call that a user asks to be estimated, judged as the lens would judge it.


@dataclass(frozen=True)
class Analysis:
    """A call of a lens (a skeleton will do): options, lengths and the device, which may be absent.

    Of an encoder–decoder `tokens` are the source's.
    """

    lens: Lens
    tokens: int
    options: AnalysisOptions
    target_tokens: int | None = None  # what a decoder reads; None: the model has one stack
    batch: int = 1
    device: str = "cpu"
    dtype: torch.dtype | None = None  # of the weights; None: the model's

    @cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """What the options ask of each stack of layers."""
        return stacks_of(self.lens, self.options, arrays=True, correlations=False)

    @cached_property
    def settings(self) -> Settings:
        return self.options.settings

    @property
    def itemsize(self) -> int:
        """Bytes of one of the weights' numbers; those of the algebra have four at least."""
        return (self.dtype or self.lens.dtype).itemsize

    @property
    def weights(self) -> int:
        """Bytes of the model."""
        return self.itemsize * sum(p.numel() for p in self.lens.model.parameters())

    @cached_property
    def layers(self) -> list[PlannedLayer]:
        """Every layer of the model."""
        return [PlannedLayer(self, index) for index in range(self.lens.n_layers)]

    def scopes(self, name: str = "") -> list[str]:
        """The scopes that are asked of a stack."""
        return [s for stack in self.stacks if stack.name == name for s in stack.request.scopes]

    def chosen(self, stack: Stack) -> list[PlannedLayer]:
        """The layers that are asked for."""
        return [self.layers[stack.first + index] for index in stack.request.layers]

    def check_lengths(self) -> None:
        """Raise for texts that the model does not take, and say which of two is too long."""
        lens, tokens, target_tokens = self.lens, self.tokens, self.target_tokens
        if not isinstance(lens.adapter, TwoStacks):
            if target_tokens is not None:
                raise InputError(
                    f"--target-tokens is for encoder–decoders; {lens.name} reads one text"
                )
            limits = {"": (tokens, lens.max_tokens)}
        elif target_tokens is None:
            raise InputError(
                f"{lens.name} is an encoder–decoder; give the length of its target with "
                "--target-tokens"
            )
        else:
            frames = lens.adapter.max_source_positions()
            if lens.adapter.hears and tokens != frames:
                raise InputError(
                    f"{lens.name} hears its source, which always has {frames} frames; give "
                    f"--tokens {frames}"
                )
            target = (target_tokens, lens.max_tokens)
            limits = {" in its source": (tokens, frames), " in its target": target}
        for where, (count, most) in limits.items():
            if most is not None and count > most:
                raise InputError(f"{lens.name} takes at most {most} tokens{where}, not {count}")

    def check_memory_limit(self) -> None:
        """Raise unless the limit suffices for each stack."""
        for stack in self.stacks:
            chosen = self.chosen(stack)
            costs.check_limit(
                self.settings.memory_limit or DEFAULT_LIMIT,
                [each.layer for each in chosen],
                [chosen[0].n],
                stack.request.scopes,
                self.settings.rule,
                chosen[0].item,
                [self.tokens],
            )

    def automatic_batch(self) -> int:
        """How many such sequences a lens runs together on the device."""
        tokens, item = max(self.tokens, self.target_tokens or 0), self.layers[0].item
        device = torch.device(self.device)
        return costs.affordable_batch(device, self.lens.layers, self.weights, tokens, item)


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


class SourceGroup:
    """The sources that one attention of a layer reads, in one sequence of the batch.

    Another sequence that a model of one stack reads is taken to be as long as the text.
    """

    def __init__(self, at: PlannedLayer, attention: Attention):
        self.at, self.attention, self.heads = at, attention, attention.heads
        self.n, self.d, self.batch = at.n, at.d, at.analysis.batch
        self.is_own = attention.source is None  # whether they are the targets' tokens
        self.sources = at.n if self.is_own else at.analysis.tokens
        self.d_head = attention.value.weight.shape[1] // attention.groups
        self.reach = at.layer.reach if self.is_own else Reach()
        #: Squares that the kernels cut the sources into (`frozen.stage.Squares`).
        self.blocks = 1 if self.is_own else -(-self.sources // self.n)
        self.limit = at.settings.memory_limit

    @property
    def name(self) -> str:
        """What a result calls them: "decoder, sources of the encoder"; empty where it has none."""
        if len(self.at.groups) == 1:
            return self.at.stack
        return f"{self.at.stack}, sources of the {self.at.stack if self.is_own else ENCODER}"

    @cached_property
    def shape(self) -> Shape:
        """The sizes of one sequence's feed-forward stage."""
        ff, sources = self.at.layer.feed_forward, None if self.is_own else self.sources
        assert ff is not None
        return Shape.of_block(ff, self.heads, self.reach, self.n, self.at.item, sources)

    @cached_property
    def plan(self) -> Plan:
        """The kernels' plan where they run and support the layer; otherwise PyTorch's."""
        if self.at.layer.by_source:
            together = costs.sources_at_once(self.at.part_memory, self.n, self.limit)
            return Plan(VECTORS, together, self.n)
        if self.at.is_fused:
            return Plan(self.kernels.method, 0, 0)
        return costs.choose_plan(self.shape, self.limit)

    @property
    def tiles(self) -> int:
        """Tiles of one sequence in a layer; 0: kernels do it."""
        return 0 if self.at.is_fused else covered(self.reach, self.n, self.plan, self.sources)[0]

    @cached_property
    def forms_head_products(self) -> bool:
        """Whether rows come from head products B_h W_k, formed for them, and not from U W_k.

        Tiles decide it for each sequence, the kernels for the whole batch.
        """
        if self.at.is_fused:
            return self.kernels.forms_head_products
        if self.at.settings.rule == SHAPLEY or self.plan.method != TILES or self.at.layer.experts:
            return False
        return costs.head_products_pay(self.d_head, self.d, self.sources)

    @cached_property
    def kernels(self) -> KernelStage:
        """The stage by kernels, which see another sequence in blocks as long as the targets."""
        kinds = [type(step) for step in self.at.tail]
        norm = next((step for step in self.at.tail if isinstance(step, Norm)), None)
        slots = kernel_slots(False, norm, Residual in kinds, kinds[:1] == [Norm])
        one, pairs = self.shape, self.shape.pairs if self.is_own else self.n**2
        return KernelStage(
            replace(one, pairs=pairs, sources=None),
            self.at.precision,
            self.batch * self.blocks,
            self.d_head,
            slots["SLOTS"],
            Residual in kinds,
            self.limit,
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
        return SPLIT_PRODUCTS * pairs * 2 * self.d * self.heads

    # Operations and memory of the feed-forward stage, of the whole batch.

    def rows(self) -> int:
        """Operations of the rows of the sources that are mixed."""
        if self.plan.method == MATRICES or self.at.layer.experts:
            return 0
        m, k = self.shape.m, self.shape.projections
        formed, width, products, sources = 0, self.d, 1, self.sources
        if self.at.is_fused:
            products, sources = self.at.precision.products, self.blocks * self.n
        if self.forms_head_products:
            width = self.d_head
            formed = 2 * self.d * costs.head_product_elements(self.heads, width, m, k)
        tokens = self.batch * sources
        return formed + products * costs.row_operations(tokens, self.heads, width, m, k)

    def pairs(self) -> int:
        """Operations of the kernels, if all neurons are active, or of all pairs in the tiles."""
        bypasses = sum(isinstance(step, Residual) for step in self.at.tail)
        if self.at.is_fused:
            stage = self.kernels
            mixed = stage.precision.products * stage.batch * costs.mix_operations(stage.shape)
            if stage.method == MATRICES:
                return stage.matrix_operations + (1 + bypasses) * mixed
            return stage.by_source + bypasses * mixed
        _, pairs = covered(self.reach, self.n, self.plan, self.sources)
        inside = replace(self.shape, pairs=pairs)
        matrices = self.plan.method == MATRICES
        count = costs.matrix_operations if matrices else costs.tile_operations
        return self.batch * (count(inside) + bypasses * costs.mix_operations(inside))

    def sum_behind_block(self) -> int:
        """Operations of the sum of the parts behind the block, which the kernels must meet."""
        n, width = self.n, self.heads * self.d_head
        mixed = 2 * n * n * width + 2 * n * width * self.d  # of a square of sources
        block = 2 * n * self.d * self.shape.m * (self.shape.projections + 1)
        return self.batch * self.blocks * (mixed + block)

    def factored_buffers(self) -> int:
        """Bytes for norms before the feed-forward block; the kernel needs none but its result."""
        if not self.at.wants_factored or self.at.has_kernels:
            return 0
        device = torch.device(self.at.analysis.device).type
        return gram_memory(self.batch * self.sources, self.heads, self.n, self.d, device)

    def stage_buffers(self) -> int:
        """Bytes of the feed-forward stage's intermediates."""
        if self.at.is_fused:
            return self.kernels.memory
        if self.plan.method == VECTORS:
            return self.plan.sources * self.at.part_memory
        if self.at.settings.rule == SHAPLEY:
            shares = 4 * (self.n + 1) * self.d * self.at.item
            players = costs.player_memory(self.shape, self.at.scopes_behind)
            return self.sampled_targets * (players + shares)
        return self.plan.memory(self.shape)

    @property
    def sampled_targets(self) -> int:
        """How many targets the Shapley rule samples at once."""
        return costs.sampled_targets(self.shape, self.at.scopes_behind, self.limit)


# One layer of the call.
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
    """What a call asks of one layer, how that is computed, and what it costs."""

    def __init__(self, analysis: Analysis, index: int):
        lens, self.analysis, self.settings = analysis.lens, analysis, analysis.settings
        self.layer, self.item = lens.layers[index], max(4, analysis.itemsize)
        self.stack = ""  # of an encoder–decoder: which of its stacks
        if isinstance(lens.adapter, TwoStacks):
            self.stack = ENCODER if index < len(lens.adapter.encoder_blocks()) else DECODER
        self.n = analysis.tokens
        if self.stack == DECODER:
            assert analysis.target_tokens is not None
            self.n = analysis.target_tokens
        self.d, self.width = self.layer.attention.output.weight.shape[1], self.layer.width
        #: Elements of the matrices that a token meets: of experts, those of its own.
        block = lens.adapter.blocks()[index]
        self.matrices = sum(p.numel() for p in block.parameters() if p.dim() == 2)
        if self.layer.experts is not None:
            self.matrices += self.layer.experts.used * _elements(self.layer.experts.members[0])
        dtype = torch.float64 if self.item == 8 else torch.float32
        self.has_kernels = kernels_run_on(torch.device(analysis.device), dtype)
        self.precision = kernel_precision(self.settings.precision)
        named, ff = self.layer.scope_of_step, self.layer.feed_forward
        requested = analysis.scopes(self.stack)
        #: Steps whose scopes are requested, the deepest of them, and the feed-forward block.
        self.asked = [step for step, scope in named.items() if scope in requested]
        first = [next(iter(named))] if self.settings.heads else []
        self.deepest = max([*self.asked, *first], default=-1)
        self.block_at = len(self.layer.steps) if ff is None else self.layer.steps.index(ff)
        self.reaches_feed_forward = self.deepest >= self.block_at
        self.wants_factored = any(step < self.block_at for step in self.asked)
        #: The components behind the feed-forward block, up to the deepest scope.
        behind = self.layer.steps[self.block_at + 1 : self.deepest + 1]
        self.tail = [step for step in behind if not isinstance(step, Branch)]
        self.scopes_behind = 1 + len(self.tail)  # from the block on
        #: Whether the kernels do the stage; they do not sample, and know one block, no experts.
        self.is_fused = (
            self.has_kernels
            and self.settings.rule != SHAPLEY
            and not (self.layer.experts or self.layer.by_source)
            and is_supported([type(step) for step in self.tail])
        )
        #: The sources of each attention, its own tokens first.
        self.groups = [SourceGroup(self, attention) for attention in self.layer.attentions]

    @property
    def part_memory(self) -> int:
        """Bytes that the parts of one source of a batch take where they are followed as vectors."""
        return costs.source_memory(self.layer, self.analysis.batch, self.n, self.item)

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
        tokens = self.analysis.batch * self.n
        linear = sum(linear.weight.numel() for linear in self.layer.linear_maps)
        operations = {"checks": 2 * min(ROWS, tokens) * linear}
        if self.deepest < 0:
            return operations
        operations["attention parts"] = self.analysis.batch * self._attention_operations()
        if not self.reaches_feed_forward:
            return operations
        shape = self.groups[0].shape
        if self.layer.by_source:
            rows, pairs = self._vector_operations()
        elif self.settings.rule == SHAPLEY:
            rows, pairs = self._sampled_operations()
        else:
            # Once per token: the real vector, the token's own part and the bias pass the block.
            rows = 2 * tokens * self.d * shape.m * 3 * (shape.projections + 1)
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
        own, n, b, d = self.groups[0], self.n, self.analysis.batch, self.d
        m, k = own.shape.m, own.shape.projections
        blocks = -(-n // own.sampled_targets)
        players = blocks * costs.row_operations(n, own.heads, d, m, k)
        players += 2 * n * n * own.heads * m * k
        # Orders are elementwise; W_down multiplies their mean, and a gradient of each norm, once.
        gradients = self.scopes_behind if self.settings.samples > 1 else 0
        products = 2 * n * m * d * (n + 1 + gradients * n)
        return b * 2 * n * m * d * (k + 2), b * (players + products)

    def memory(self) -> dict[str, int]:
        """Bytes of the tensors that are alive while the layer is analysed, item by item."""
        n, b, item, d = self.n, self.analysis.batch, self.item, self.d
        itemsize, groups = self.analysis.itemsize, self.groups
        attention = factors = 0
        width = self.width if self.layer.by_source else d
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
            m, k = groups[0].shape.m, groups[0].shape.projections
            tokens += b * n * m * (k + 4)
            formed = [group for group in groups if group.forms_head_products]
            for group in formed:
                factors += costs.head_product_elements(group.heads, group.d_head, m, k)
            name = "kernel buffers" if self.is_fused else name
            buffers = max(buffers, *(group.stage_buffers() for group in groups))
        return {
            "attention weights": attention,
            "factors": factors * item,
            "token vectors": tokens * item,
            name: buffers,
        }


def _elements(ff: FeedForward) -> int:
    """Elements of a block's matrices."""
    gate = 0 if ff.gate is None else ff.gate.weight.numel()
    return gate + ff.up.weight.numel() + ff.down.weight.numel()


# The estimate of a batch: operations, memory and the plan of the feed-forward stage.


@dataclass(frozen=True)
class Estimate:
    """The operations and bytes of one batch, item by item."""

    operations: dict[str, int]
    memory: dict[str, int]
    stages: tuple[SourceGroup, ...]  # of the first layer of each stack that has one
    published: int  # bytes of one layer's n×n×H×d tensor

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


def estimate(analysis: Analysis) -> Estimate:
    """Operations and memory of a call on its device; a function of sizes."""
    stacks = [analysis.chosen(stack) for stack in analysis.stacks]
    chosen = [layer for layers in stacks for layer in layers]
    if analysis.settings.rule == SHAPLEY:
        if any(layer.layer.by_source and layer.reaches_feed_forward for layer in chosen):
            raise InputError(NOT_BY_SOURCE)
        if any(len(layer.groups) > 1 for layer in chosen):
            raise InputError("Shapley values are sampled for layers with one attention only")
    forward = sum(layer.forward_operations() for layer in analysis.layers)
    operations = {"forward pass": analysis.batch * forward}
    for layer in chosen:
        for item, count in layer.operations().items():
            operations[item] = operations.get(item, 0) + count
    staged = [[layer for layer in layers if layer.reaches_feed_forward] for layers in stacks]
    pairs = max(
        layer.d * sum(group.heads * layer.n * group.sources for group in layer.groups)
        for layer in chosen
    )
    # Only one layer's tensors are alive at a time.
    worst = max((layer.memory() for layer in chosen), key=lambda items: sum(items.values()))
    results = sum(
        _result_memory(layers, len(stack.request.scopes), analysis)
        for layers, stack in zip(stacks, analysis.stacks, strict=True)
    )
    return Estimate(
        operations=operations,
        memory={"model weights": analysis.weights, **worst, "result maps": results},
        stages=tuple(group for layers in staged for layer in layers[:1] for group in layer.groups),
        published=analysis.batch * pairs * chosen[0].item,
    )


def _result_memory(layers: Sequence[PlannedLayer], maps: int, analysis: Analysis) -> int:
    """Bytes of the maps of one stack's layers, over all their sources."""
    if analysis.settings.heads:
        maps += 2 * max(sum(group.heads for group in layer.groups) for layer in layers)
    columns = max(sum(group.sources for group in layer.groups) for layer in layers)
    # A layer's maps are still there while they are copied to those of all layers.
    return analysis.batch * (len(layers) + 1) * maps * layers[0].n * columns * layers[0].item
