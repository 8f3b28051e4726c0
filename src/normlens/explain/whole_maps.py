"""Maps whose sources are the model's input tokens: ‖V^ℓ_ik‖ behind every component of every layer.

They are held as one layer's own maps are (`LayerMaps`), and completeness is that of the whole way:
Σ_k V_ik and what no token owns are the model's own vector behind each component.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from torch import Tensor

from normlens.advancing import Progress, by_layers
from normlens.analysing.collect import Collected
from normlens.analysing.columns import Columns
from normlens.components import Layer, Reach, Routing
from normlens.decomposition.memory import DEFAULT_LIMIT
from normlens.decomposition.results import LayerMaps
from normlens.decomposition.vectors import Sources, WholeNorms
from normlens.explain.network import KEPT_SHARE, FrozenNetwork
from normlens.explain.vectors import Advance, check_one_sequence, push
from normlens.options import Request
from normlens.text import Encoded
from normlens.tracing.checks import Checks
from normlens.tracing.model_inputs import model_inputs, without_autocast
from normlens.tracing.recorder import LayerTrace
from normlens.tracing.trace import reading
from normlens.tracing.turns import alone_with_model

if TYPE_CHECKING:
    from normlens.lens import Lens


def collect_whole_way(
    lens: Lens, request: Request, batch: Sequence[Encoded], progress: Progress | None
) -> Collected:
    """Run the model on a batch and collect the maps that `request` asks for."""
    check_one_sequence(lens.layers)
    dtype, device = lens.compute_dtype, lens.device
    limit = request.settings.memory_limit or DEFAULT_LIMIT
    lengths = [len(sequence) for sequence in batch]
    checks = Checks(lens.adapter, lens.dtype, lengths)
    collected = Collected(
        Columns(lengths),
        request.scopes,
        checks,
        request.arrays,
        request.correlations,
        map_dtype=request.map_dtype,
    )
    routed: dict[int, Routing] = {}

    def watch(traced: LayerTrace) -> None:
        checks.add(traced, traced.layer.to(dtype))
        if traced.layer.experts is not None and traced.layer.experts.routing is not None:
            routed[traced.index] = traced.layer.experts.routing

    network = FrozenNetwork(
        lens.adapter,
        lengths,
        request.settings.rule,
        dtype,
        limit // KEPT_SHARE,
        watch=watch,
        guard=lens.guard,
    )

    def run() -> None:
        with without_autocast(device), reading(lens.model, lens.adapter):
            network.run(lens.model, model_inputs(lens.adapter, batch, device))
            for index, layer, maps in whole_maps(
                network,
                request.layers,
                request.scopes,
                limit,
                by_layers(progress, len(request.layers)),
            ):
                layer = layer.routed(routed[index]) if index in routed else layer
                collected.add(maps, index, layer)

    alone_with_model(lens.model, run)
    return collected


def whole_maps(
    network: FrozenNetwork,
    layers: Sequence[int],
    scopes: Sequence[str],
    limit: int,
    advance: Advance | None = None,
) -> Iterator[tuple[int, Layer, LayerMaps]]:
    """The maps of the chosen layers and scopes, with each layer as far as its sources reach."""
    taken = TakenMaps.of(network, layers, scopes)
    push(network, max(layers), limit, taken, advance)
    yield from taken.by_layer(layers)


@dataclass
class TakenMaps:
    """What is kept of the vectors that pass: norms, and their sums until they are compared."""

    network: FrozenNetwork
    scopes: Mapping[tuple[int, int], str]  # by layer and step
    others: int = 0  # sources of another sequence that the layers read
    maps: dict[int, LayerMaps] = field(default_factory=dict)
    passing: dict[tuple[int, int], WholeNorms] = field(default_factory=dict)

    @classmethod
    def of(
        cls, network: FrozenNetwork, layers: Sequence[int], scopes: Sequence[str], others: int = 0
    ) -> TakenMaps:
        """What is to be kept of these layers and scopes."""
        places = {
            (index, step): scope
            for index in layers
            for step, scope in _described(network, index).scope_of_step.items()
            if scope in scopes
        }
        return cls(network, places, others)

    def by_layer(self, layers: Sequence[int]) -> Iterator[tuple[int, Layer, LayerMaps]]:
        """The maps of these layers, with each layer as far as its sources reach."""
        for index in layers:
            reach = reduce(Reach.then, self.network.reaches[: index + 1])
            steps = _described(self.network, index).steps
            yield index, Layer(steps, reach), self.maps.get(index, LayerMaps())

    def sources(self, layer: int, step: int, sources: Sources) -> None:
        place = layer, step
        if place not in self.scopes:
            return
        if place not in self.passing:
            x, width = self.network.x(layer), sources.vectors.shape[-1]
            self.passing[place] = WholeNorms.empty(x, self.others, width)
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


def _described(network: FrozenNetwork, index: int) -> Layer:
    return network.adapter.layer(network.visited[index].block)
