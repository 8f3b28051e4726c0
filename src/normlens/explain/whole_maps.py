"""Maps whose sources are the model's input tokens: ‖V^ℓ_ik‖ behind every component.

They are held as one layer's own maps are (`LayerMaps`), and completeness is that of the whole way:
Σ_k V_ik and what no token owns are the model's own vector behind each component.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from torch import Tensor

from normlens.explain.batch_run import BatchRun
from normlens.explain.network import KEPT_SHARE, FrozenNetwork, check_one_sequence, push
from normlens.frozen.network import Sources, WholeNorms
from normlens.frozen.norm_maps import LayerMaps
from normlens.inputs.text import Item
from normlens.layers import Layer, Reach, Routing
from normlens.pipeline.progress import Progress, by_layers
from normlens.pipeline.stack_run import StackRun
from normlens.plan.memory import DEFAULT_LIMIT
from normlens.trace.locking import alone_with_model
from normlens.trace.recorder import LayerTrace
from normlens.trace.run import reading, without_autocast

if TYPE_CHECKING:
    from normlens.lens import Lens


def collect_whole_way(
    lens: Lens,
    runs: Sequence[StackRun],
    batch: Sequence[Item],
    inputs: dict[str, Tensor],
    progress: Progress | None,
) -> None:
    """Run the model on a batch and add the maps that are asked for to the `runs` of its stacks."""
    if not lens.two_stacks:
        check_one_sequence(lens.layers)
    request = runs[-1].stack.request
    limit = request.settings.memory_limit or DEFAULT_LIMIT
    asked = {run.stack.first: run for run in runs}
    whole = BatchRun(lens, batch, request.settings.rule, limit // KEPT_SHARE)
    taken = [TakenMaps(stack, asked.get(stack.first)) for stack in whole.stacks]
    advance = by_layers(progress, sum(len(run.stack.request.layers) for run in runs))

    def compute() -> None:
        with without_autocast(lens.device), reading(lens.model, lens.adapter):
            whole.forward(lens.model, inputs)
            end = whole.encoder_end()[0] if lens.two_stacks else None
            push(whole.stacks, max(request.layers), limit, taken, advance, end)
            for of_stack in taken:
                of_stack.collect()

    alone_with_model(lens.model, compute)


@dataclass
class TakenMaps:
    """What is kept of the vectors that pass a stack: norms, and their sums until they are compared.

    `run` takes the maps; None if nothing is asked of the stack.
    """

    network: FrozenNetwork
    run: StackRun | None
    scopes: dict[tuple[int, int], str] = field(default_factory=dict)  # by layer and step
    maps: dict[int, LayerMaps] = field(default_factory=dict)
    passing: dict[tuple[int, int], WholeNorms] = field(default_factory=dict)
    routing: dict[int, Routing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.run is None:
            return
        stack = self.run.stack
        self.network.watch = self.watch
        self.scopes = {
            (index, step): scope
            for index in stack.request.layers
            for step, scope in stack.layers[index].scope_of_step.items()
            if scope in stack.request.scopes
        }

    def watch(self, traced: LayerTrace) -> None:
        """Check a layer that the model has just run."""
        assert self.run is not None
        self.run.check(traced)
        if traced.layer.experts is not None and traced.layer.experts.routing is not None:
            self.routing[traced.index] = traced.layer.experts.routing

    def collect(self) -> None:
        """Add each layer's maps, with the layer as far as its sources reach."""
        if self.run is None:
            return
        stack = self.run.stack
        for index in stack.request.layers:
            reach = reduce(Reach.then, self.network.reaches[: index + 1])
            layer = Layer(stack.layers[index].steps, reach)
            if index in self.routing:
                layer = layer.routed(self.routing[index])
            self.run.collected.add(self.maps.get(index, LayerMaps()), index, layer)

    def sources(self, layer: int, step: int, sources: Sources) -> None:
        place = layer, step
        if place not in self.scopes or self.run is None:
            return
        if place not in self.passing:
            x, width = self.network.x(layer), sources.vectors.shape[-1]
            self.passing[place] = WholeNorms.empty(x, self.run.columns.width, width)
        self.passing[place].add(sources)

    def bias(self, layer: int, step: int, bias: Tensor, real: Tensor | None) -> None:
        place = layer, step
        if place not in self.scopes:
            return
        scope, whole = self.scopes[place], self.passing.pop(place)
        maps = self.maps.setdefault(layer, LayerMaps())
        maps.norms[scope] = whole.norms
        maps.own[scope], maps.others[scope] = whole.mixing()
        if real is not None:
            maps.completeness[scope] = whole.error(bias, real, self.network.lengths)
