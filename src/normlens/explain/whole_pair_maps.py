"""Maps of an encoder–decoder whose sources are the tokens that both stacks read.

Tokens k of the source pass the encoder's layers and its end; by what they gave there to the vectors
that the decoder reads they enter each of its layers, beside the decoder's own tokens:

    M_k = end(encoder(e_k)),    V_ik = decoder(0, M_k),    V_ij = decoder(e_j, 0)
    Σ_k V_ik + Σ_j V_ij + b_i = x_i                                            (completeness)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from normlens.advancing import Progress, by_layers
from normlens.analysing.stack_run import StackRun
from normlens.decomposition.costs.vectors import VectorSizes, group_sources
from normlens.decomposition.memory import DEFAULT_LIMIT
from normlens.decomposition.readout import FrozenReadout
from normlens.decomposition.vectors import Sources
from normlens.explain.network import KEPT_SHARE, FrozenNetwork
from normlens.explain.pair_run import PairRun
from normlens.explain.vectors import Advance, Passes, push_group
from normlens.explain.whole_maps import TakenMaps
from normlens.models.two_stacks import DECODER, ENCODER
from normlens.pairs import Pair
from normlens.tracing.model_inputs import without_autocast
from normlens.tracing.trace import reading
from normlens.tracing.turns import alone_with_model

if TYPE_CHECKING:
    from normlens.lens import Lens


def collect_whole_pairs(
    lens: Lens, runs: Sequence[StackRun], batch: Sequence[Pair], progress: Progress | None
) -> None:
    """Run the model on a batch and add the maps that are asked for to the `runs` of its stacks."""
    settings = runs[-1].stack.request.settings
    limit = settings.memory_limit or DEFAULT_LIMIT
    asked = {run.stack.name: run for run in runs}
    pair_run = PairRun(lens, batch, settings.rule, limit // KEPT_SHARE)
    networks = {ENCODER: pair_run.encoder, DECODER: pair_run.read}
    for name, run in asked.items():
        networks[name].watch = run.check
    count = sum(len(run.stack.request.layers) for run in runs)
    advance = by_layers(progress, count)

    def compute() -> None:
        with without_autocast(lens.device), reading(lens.model, lens.adapter):
            pair_run.forward(lens.model, pair_run.inputs())
            taken = {name: _taken(networks[name], asked.get(name)) for name in networks}
            until = max(asked[DECODER].stack.request.layers)
            pushed = PairVectors(pair_run.encoder, pair_run.read, pair_run.encoder_end()[0])
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
