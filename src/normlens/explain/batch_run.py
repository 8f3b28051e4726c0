"""One batch through one stack or two and back, packed as the arrays of an explanation."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normlens.errors import UnsupportedModelError
from normlens.explain.network import (
    Carried,
    FrozenNetwork,
    Wanted,
    bring_home,
    carry,
    carry_through,
    wait_for,
)
from normlens.explain.questions import Start
from normlens.frozen.network import FrozenReadout
from normlens.frozen.scores import Errors
from normlens.inputs.text import Encoded, Pair
from normlens.layers import OF_CLASSES, OF_TOKENS, Head, Layer, cast
from normlens.models.base import Adapter
from normlens.models.parts import DECODER, ENCODER, TwoStacks
from normlens.pipeline.batches import scopes_of
from normlens.pipeline.progress import Progress
from normlens.plan.memory import relative_error
from normlens.results.words import RES
from normlens.scopes import is_among, resolve, resolve_all
from normlens.trace.recorder import LayerTrace
from normlens.trace.run import model_inputs, pair_inputs, run_traced
from normlens.trace.wide_copies import end_in_float32

if TYPE_CHECKING:
    from normlens.lens import Lens


# From what the way back left behind to the arrays of one explanation.


#: The layer of what stands behind the last one.
HEAD = "head"

Array = NDArray[Any]


@dataclass(frozen=True)
class Said:
    """What the model itself says: the score that is explained, and what it consists of."""

    value: float
    columns: tuple[int, ...] = ()  # the target's column, and the contrast's
    scores: tuple[float, ...] = ()
    probabilities: tuple[float, ...] | None = None

    @classmethod
    def of(cls, scores: Tensor, columns: Sequence[tuple[int, float]], head: Head) -> Said:
        """Read from all scores (columns,) of the head."""
        places = [column for column, _ in columns]
        chosen = [float(scores[place]) for place in places]
        value = sum(sign * score for (_, sign), score in zip(columns, chosen, strict=True))
        probabilities = _probabilities(scores, places, head)
        return cls(value, tuple(places), tuple(chosen), probabilities)


def _probabilities(scores: Tensor, places: list[int], head: Head) -> tuple[float, ...] | None:
    """Probabilities where the scores are compared with each other; a regression has none."""
    exclusive = head.task in (*OF_TOKENS, *OF_CLASSES) and head.exclusive
    if len(scores) < 2 or not exclusive:
        return None
    total = torch.logsumexp(scores, 0)
    return tuple(float((scores[place] - total).exp()) for place in places)


@dataclass(frozen=True)
class Packed:
    """The numbers of one explanation."""

    nodes: Array  # (layer, position)
    component_names: list[str]
    components: Array  # (layer, component, position), NaN where a layer has no such component
    heads: Array  # (layer, head, position)
    bias: list[tuple[int | str, str, float]]  # layer, component, value
    flows: dict[str, Array]  # scope, or "" for the whole layer → (layer, target, source)
    head_flow: Array | None  # (layer, head, target, source)
    errors: list[float]  # of completeness behind the embeddings, each layer, and at the end
    cross_heads: Array | None = None  # (layer, head, position), of CROSS


def pack(carried: Carried, t: int, b: int, n: int, began: Start, value: float) -> Packed:
    """The numbers of score t of sequence b, which has n tokens; the model says it is `value`."""
    layers = sorted(layer for layer in carried.nodes if layer <= began.layer)
    nodes = np.stack([numbers(carried.nodes[layer][t, b, :n]) for layer in layers])
    names = list(dict.fromkeys(name for _, name in sorted(carried.components)))
    components = np.full((len(layers), len(names), n), np.nan)
    bias: list[tuple[int | str, str, float]] = []
    for layer in layers:
        for place, name in enumerate(names):
            if (layer, name) in carried.components:
                components[layer, place] = numbers(carried.components[layer, name][t, b, :n])
        for (owner, name), share in carried.unowned.items():
            if owner == layer:
                bias.append((layer, name, float(share[t, b, :n].double().sum())))
    bias += [(HEAD, name, share) for name, share in began.unowned.items()]
    return Packed(
        nodes=nodes,
        component_names=names,
        components=components,
        heads=np.stack([numbers(carried.heads[layer][t, b, :, :n]) for layer in layers]),
        bias=bias,
        flows=_flows(carried, t, b, n, layers),
        head_flow=_stack([carried.head_flows.get(layer) for layer in layers], t, b, n),
        errors=errors_of(nodes, bias, layers, began, value),
    )


def _flows(carried: Carried, t: int, b: int, n: int, layers: list[int]) -> dict[str, Array]:
    whole = _stack([carried.flows.get(layer) for layer in layers], t, b, n)
    flows = {} if whole is None else {"": whole}
    for scope in dict.fromkeys(scope for _, scope in carried.scope_flows):
        stacked = _stack([carried.scope_flows.get((layer, scope)) for layer in layers], t, b, n)
        if stacked is not None:
            flows[scope] = stacked
    return flows


def _stack(maps: Sequence[Tensor | None], t: int, b: int, n: int) -> Array | None:
    """Maps of all layers; NaN where a layer has none, None where no layer has one."""
    first = next((each for each in maps if each is not None), None)
    if first is None:
        return None
    empty = first.new_full((*first.shape[2:-2], n, n), math.nan)
    # By torch, whose threads share the work: most of it is the system's, fresh pages for the array.
    return numbers(torch.stack([empty if m is None else m[t, b, ..., :n, :n] for m in maps]))


def errors_of(
    nodes: Array,
    bias: Sequence[tuple[int | str, str, float]],
    layers: list[int],
    began: Start,
    value: float,
) -> list[float]:
    """How far contributions and biases miss the score at every layer.

    Relative to the largest of the score and its summands: no sum is more exact than its largest
    summand.
    """
    scale = max(
        [abs(value), *map(abs, began.columns), *(abs(share) for _, _, share in bias)],
        default=0.0,
    )
    scale = max(scale, float(np.abs(nodes).max(initial=0.0)), np.finfo(float).tiny)
    behind = sum(share for layer, _, share in bias if layer == HEAD)
    errors = [abs(began.value - value) / scale]
    for layer in reversed(layers):
        behind += sum(share for owner, _, share in bias if owner == layer)
        errors.append(abs(float(nodes[layer].sum(dtype=np.float64)) + behind - value) / scale)
    return errors[::-1]


def numbers(tensor: Tensor) -> Array:
    """A tensor's numbers on the host."""
    array: Array = tensor.detach().cpu().numpy()
    return array


# From the way back through two stacks to the arrays of one explanation.
#
# Both stacks stand in one list of layers, the encoder's first, and both sequences in one list of
# tokens, the source first. The tokens of a stack that does not run in a layer wait: what they
# carry stays with them. So contributions, nodes and flows of an encoder–decoder are complete as
# those of any model are: columns of a flow map sum to what enters a layer, rows and biases to what
# leaves it.


@dataclass(frozen=True)
class CarriedPair:
    """What the way back left behind in both stacks, and between them."""

    encoder: Carried
    decoder: Carried
    at_end: Mapping[str, Tensor]  # what no token owns behind the encoder's last layer, (t, b, k)


def pack_pair(
    carried: CarriedPair, t: int, b: int, sizes: tuple[int, int], began: Start, value: float
) -> Packed:
    """The numbers of score t of pair b, which has `sizes` tokens; the model says it is `value`."""
    return _Packer(carried, t, b, *sizes, began.layer + 1).packed(began, value)


@dataclass(frozen=True)
class _Packer:
    """One score of one pair with m source tokens, n target tokens and so many decoder layers."""

    carried: CarriedPair
    t: int
    b: int
    m: int
    n: int
    decoder_layers: int

    @property
    def first(self) -> int:
        """The place of the decoder's first layer."""
        return len(self.carried.encoder.nodes)

    @property
    def layers(self) -> int:
        return self.first + self.decoder_layers

    def packed(self, began: Start, value: float) -> Packed:
        nodes, bias = self._nodes(), self._bias(began)
        names, components = self._components(nodes)
        encoder, decoder = self.carried.encoder, self.carried.decoder
        return Packed(
            nodes=nodes,
            component_names=names,
            components=components,
            heads=self._heads(encoder.heads, decoder.heads),
            bias=bias,
            flows=self._flows(nodes),
            head_flow=self._head_flow(),
            errors=errors_of(nodes, bias, list(range(self.layers)), began, value),
            cross_heads=self._heads({}, decoder.other.heads),
        )

    def _source(self, values: Tensor) -> Array:
        return numbers(values[self.t, self.b, ..., : self.m])

    def _target(self, values: Tensor) -> Array:
        return numbers(values[self.t, self.b, ..., : self.n])

    def _nodes(self) -> Array:
        """(layer, token): what each vector that enters a layer carries, or that waits for it."""
        encoder, decoder = self.carried.encoder, self.carried.decoder
        at_start = self._target(decoder.nodes[0])
        rows = [
            np.concatenate([self._source(encoder.nodes[layer]), at_start])
            for layer in range(self.first)
        ]
        rows += [
            np.concatenate(
                [self._source(decoder.other.nodes[layer]), self._target(decoder.nodes[layer])]
            )
            for layer in range(self.decoder_layers)
        ]
        return np.stack(rows)

    def _bias(self, began: Start) -> list[tuple[int | str, str, float]]:
        encoder, decoder = self.carried.encoder, self.carried.decoder
        bias: list[tuple[int | str, str, float]] = [
            (layer, name, _total(self._source(share)))
            for (layer, name), share in sorted(encoder.unowned.items(), key=lambda item: item[0][0])
        ]
        last = self.first - 1
        bias += [
            (last, name, _total(self._source(share))) for name, share in self.carried.at_end.items()
        ]
        bias += [
            (self.first + layer, name, _total(self._target(share)))
            for (layer, name), share in sorted(decoder.unowned.items(), key=lambda item: item[0][0])
            if layer < self.decoder_layers
        ]
        return bias + [(HEAD, name, share) for name, share in began.unowned.items()]

    def _components(self, nodes: Array) -> tuple[list[str], Array]:
        """Names, and (layer, component, token); NaN where a layer has no such component."""
        encoder, decoder = self.carried.encoder, self.carried.decoder
        found = [*sorted(decoder.components), *sorted(encoder.components)]
        names = list(dict.fromkeys([*(name for _, name in found), RES]))
        components = np.full((self.layers, len(names), self.m + self.n), np.nan)
        for (layer, name), share in encoder.components.items():
            components[layer, names.index(name)] = self._with_waiting(self._source(share), True)
        for (layer, name), share in decoder.components.items():
            if layer < self.decoder_layers:
                place = self.first + layer, names.index(name)
                components[place] = self._with_waiting(self._target(share), False)
        for layer in range(self.layers):
            tokens, shares = self._waiting(layer, nodes)
            components[layer, names.index(RES), tokens] = shares
        return names, components

    def _heads(self, encoder: Mapping[int, Tensor], decoder: Mapping[int, Tensor]) -> Array:
        """(layer, head, token); NaN where a layer has no such head."""
        count = max(share.shape[2] for share in [*encoder.values(), *decoder.values()])
        heads = np.full((self.layers, count, self.m + self.n), np.nan)
        for layer, share in encoder.items():
            heads[layer, : share.shape[2]] = self._with_waiting(self._source(share), True)
        for layer, share in decoder.items():
            if layer < self.decoder_layers:
                own = self._with_waiting(self._target(share), False)
                heads[self.first + layer, : share.shape[2]] = own
        return heads

    def _waiting(self, layer: int, nodes: Array) -> tuple[Array, Array]:
        """The tokens of the stack that does not run in a layer, and what they carry past it."""
        tokens = np.arange(self.m + self.n)
        tokens = tokens[self.m :] if layer < self.first else tokens[: self.m]
        # The source's vectors wait until the last layer that reads them.
        last = layer + 1 == self.layers
        return tokens, np.zeros(len(tokens)) if last else nodes[layer + 1, tokens]

    def _with_waiting(self, shares: Array, in_encoder: bool) -> Array:
        """Shares (…, token) of one stack's tokens among those of both; the others have none."""
        waiting = (0, self.n) if in_encoder else (self.m, 0)
        return np.pad(shares, [(0, 0)] * (shares.ndim - 1) + [waiting])

    def _flows(self, nodes: Array) -> dict[str, Array]:
        """Flow maps [layer, target, source] of whole layers ("") and behind scopes."""
        encoder, decoder = self.carried.encoder, self.carried.decoder
        m, n, first = self.m, self.n, self.first
        flows: dict[str, Array] = {}
        if decoder.flows:
            whole = np.zeros((self.layers, m + n, m + n), dtype=nodes.dtype)
            for layer in range(self.layers):
                waiting, behind = self._waiting(layer, nodes)
                whole[layer, waiting, waiting] = behind
                self._put(whole[layer], layer, encoder.flows, decoder.flows, decoder.other.flows)
            flows[""] = whole
        scopes = [scope for _, scope in [*encoder.scope_flows, *decoder.scope_flows]]
        for scope in dict.fromkeys(scopes):
            behind_scope = np.full((self.layers, m + n, m + n), np.nan, dtype=nodes.dtype)
            maps = [_at(c.scope_flows, scope) for c in (encoder, decoder)]
            crossing = _at(decoder.other.scope_flows, scope)
            for layer in range(self.layers):
                if layer in maps[0] if layer < first else layer - first in maps[1]:
                    behind_scope[layer] = 0
                    self._put(behind_scope[layer], layer, maps[0], maps[1], crossing)
            flows[scope] = behind_scope
        return flows

    def _head_flow(self) -> Array | None:
        """(layer, head, target, source), of CROSS where a source is of the source sequence."""
        encoder, decoder = self.carried.encoder, self.carried.decoder
        if not decoder.head_flows:
            return None
        maps = encoder.head_flows, decoder.head_flows, decoder.other.head_flows
        heads = max(flow.shape[2] for flows in maps for flow in flows.values())
        size = self.m + self.n
        dtype = numbers(next(iter(decoder.head_flows.values()))[:0]).dtype
        by_head = np.full((self.layers, heads, size, size), np.nan, dtype=dtype)
        for layer in range(self.layers):
            here = maps[:1] if layer < self.first else maps[1:]
            index = layer if layer < self.first else layer - self.first
            by_head[layer, : max(flows[index].shape[2] for flows in here)] = 0
            self._put(by_head[layer], layer, *maps)
        return by_head

    def _put(
        self,
        into: Array,
        layer: int,
        encoder: Mapping[int, Tensor],
        decoder: Mapping[int, Tensor],
        crossing: Mapping[int, Tensor],
    ) -> None:
        """Write one layer's maps (…, i, j) to where their tokens stand among all."""
        m, n, index = self.m, self.n, layer - self.first
        blocks = [
            (encoder.get(layer) if index < 0 else None, slice(0, m), slice(0, m)),
            (decoder.get(index) if index >= 0 else None, slice(m, m + n), slice(m, m + n)),
            (crossing.get(index) if index >= 0 else None, slice(m, m + n), slice(0, m)),
        ]
        for flow, rows, columns in blocks:
            if flow is not None:
                own = numbers(flow[self.t, self.b])
                own = own[..., : rows.stop - rows.start, : columns.stop - columns.start]
                part = into[: own.shape[0]] if own.ndim == 3 else into
                part[..., rows, columns] = own


def _at(maps: Mapping[tuple[int, str], Tensor], scope: str) -> dict[int, Tensor]:
    return {layer: flow for (layer, name), flow in maps.items() if name == scope}


def _total(shares: Array) -> float:
    return float(shares.sum(dtype=np.float64))


# One batch on its way through a model of one stack and back.


class BatchRun(Protocol):
    """What answering questions about a batch needs of the model's stacks."""

    @property
    def read(self) -> FrozenNetwork:
        """The stack behind whose layers scores are read."""

    @property
    def tokens(self) -> int:
        """How many tokens the longest of the batch's texts has, of all sequences together."""

    @property
    def layer_names(self) -> list[str]:
        """How errors call the layers."""

    def inputs(self) -> dict[str, Tensor]:
        """What the model is called with."""

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """Run the model once; return its output."""

    def in_float32(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Any, Adapter, Errors]:
        """What the model, which has run, returns in float32 from the last layer's vectors on.

        Also an adapter of that copy, and how far frozen steps between stacks miss what it computes.
        """

    def carry(
        self,
        starts: Sequence[Sequence[Start]],
        flow: bool,
        heads: bool,
        scopes: Sequence[str],
        progress: Progress | None,
    ) -> None:
        """Carry the scores `starts`[t][b] back, and keep what is asked for on the way."""

    def wait(self) -> None:
        """Wait for what was carried last."""

    def pack(self, t: int, b: int, began: Start, value: float) -> Packed:
        """The numbers of score t of text b, which were carried last."""

    def check(self, dtype: torch.dtype) -> None:
        """Raise where a frozen layer misses the model's own vectors."""


class OneStackRun:
    """A batch of sequences."""

    def __init__(self, lens: Lens, batch: Sequence[Encoded], rule: str, kept_bytes: int):
        if any(a.source is not None for layer in lens.layers for a in layer.attentions):
            raise UnsupportedModelError(
                f"the layers of {lens.name} read another sequence, whose tokens would own a part "
                "of the score, too; describe it as an encoder–decoder "
                "(normlens.models.parts.TwoStacks)"
            )
        self.lens, self.batch = lens, batch
        lengths = [len(sequence) for sequence in batch]
        dtype = lens.compute_dtype
        self.read = FrozenNetwork(lens.adapter, lengths, rule, dtype, kept_bytes, guard=lens.guard)
        self.tokens = max(lengths)
        self.layer_names = [f"layer {index}" for index in range(lens.n_layers)]
        self.carried = Carried()

    def afresh(self) -> OneStackRun:
        """The same batch as the model has run it, with nothing carried back."""
        other = copy.copy(self)
        other.read, other.carried = replace(self.read, errors={}), Carried()
        return other

    def inputs(self) -> dict[str, Tensor]:
        return model_inputs(self.lens.adapter, self.batch, self.lens.device)

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        return self.read.run(model, inputs)

    def in_float32(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Any, Adapter, Errors]:
        return *end_in_float32(self.lens.adapter, model, inputs, self.read.returned), iter(())

    def carry(
        self,
        starts: Sequence[Sequence[Start]],
        flow: bool,
        heads: bool,
        scopes: Sequence[str],
        progress: Progress | None,
    ) -> None:
        self.read.errors.clear()
        chosen = frozenset(resolve_all(scopes, self.lens.scopes))
        self.carried = carry(self.read, starts, Wanted(flow, heads, chosen), progress)
        bring_home(self.carried)

    def wait(self) -> None:
        wait_for(self.lens.device)

    def pack(self, t: int, b: int, began: Start, value: float) -> Packed:
        return pack(self.carried, t, b, self.read.lengths[b], began, value)

    def check(self, dtype: torch.dtype) -> None:
        self.read.check(dtype)


# One batch on its way through an encoder–decoder and back.
#
# The way back goes from the decoder's last layer to its first. Every cross-attention also gives
# gradients at the vectors that the encoder returned; their sum goes on through the encoder's end
# and its layers:
#
#     Σ_k c_k (source) + Σ_j c_j (prefix) + Σ_{stack, layer, component} bias = s


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
