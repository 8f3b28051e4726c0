"""Whole vectors of a frozen network: every source is pushed through its layers.

A group of sources passes layer after layer together (`costs.vectors` says how many fit), and each
layer is frozen once for a group. What no token owns passes with the last group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from torch import Tensor

from normlens.components import Layer
from normlens.decomposition.costs.vectors import VectorSizes, group_sources
from normlens.decomposition.vectors import Sources
from normlens.errors import UnsupportedModelError
from normlens.explain.network import FrozenNetwork

#: Called with the part of the work that is done, from 0 to 1.
Advance = Callable[[float], None]
#: Vectors (…, b, m, d) that belong to other sequences, by the names of these.
Others: TypeAlias = Mapping[str, Tensor]


def check_one_sequence(layers: Sequence[Layer]) -> None:
    """Refuse layers that read another sequence, whose tokens would be sources, too."""
    if any(attention.source is not None for layer in layers for attention in layer.attentions):
        raise UnsupportedModelError(
            "vectors are not pushed through layers that read another sequence yet; take "
            "origin='layer'"
        )


class Visitor(Protocol):
    """Takes what it needs of the whole vectors as they pass."""

    def sources(self, layer: int, step: int, sources: Sources) -> None:
        """Some sources' vectors behind a step."""

    def bias(self, layer: int, step: int, bias: Tensor, real: Tensor | None) -> None:
        """What no token owns (b, i, d) behind a step that all sources have passed.

        `real` is the model's own vector there, where it was traced.
        """


def push(
    network: FrozenNetwork,
    until: int,
    limit: int,
    visitor: Visitor,
    advance: Advance | None = None,
) -> None:
    """Push every source of the batch through the layers up to `until`."""
    x = network.x(0)
    causal = network.causal
    layers = [network.adapter.layer(visited.block) for visited in network.visited]
    groups = group_sources(VectorSizes.of(layers, len(x), x.shape[1], x.itemsize), limit, causal)
    passes = Passes(len(groups) * (until + 1), advance)
    for number, group in enumerate(groups):
        chunks = [Sources.at_input(x, first, count, causal) for first, count in group]
        push_group(network, until, chunks, visitor, passes, number == len(groups) - 1)


class Passes:
    """Counts groups that have passed a layer, and tells how far all of them are."""

    def __init__(self, total: int, advance: Advance | None):
        self.done, self.total, self.advance = 0, total, advance

    def one_more(self) -> None:
        self.done += 1
        if self.advance is not None:
            self.advance(self.done / self.total)


def push_group(
    network: FrozenNetwork,
    until: int,
    chunks: list[Sources],
    visitor: Visitor,
    passes: Passes,
    is_last: bool,
    gave: Sequence[Others] = (),
    unowned: Others | None = None,
) -> Tensor | None:
    """Push a group of sources, in place, through the layers up to `until`.

    What no token owns passes with the last group, and is returned. `gave` is what each chunk gave
    to another sequence that layers read, and `unowned` what no token owns of that sequence.
    """
    bias: Tensor | None = None
    for index in range(until + 1):
        frozen = network.layer(index)
        real = network.real

        def seen(step: int, sources: Sources, index: int = index) -> None:
            visitor.sources(index, step, sources)

        for place, chunk in enumerate(chunks):
            chunks[place] = chunk.through(frozen, seen, gave[place] if gave else None)
        if is_last:

            def alone(
                step: int, bias: Tensor, index: int = index, real: dict[int, Tensor] = real
            ) -> None:
                visitor.bias(index, step, bias, real.get(step))

            bias = frozen.unowned(bias, alone, unowned)
        passes.one_more()
    return bias
