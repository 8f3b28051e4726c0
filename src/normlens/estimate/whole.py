"""The estimate of a batch: operations, memory and the plan of the feed-forward stage."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from normlens.decomposition.costs.batches import affordable_sequences, sequence_memory
from normlens.decomposition.plan import KernelPlan, Plan
from normlens.errors import InputError
from normlens.estimate.memory import memory_of
from normlens.estimate.operations import forward_operations, layer_operations
from normlens.estimate.plans import covered, plan_of
from normlens.estimate.request import Analysis
from normlens.estimate.sizes import ModelSizes


@dataclass(frozen=True)
class Estimate:
    """The operations and bytes of one batch, item by item."""

    operations: dict[str, int]
    memory: dict[str, int]
    plan: Plan | KernelPlan | None  # of the first layer that has a feed-forward stage
    tiles: int  # of one sequence in that layer; 0: kernels do it
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


def estimate(sizes: ModelSizes, analysis: Analysis) -> Estimate:
    """Operations and memory of an analysis on its device; a function of sizes."""
    if analysis.tokens < 1 or analysis.batch < 1:
        raise InputError("an estimate needs at least one token and one sequence")
    chosen = [sizes.layers[index] for index in analysis.layers]
    operations = {"forward pass": analysis.batch * forward_operations(sizes, analysis.tokens)}
    for layer in chosen:
        for item, count in layer_operations(layer, sizes, analysis).items():
            operations[item] = operations.get(item, 0) + count
    plan: Plan | KernelPlan | None = None
    tiles = 0
    for layer in chosen:
        if analysis.reaches_feed_forward(layer):
            plan = plan_of(layer, sizes, analysis)
            if isinstance(plan, Plan):
                tiles, _ = covered(layer.reach, analysis.tokens, plan)
            break
    widest = max(layer.heads * layer.d for layer in chosen)
    return Estimate(
        operations=operations,
        memory=memory_of(chosen, sizes, analysis),
        plan=plan,
        tiles=tiles,
        published=analysis.batch * analysis.tokens**2 * widest * sizes.compute_itemsize,
    )


def automatic_batch(sizes: ModelSizes, tokens: int, device: torch.device) -> int:
    """How many sequences of so many tokens a lens runs together on `device`."""
    heads = max(layer.heads for layer in sizes.layers)
    each = sequence_memory(tokens, heads, sizes.layers[0].d, sizes.compute_itemsize)
    return affordable_sequences(device, sizes.parameters * sizes.itemsize, each)
