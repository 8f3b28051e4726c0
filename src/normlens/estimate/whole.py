"""The estimate of a batch: operations, memory and the plan of the feed-forward stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from normlens.decomposition.costs.batches import affordable_sequences, sequence_memory
from normlens.decomposition.plan import KernelPlan, Plan
from normlens.errors import InputError
from normlens.estimate.memory import memory_of
from normlens.estimate.operations import forward_operations, layer_operations
from normlens.estimate.plans import covered, plan_of
from normlens.estimate.request import Analysis
from normlens.estimate.sizes import LayerSizes, ModelSizes
from normlens.models.two_stacks import ENCODER
from normlens.nonlinearities import NOT_BY_SOURCE, SHAPLEY


@dataclass(frozen=True)
class Stage:
    """The plan of a feed-forward stage, for one group of sources of one kind of layer."""

    name: str  # "decoder, sources of the encoder"; empty where there is one
    plan: Plan | KernelPlan
    tiles: int  # of one sequence in a layer; 0: kernels do it


@dataclass(frozen=True)
class Estimate:
    """The operations and bytes of one batch, item by item."""

    operations: dict[str, int]
    memory: dict[str, int]
    stages: tuple[Stage, ...]  # of the first layer of each stack that has one
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
    _check(sizes, analysis)
    chosen = [sizes.layers[index] for index in analysis.layers]
    operations = {"forward pass": analysis.batch * forward_operations(sizes, analysis)}
    for layer in chosen:
        for item, count in layer_operations(layer, sizes, analysis).items():
            operations[item] = operations.get(item, 0) + count
    pairs = max(
        layer.d * sum(group.heads * group.targets * group.sources for group in groups)
        for layer, groups in ((layer, analysis.groups(layer)) for layer in chosen)
    )
    return Estimate(
        operations=operations,
        memory=memory_of(chosen, sizes, analysis),
        stages=tuple(_stages(chosen, sizes, analysis)),
        published=analysis.batch * pairs * sizes.compute_itemsize,
    )


def _check(sizes: ModelSizes, analysis: Analysis) -> None:
    """Raise where there is nothing to estimate, or a length too few or too many."""
    targets = 1 if analysis.target_tokens is None else analysis.target_tokens
    if analysis.tokens < 1 or analysis.batch < 1 or targets < 1:
        raise InputError("an estimate needs at least one token and one sequence")
    if any(layer.stack for layer in sizes.layers) != (analysis.target_tokens is not None):
        raise InputError(
            "target_tokens are what the decoder of an encoder–decoder reads: give them for such a "
            "model, and for no other"
        )
    layers = [sizes.layers[k] for k in analysis.layers]
    deep = any(layer.by_source and analysis.reaches_feed_forward(layer) for layer in layers)
    if analysis.rule == SHAPLEY and deep:
        raise InputError(NOT_BY_SOURCE)
    if analysis.rule == SHAPLEY and any(layer.cross for layer in layers):
        raise InputError("Shapley values are sampled for layers with one attention only")


def _stages(chosen: Sequence[LayerSizes], sizes: ModelSizes, analysis: Analysis) -> Iterator[Stage]:
    """The plan of each group of sources in the first layer of each stack that has a stage."""
    seen = set()
    for layer in chosen:
        if layer.stack in seen or not analysis.reaches_feed_forward(layer):
            continue
        seen.add(layer.stack)
        for group in analysis.groups(layer):
            plan, tiles = plan_of(layer, sizes, analysis, group), 0
            if isinstance(plan, Plan):
                tiles, _ = covered(group.reach, group.targets, plan, group.sources)
            name = layer.stack
            if layer.cross is not None:
                name += f", sources of the {layer.stack if group.is_own else ENCODER}"
            yield Stage(name, plan, tiles)


def automatic_batch(sizes: ModelSizes, tokens: int, device: torch.device) -> int:
    """How many sequences of so many tokens a lens runs together on `device`."""
    heads = max(layer.heads + (layer.cross.heads if layer.cross else 0) for layer in sizes.layers)
    first = sizes.layers[0]
    width = first.d if first.by_source is None else first.by_source.width
    each = sequence_memory(tokens, heads, width, sizes.compute_itemsize)
    return affordable_sequences(device, sizes.parameters * sizes.itemsize, each)
