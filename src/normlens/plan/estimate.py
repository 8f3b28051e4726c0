"""Estimate operations and memory of a call before it runs, by the functions that plan it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch

from normlens.errors import InputError, require
from normlens.frozen.parts import gram_memory, gram_operations
from normlens.frozen.stage import is_supported, kernel_precision, kernel_slots
from normlens.gpu.sizes import SPLIT_PRODUCTS, kernels_run_on
from normlens.inputs.encode import reader_of
from normlens.inputs.text import SOURCE, TARGET, TEXT, Encoded
from normlens.layers import Attention, Branch, FeedForward, Linear, Norm, Reach, Residual, blocks_of
from normlens.lens import Lens
from normlens.models.parts import DECODER, ENCODER, TwoStacks
from normlens.options import NOT_BY_SOURCE, NOT_FOR_EXPERTS, SHAPLEY, AnalysisOptions
from normlens.pipeline.batches import layers_by_stack
from normlens.pipeline.call import Stack, check_memory_limit, stacks_of
from normlens.plan import costs
from normlens.plan.costs import MATRICES, TILES, VECTORS, Plan, Shape
from normlens.plan.kernels import KernelStage
from normlens.trace.run import ROWS


def skeleton(config: Any, name: str | None = None, dtype: torch.dtype | None = None) -> Lens:
    """A lens on a model of this configuration that has shapes but no weights."""
    from normlens.models import adapter_class
    from normlens.models.unwrapping import model_of

    adapter_class(config)
    with torch.device("meta"):
        model = model_of(config)
    return Lens(model if dtype is None else model.to(dtype), name=name)


# The call that a user asks to be estimated.


@dataclass(frozen=True)
class Estimate:
    """Operations and bytes of one batch of a call, item by item; a function of sizes.

    The lens may be a skeleton, and the device need not be here. Of an encoder–decoder `tokens` are
    the source's.
    """

    lens: Lens
    tokens: int
    options: AnalysisOptions
    target_tokens: int | None = None  # what a decoder reads; None: the model has one stack
    batch: int = 1
    device: str = "cpu"

    @cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """What the options ask of each stack of layers."""
        return stacks_of(self.lens, self.options, arrays=True, correlations=False)

    @cached_property
    def layers(self) -> list[PlannedLayer]:
        """Every layer of the model."""
        by_name = layers_by_stack(self.lens.adapter, self.lens.layers)
        names = [name for name, layers in by_name.items() for _ in layers]
        return [PlannedLayer(self, index, name) for index, name in enumerate(names)]

    @cached_property
    def chosen(self) -> list[PlannedLayer]:
        """The layers that are asked for."""
        places = [stack.first + index for stack in self.stacks for index in stack.chosen]
        return [self.layers[place] for place in places]

    def check(self) -> None:
        """Raise for lengths, a memory limit or a rule that the call would be refused for."""
        lens, adapter, lengths = self.lens, self.lens.adapter, {TEXT: self.tokens}
        item = source = Encoded([], [""] * self.tokens, [])
        if isinstance(adapter, TwoStacks):
            if self.target_tokens is None:
                raise InputError(
                    f"{lens.name} is an encoder–decoder; give the length of its target, too: "
                    "--estimate N,M"
                )
            lengths = {SOURCE: self.tokens, TARGET: self.target_tokens}
            item = Encoded([], [""] * self.target_tokens, [], source=source)
            frames = adapter.max_source_positions()
            require(
                not adapter.hears or self.tokens == frames,
                f"{lens.name} hears its source, which always has {frames} frames; give so many",
            )
        else:
            require(
                self.target_tokens is None,
                f"a target's length is for encoder–decoders; {lens.name} reads one text",
            )
        for name, count in lengths.items():
            most = reader_of(lens, name).limit
            fits = most is None or count <= most
            require(fits, f"{lens.name} takes at most {most} tokens in its {name}, not {count}")
        if self.options.memory_limit is not None:
            for stack in self.stacks:
                check_memory_limit(lens, stack, [item])
        for planned in self.chosen if self.options.nonlinearity == SHAPLEY else ():
            reasons = {
                NOT_BY_SOURCE: planned.layer.by_source,
                NOT_FOR_EXPERTS: planned.layer.experts,
                "the cost of Shapley values is known for layers with one attention only": (
                    len(planned.groups) > 1
                ),
            }
            for reason, holds in reasons.items():
                require(not (holds and planned.reaches_feed_forward), reason)

    @property
    def operations(self) -> dict[str, int]:
        """Multiplications and additions of matrix products."""
        forward = sum(layer.forward_operations() for layer in self.layers)
        total = Counter({"forward pass": self.batch * forward})
        for layer in self.chosen:
            total.update(layer.operations())
        return dict(total)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of the model, of the largest layer (only one's tensors are alive), and of maps."""
        worst = max(
            (layer.memory() for layer in self.chosen), key=lambda items: sum(items.values())
        )
        results = 0
        for stack in self.stacks:
            layers = [layer for layer in self.chosen if layer.stack == stack.name]
            maps = len(stack.scopes)
            if self.options.heads:
                maps += 2 * max(sum(group.heads for group in layer.groups) for layer in layers)
            columns = max(sum(group.sources for group in layer.groups) for layer in layers)
            # A layer's maps are still there while they are copied to those of all layers.
            results += (len(layers) + 1) * maps * layers[0].n * columns
        results *= self.batch * self.lens.compute_dtype.itemsize
        return {"model weights": self.weights, **worst, "result maps": results}

    @property
    def weights(self) -> int:
        return sum(parameter.nbytes for parameter in self.lens.model.parameters())

    @property
    def total_operations(self) -> int:
        return sum(self.operations.values())

    @property
    def peak_memory(self) -> int:
        return sum(self.memory.values())

    @property
    def stages(self) -> list[SourceGroup]:
        """The feed-forward stages of the first layer of each stack that has one."""
        first: dict[str, list[SourceGroup]] = {}
        for layer in self.chosen:
            if layer.reaches_feed_forward:
                first.setdefault(layer.stack, layer.groups)
        return [group for groups in first.values() for group in groups]

    @property
    def published(self) -> int:
        """Bytes of one layer's n×n×H×d tensor."""
        numbers = max(
            layer.d * sum(group.heads * layer.n * group.sources for group in layer.groups)
            for layer in self.chosen
        )
        return self.batch * numbers * self.lens.compute_dtype.itemsize

    def automatic_batch(self) -> int:
        """How many such sequences a lens runs together on the device."""
        tokens, item = max(self.tokens, self.target_tokens or 0), self.lens.compute_dtype.itemsize
        device = torch.device(self.device)
        return costs.affordable_batch(device, self.lens.layers, self.weights, tokens, item)


@lru_cache(maxsize=256)
def covered(reach: Reach, n: int, plan: Plan, sources: int) -> tuple[int, int]:
    """The number of tiles that are not empty, and of the pairs inside them.

    Tiles are rectangles and masks are not, so these are more pairs than the mask allows.
    """
    tiles = pairs = 0
    for j in range(0, sources, plan.sources):
        for i in range(0, n, plan.targets):
            targets = min(i + plan.targets, n)
            low, high = reach.sources(i, targets, sources)
            count = min(high, j + plan.sources) - max(low, j)
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
        self.n, self.d, self.batch = at.n, at.d, at.call.batch
        self.is_own = attention.source is None  # whether they are the targets' tokens
        self.sources = at.n if self.is_own else at.call.tokens
        self.d_head = attention.value.weight.shape[1] // attention.groups
        self.reach = at.layer.reach if self.is_own else Reach()
        #: Squares that the kernels cut the sources into (`frozen.stage.Squares`).
        self.blocks = 1 if self.is_own else -(-self.sources // self.n)
        self.limit = at.options.limit

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

    @property
    def forms_head_products(self) -> bool:
        """Whether rows come from head products B_h W_k, formed for them, and not from U W_k.

        Tiles decide it for each sequence, the kernels for the whole batch.
        """
        if self.at.is_fused:
            return self.kernels.forms_head_products
        if (
            self.at.options.nonlinearity == SHAPLEY
            or self.plan.method != TILES
            or self.at.layer.experts
        ):
            return False
        return costs.head_products_pay(self.d_head, self.d, self.sources)

    @cached_property
    def kernels(self) -> KernelStage:
        """The stage by kernels, which see another sequence in blocks as long as the targets."""
        kinds = [type(step) for step in self.at.tail]
        norm = next((step for step in self.at.tail if isinstance(step, Norm)), None)
        slots = kernel_slots(False, norm, Residual in kinds, kinds[:1] == [Norm])
        pairs = self.shape.pairs if self.is_own else self.n**2
        return KernelStage(
            replace(self.shape, pairs=pairs, sources=None),
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
        width = self.d_head if self.forms_head_products else self.d  # of what rows come from
        row = 2 * self.shape.projections * self.heads * width * self.shape.m
        formed = self.d * row if self.forms_head_products else 0
        products, sources = 1, self.sources
        if self.at.is_fused:
            products, sources = self.at.precision.products, self.blocks * self.n
        return formed + products * self.batch * sources * row

    def pairs(self) -> int:
        """Operations of the kernels, if all neurons are active, or of all pairs in the tiles."""
        bypasses = sum(isinstance(step, Residual) for step in self.at.tail)
        matrices = self.plan.method == MATRICES
        if self.at.is_fused:
            stage = self.kernels
            mixed = stage.precision.products * stage.batch * costs.mix_operations(stage.shape)
            products = stage.matrix_operations + mixed if matrices else stage.by_source
            return products + bypasses * mixed
        _, pairs = covered(self.reach, self.n, self.plan, self.sources)
        inside = replace(self.shape, pairs=pairs)
        operations = costs.operations(inside, MATRICES if matrices else TILES)
        return self.batch * (operations + bypasses * costs.mix_operations(inside))

    def stage_buffers(self) -> int:
        """Bytes of the feed-forward stage's intermediates."""
        if self.at.is_fused:
            return self.kernels.memory
        if self.plan.method == VECTORS:
            return self.plan.sources * self.at.part_memory
        if self.at.options.nonlinearity == SHAPLEY:
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
# For one batch of `b` sequences of `n` tokens (H heads of width d_head, k input projections of the
# feed-forward block; a decoder that reads an encoder has two groups of sources, each with its
# costs):
#
#     forward pass        2n · (elements of all matrices) + 4n²·H·d_head             per layer
#     checks              2·ROWS · (elements of its linear maps)                     per layer
#     attention parts     U = v B, their sum over sources, norms of parts            per layer
#     feed-forward rows   slopes, the token's own part, and Q = U W                  per layer
#     feed-forward pairs  `plan.costs`: the method of the stage                      per layer
#
# Layers that are not requested take part in the forward pass only. A product of the kernels in
# "float32" is three of short numbers, and counts as three.


class PlannedLayer:
    """What a call asks of one layer, how that is computed, and what it costs."""

    def __init__(self, call: Estimate, index: int, stack: str):
        lens, self.call, self.stack = call.lens, call, stack
        self.layer, self.options = lens.layers[index], call.options
        self.item = lens.compute_dtype.itemsize
        self.n = (call.target_tokens or 0) if stack == DECODER else call.tokens
        self.d = self.layer.attention.output.weight.shape[1]
        #: Elements of the matrices that a token meets: of experts, those of its own.
        block = lens.adapter.blocks()[index]
        self.matrices = sum(p.numel() for p in block.parameters() if p.dim() == 2)
        if self.layer.experts is not None:
            self.matrices += self.layer.experts.used * _in_block(self.layer.experts.members[0])
        self.has_kernels = kernels_run_on(torch.device(call.device), lens.compute_dtype)
        self.precision = kernel_precision(self.options.precision)
        named, ff = self.layer.scope_of_step, self.layer.feed_forward
        requested = [s for each in call.stacks if each.name == stack for s in each.scopes]
        #: Steps whose scopes are requested, the deepest of them, and the feed-forward block.
        self.asked = [step for step, scope in named.items() if scope in requested]
        first = [next(iter(named))] if self.options.heads else []
        self.deepest = max([*self.asked, *first], default=-1)
        self.block_at = len(self.layer.steps) if ff is None else self.layer.steps.index(ff)
        self.reaches_feed_forward = self.deepest >= self.block_at
        #: The components behind the feed-forward block, up to the deepest scope.
        behind = self.layer.steps[self.block_at + 1 : self.deepest + 1]
        self.tail = [step for step in behind if not isinstance(step, Branch)]
        self.scopes_behind = 1 + len(self.tail)  # from the block on
        #: Whether the kernels do the stage; they do not sample, and know one block, no experts.
        self.is_fused = (
            self.has_kernels
            and self.options.nonlinearity != SHAPLEY
            and not (self.layer.experts or self.layer.by_source)
            and is_supported([type(step) for step in self.tail])
        )
        #: The sources of each attention, its own tokens first.
        self.groups = [SourceGroup(self, attention) for attention in self.layer.attentions]

    @property
    def part_memory(self) -> int:
        """Bytes that the parts of one source of a batch take where they are followed as vectors."""
        return costs.source_memory(self.layer, self.call.batch, self.n, self.item)

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
        tokens = self.call.batch * self.n
        operations = {"checks": 2 * min(ROWS, tokens) * _elements(self.layer.linear_maps)}
        if self.deepest < 0:
            return operations
        operations["attention parts"] = self.call.batch * self._attention_operations()
        if not self.reaches_feed_forward:
            return operations
        shape = self.groups[0].shape
        if self.layer.by_source:
            rows, pairs = self._vector_operations()
        elif self.options.nonlinearity == SHAPLEY:
            rows, pairs = self._sampled_operations()
        else:
            # Once per token: the real vector, the token's own part and the bias pass the block.
            rows = 2 * tokens * self.d * shape.m * 3 * (shape.projections + 1)
            rows += sum(group.rows() for group in self.groups)
            pairs = sum(group.pairs() for group in self.groups)
            # Of two attentions the kernels must meet the sum of the parts behind the block, which
            # is formed square by square.
            for group in self.groups if self.is_fused and len(self.groups) > 1 else ():
                width = group.heads * group.d_head
                square = 2 * self.n * (self.n * width + width * self.d)
                block = 2 * self.n * self.d * shape.m * (shape.projections + 1)
                rows += self.call.batch * group.blocks * (square + block)
        return operations | {"feed-forward rows": rows, "feed-forward pairs": pairs}

    def _attention_operations(self) -> int:
        """Operations of one sequence before the feed-forward block, as deep as scopes need it.

        Norms of a group of sources are taken where a requested scope has them, and again only where
        its factors have changed: behind a norm, or behind an attention that stood between.
        """
        groups = {group.attention: group for group in self.groups}
        total = 0
        if self.layer.by_source:
            # The way into a bottleneck is passed when the layer is frozen, by tokens and sources.
            value, (before, _) = self.layer.attention.value.weight, self._around_values()
            total += 2 * self.n * (3 * before + value.numel() - self.d * value.shape[1])
        # Factors of the parts, by the step that made them and their sources.
        parts: list[tuple[int, SourceGroup]] = []
        saved: list[list[tuple[int, SourceGroup]]] = []
        normed, formed = set(parts), set(parts)  # those of the last scope; those with U (j, h, d)
        for index, step in enumerate(self.layer.steps[: min(self.deepest + 1, self.block_at)]):
            if isinstance(step, Branch):
                saved.append(parts)
            elif isinstance(step, Attention):
                total += groups[step].sums()
                parts = [(index, groups[step])]
            elif isinstance(step, Norm):
                parts = [(index, group) for _, group in parts]
            elif isinstance(step, Residual):
                parts = [*saved.pop(), *parts]
            else:
                total += 2 * self.n * sum(map(_in_block, blocks_of(step)))
            if index in self.asked:
                total += sum(group.norms() for _, group in set(parts) - normed)
                total += sum(group.products(group.sources) for _, group in set(parts) - formed)
                normed = set(parts)
                formed |= normed
        return total

    def _around_values(self) -> tuple[int, int]:
        """Elements of the linear maps before the values, and of those behind them."""
        maps = self.layer.linear_maps
        place = maps.index(self.layer.attention.value)
        return _elements(maps[:place]), _elements(maps[place + 1 :])

    def _vector_operations(self) -> tuple[int, int]:
        blocks = sum(_in_block(block) for step in self.layer.steps for block in blocks_of(step))
        tokens = self.call.batch * self.n
        # Slopes need every block at the real vector, and what no token owns passes its products.
        return 4 * tokens * blocks, 2 * tokens * self.n * self._around_values()[1]

    def _sampled_operations(self) -> tuple[int, int]:
        own, n, b, d = self.groups[0], self.n, self.call.batch, self.d
        m, k = own.shape.m, own.shape.projections
        blocks = -(-n // own.sampled_targets)
        players = 2 * n * own.heads * m * k * (blocks * d + n)
        # Orders are elementwise; W_down multiplies their mean, and a gradient of each norm, once.
        gradients = self.scopes_behind if self.options.samples > 1 else 0
        products = 2 * n * m * d * (n + 1 + gradients * n)
        return b * 2 * n * m * d * (k + 2), b * (players + products)

    def memory(self) -> dict[str, int]:
        """Bytes of the tensors that are alive while the layer is analysed, item by item."""
        n, b, item, d = self.n, self.call.batch, self.item, self.d
        itemsize, groups = self.call.lens.dtype.itemsize, self.groups
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
        scaled = [linear for linear in self.layer.linear_maps if linear.is_scaled]
        factors += self.matrices if itemsize != item else _elements(scaled)
        buffers = [0]
        if not self.has_kernels and any(step < self.block_at for step in self.asked):
            device = torch.device(self.call.device).type
            buffers = [gram_memory(b * g.sources, g.heads, n, d, device) for g in groups]
        if self.reaches_feed_forward:
            m, k = groups[0].shape.m, groups[0].shape.projections
            tokens += b * n * m * (k + 4)
            for group in groups:
                if group.forms_head_products:
                    factors += costs.head_product_elements(group.heads, group.d_head, m, k)
                buffers.append(group.stage_buffers())
        is_fused = self.is_fused and self.reaches_feed_forward
        return {
            "attention weights": attention,
            "factors": factors * item,
            "token vectors": tokens * item,
            "kernel buffers" if is_fused else "tile buffers": max(buffers),
        }


def _elements(maps: Iterable[Linear]) -> int:
    return sum(linear.weight.numel() for linear in maps)


def _in_block(block: FeedForward) -> int:
    return _elements([*block.inputs, block.down])
