"""Maps whose sources are the model's input tokens: ‖V^ℓ_ik‖ behind every component."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from torch import Tensor

from normlens.explain.batch_run import BatchRun
from normlens.explain.network import (
    KEPT_SHARE,
    Advance,
    FrozenNetwork,
    Passes,
    check_one_sequence,
    push,
    push_group,
)
from normlens.frozen.network import FrozenReadout, Sources, WholeNorms
from normlens.frozen.norm_maps import LayerMaps
from normlens.inputs.text import Encoded, Pair
from normlens.layers import Layer, Reach, Routing
from normlens.models.parts import DECODER, ENCODER
from normlens.options import Request
from normlens.pipeline.collect import Collected
from normlens.pipeline.layer_results import Columns
from normlens.pipeline.progress import Progress, by_layers
from normlens.pipeline.stack_run import StackRun
from normlens.plan.costs import VectorSizes, group_sources
from normlens.plan.memory import DEFAULT_LIMIT
from normlens.trace.checks import Checks
from normlens.trace.locking import alone_with_model
from normlens.trace.recorder import LayerTrace
from normlens.trace.run import model_inputs, reading, without_autocast

if TYPE_CHECKING:
    from normlens.lens import Lens


# Maps whose sources are the model's input tokens: ‖V^ℓ_ik‖ behind every component of every layer.
#
# They are held as one layer's own maps are (`LayerMaps`), and completeness is that of the whole
# way: Σ_k V_ik and what no token owns are the model's own vector behind each component.


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


# Maps of an encoder–decoder whose sources are the tokens that both stacks read.
#
# Tokens k of the source pass the encoder's layers and its end; by what they gave there to the
# vectors that the decoder reads they enter each of its layers, beside the decoder's own tokens:
#
#     M_k = end(encoder(e_k)),    V_ik = decoder(0, M_k),    V_ij = decoder(e_j, 0)
#     Σ_k V_ik + Σ_j V_ij + b_i = x_i                                            (completeness)


def collect_whole_pairs(
    lens: Lens, runs: Sequence[StackRun], batch: Sequence[Pair], progress: Progress | None
) -> None:
    """Run the model on a batch and add the maps that are asked for to the `runs` of its stacks."""
    settings = runs[-1].stack.request.settings
    limit = settings.memory_limit or DEFAULT_LIMIT
    asked = {run.stack.name: run for run in runs}
    pair_run = BatchRun(lens, batch, settings.rule, limit // KEPT_SHARE)
    networks = {ENCODER: pair_run.stacks[0], DECODER: pair_run.read}
    for name, run in asked.items():
        networks[name].watch = run.check
    count = sum(len(run.stack.request.layers) for run in runs)
    advance = by_layers(progress, count)

    def compute() -> None:
        with without_autocast(lens.device), reading(lens.model, lens.adapter):
            pair_run.forward(lens.model, pair_run.inputs())
            taken = {name: _taken(networks[name], asked.get(name)) for name in networks}
            until = max(asked[DECODER].stack.request.layers)
            pushed = PairVectors(pair_run.stacks[0], pair_run.read, pair_run.encoder_end()[0])
            pushed.push(until, limit, taken[ENCODER], taken[DECODER], advance)
            for name, run in asked.items():
                for index, layer, maps in taken[name].by_layer(run.stack.request.layers):
                    run.collected.add(maps, index, layer)

    alone_with_model(lens.model, compute)


def _taken(network: FrozenNetwork, run: StackRun | None) -> TakenMaps:
    if run is None:
        return TakenMaps(network, {})
    request = run.stack.request
    return TakenMaps.of(network, request.layers, request.scopes, run.columns.width)


@dataclass(frozen=True)
class PairVectors:
    """Both stacks, frozen, and the steps between them."""

    encoder: FrozenNetwork
    decoder: FrozenNetwork
    end: FrozenReadout

    def push(
        self,
        until: int,
        limit: int,
        of_encoder: TakenMaps,
        of_decoder: TakenMaps,
        advance: Advance | None = None,
    ) -> None:
        """Push every token of both sequences through the decoder's layers up to `until`."""
        x, y = self.encoder.x(0), self.decoder.x(0)
        (b, m, _), n = x.shape, y.shape[1]
        networks = self.encoder, self.decoder
        layers = [net.adapter.layer(visited.block) for net in networks for visited in net.visited]
        # A token of the source has vectors in both stacks.
        both = VectorSizes.of(layers, b, m + n, x.itemsize)
        own = VectorSizes.of(layers, b, n, x.itemsize)
        of_source = group_sources(both, limit, causal=False, sources=m)
        of_target = group_sources(own, limit, self.decoder.causal)
        depth = len(self.encoder) + until + 1
        passes = Passes(len(of_source) * depth + len(of_target) * (until + 1), advance)
        unowned: Tensor | None = None
        for number, group in enumerate(of_source):
            is_last = number == len(of_source) - 1
            chunks = [Sources.at_input(x, first, count, causal=False) for first, count in group]
            unowned = push_group(
                self.encoder, len(self.encoder) - 1, chunks, of_encoder, passes, is_last
            )
            gave = [{ENCODER: self.end.linear(chunk.vectors)} for chunk in chunks]
            entering = [
                Sources.from_other(chunk.first, given[ENCODER], y)
                for chunk, given in zip(chunks, gave, strict=True)
            ]
            push_group(self.decoder, until, entering, of_decoder, passes, False, gave)
        assert unowned is not None
        no_token = {ENCODER: self.end.linear(unowned) + self.end.bias}
        for number, group in enumerate(of_target):
            chunks = [
                Sources.at_input(y, first, count, self.decoder.causal) for first, count in group
            ]
            is_last = number == len(of_target) - 1
            push_group(self.decoder, until, chunks, of_decoder, passes, is_last, unowned=no_token)
