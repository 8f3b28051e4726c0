"""Frozen networks of small models, and every whole vector of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import normlens
from normlens.explain.network import FrozenNetwork
from normlens.explain.whole_vectors import push
from normlens.frozen.network import Sources
from normlens.trace.run import reading

PADDING = 1


@contextmanager
def frozen_network(
    model: Any, batch: list[list[int]], rule: str = "ig", limit: int = 1 << 33
) -> Iterator[FrozenNetwork]:
    """A model that has run on token ids, padded on the right."""
    width = max(map(len, batch))
    lens = normlens.load(model)
    lengths = [len(ids) for ids in batch]
    network = FrozenNetwork(lens, lens.encode(input_ids=batch), rule, limit)
    inputs = {
        "input_ids": torch.tensor([ids + [PADDING] * (width - len(ids)) for ids in batch]),
        "attention_mask": torch.tensor([[1] * n + [0] * (width - n) for n in lengths]),
    }
    with reading(lens.model, lens.adapter):
        network.forward(lens.model, inputs)
        yield network


@dataclass
class Everything:
    """A visitor that keeps all it is shown."""

    network: FrozenNetwork
    vectors: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # (k, b, i, d)
    biases: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # (b, i, d)
    real: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    widest: int = 0  # most targets that were computed for a source that others stand before

    def sources(self, layer: int, step: int, sources: Sources) -> None:
        count, b, _, d = sources.vectors.shape
        place, n = (layer, step), self.network.x(0).shape[1]
        if place not in self.vectors:
            self.vectors[place] = sources.vectors.new_zeros(n, b, n, d)
        chosen = slice(sources.first, sources.first + count)
        self.vectors[place][chosen, :, sources.since :] = sources.vectors
        if sources.first:
            self.widest = max(self.widest, sources.vectors.shape[2])

    def bias(self, layer: int, step: int, bias: Tensor) -> None:
        self.biases[layer, step] = bias
        if step in self.network.real:
            self.real[layer, step] = self.network.real[step]


def everything(network: FrozenNetwork, limit: int = 1 << 30) -> Everything:
    found = Everything(network)
    for _ in push(network, len(network) - 1, limit, found):  # type: ignore[arg-type]
        pass
    return found
