"""One batch on its way through an encoder–decoder and back.

The way back goes from the decoder's last layer to its first. Every cross-attention also gives
gradients at the vectors that the encoder returned; their sum goes on through the encoder's end and
its layers:

    Σ_k c_k (source) + Σ_j c_j (prefix) + Σ_{stack, layer, component} bias = s
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from normlens.advancing import Progress
from normlens.analysing.unlike_layers import scopes_of
from normlens.components import Layer, cast
from normlens.decomposition.completeness import relative_error
from normlens.decomposition.faces import Errors
from normlens.decomposition.readout import FrozenReadout
from normlens.explain.network import FrozenNetwork
from normlens.explain.packing import Packed
from normlens.explain.pair_packing import CarriedPair, pack_pair
from normlens.explain.readings import Start
from normlens.explain.walk import Carried, Wanted, bring_home, carry, carry_through, wait_for
from normlens.models.base import Adapter
from normlens.models.two_stacks import DECODER, ENCODER, TwoStacks
from normlens.pairs import Pair
from normlens.scopes import is_among, resolve, resolve_all
from normlens.tracing.model_inputs import pair_inputs
from normlens.tracing.recorder import LayerTrace
from normlens.tracing.trace import run_traced
from normlens.tracing.wide_copies import end_in_float32

if TYPE_CHECKING:
    from normlens.lens import Lens


class PairRun:
    """A batch of sources and targets."""

    def __init__(self, lens: Lens, batch: Sequence[Pair], rule: str, kept_bytes: int):
        assert isinstance(lens.adapter, TwoStacks)
        self.lens, self.batch, self.rule = lens, batch, rule
        self.adapter = lens.adapter
        self.first = len(self.adapter.encoder_blocks())  # of the decoder's layers
        sources, targets = ([len(pair.source) for pair in batch], [len(p.target) for p in batch])

        def network(name: str, lengths: list[int]) -> FrozenNetwork:
            dtype, words = lens.compute_dtype, f"{name} layer"
            half = kept_bytes // 2
            return FrozenNetwork(
                lens.adapter, lengths, rule, dtype, half, layer_in_words=words, guard=lens.guard
            )

        self.encoder, self.read = network(ENCODER, sources), network(DECODER, targets)
        self.read.first = self.first
        self.read.source_lengths = {ENCODER: sources}
        self.tokens = max(m + n for m, n in zip(sources, targets, strict=True))
        self.carried: CarriedPair | None = None

    @property
    def layer_names(self) -> list[str]:
        names = [f"encoder layer {index}" for index in range(self.first)]
        return names + [f"decoder layer {k}" for k in range(self.lens.n_layers - self.first)]

    def inputs(self) -> dict[str, Tensor]:
        return pair_inputs(self.adapter, self.batch, self.lens.device, self.lens.dtype)

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        def visit(trace: LayerTrace) -> None:
            if trace.index < self.first:
                self.encoder.visit(trace)
            else:
                self.read.visit(replace(trace, index=trace.index - self.first))

        output = run_traced(self.adapter, model, inputs, range(self.lens.n_layers), visit)
        self.encoder.compare()
        self.read.compare()
        return output

    def in_float32(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Any, Adapter, Errors]:
        returned = {**self.encoder.returned, **self.read.returned}
        output, adapter = end_in_float32(self.adapter, model, inputs, returned)
        end, _ = self.encoder_end(adapter)
        return output, adapter, self._end_errors(end, output.encoder_last_hidden_state)

    def _end_errors(self, end: FrozenReadout, own: Tensor) -> Errors:
        """How far the frozen steps behind the encoder miss what the model computes, `own`."""
        assert self.encoder.last is not None
        last, lengths = self.encoder.last.to(own), self.encoder.lengths
        what = "the steps behind the encoder"
        yield what, float(relative_error(end.linear(last) + end.bias, own, lengths))
        # A score is read at each token in the direction of its own vector.
        g, unowned = end.score(own)
        score = (g * last).sum(-1) + sum(share for share in unowned if share is not None)
        size = own.square().sum(-1)
        yield what, float(relative_error(score[..., None], size[..., None], lengths))

    def carry(
        self,
        starts: Sequence[Sequence[Start]],
        flow: bool,
        heads: bool,
        scopes: Sequence[str],
        progress: Progress | None,
    ) -> None:
        layers, first = self.lens.layers, self.first
        self.encoder.errors.clear()
        self.read.errors.clear()
        check_scopes(scopes, layers)
        of_encoder = Wanted(flow, heads, _scopes(scopes, layers[:first]))
        of_decoder = Wanted(flow, heads, _scopes(scopes, layers[first:]))
        done = len(layers) - first

        def advance(part: int, _: int) -> None:
            if progress is not None:
                progress(part, len(layers))

        decoder = carry(self.read, starts, of_decoder, advance)
        g = decoder.other.gradient
        assert g is not None
        end, names = self.encoder_end()
        g, unowned = end.score(g)
        encoder = Carried()
        for index in reversed(range(first)):
            g = carry_through(self.encoder, index, g, of_encoder, encoder)
            advance(done + first - index, 0)
        at_end = {
            name: share for name, share in zip(names, unowned, strict=True) if share is not None
        }
        bring_home(encoder)
        bring_home(decoder)
        self.carried = CarriedPair(encoder, decoder, at_end)

    def encoder_end(self, adapter: TwoStacks | None = None) -> tuple[FrozenReadout, list[str]]:
        """The frozen steps between the encoder's last layer and what the decoder reads.

        `adapter` is that of a copy of the model, if theirs are asked for.
        """
        assert self.encoder.last is not None
        dtype = self.lens.compute_dtype
        with torch.no_grad():
            steps = [cast(step, dtype) for step in (adapter or self.adapter).encoder_end()]
        readout = FrozenReadout.at(steps, self.encoder.last.to(dtype), self.rule)
        return readout, [f"END {step.symbol}" for step in steps]

    def wait(self) -> None:
        wait_for(self.lens.device)

    def pack(self, t: int, b: int, began: Start, value: float) -> Packed:
        assert self.carried is not None
        sizes = self.encoder.lengths[b], self.read.lengths[b]
        return pack_pair(self.carried, t, b, sizes, began, value)

    def check(self, dtype: torch.dtype) -> None:
        self.encoder.check(dtype)
        self.read.check(dtype)


def check_scopes(names: Sequence[str], layers: Sequence[Layer]) -> None:
    """Raise for a scope that no layer has."""
    for name in names:
        if not any(is_among(name, layer.scopes) for layer in layers):
            resolve(name, scopes_of(layers))  # raises, and lists them all


def _scopes(names: Sequence[str], layers: Sequence[Layer]) -> frozenset[str]:
    """Those of the scopes that a stack's layers have."""
    available = scopes_of(layers)
    return frozenset(resolve_all([name for name in names if is_among(name, available)], available))
