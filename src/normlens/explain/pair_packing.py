"""From the way back through two stacks to the arrays of one explanation.

Both stacks stand in one list of layers, the encoder's first, and both sequences in one list of
tokens, the source first. The tokens of a stack that does not run in a layer wait: what they carry
stays with them. So contributions, nodes and flows of an encoder–decoder are complete as those of
any model are: columns of a flow map sum to what enters a layer, rows and biases to what leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from normlens.explain.packing import HEAD, Array, Packed, errors_of, numbers
from normlens.explain.readings import Start
from normlens.explain.walk import Carried
from normlens.results.explanation_words import RES


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
