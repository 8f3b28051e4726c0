"""Each head's path from value to feed-forward neuron, ``B_h W_k``: formed for a call, or kept.

``U_jh W_k = v_jh (B_h W_k)``, and the bracket depends on weights alone. Forming it costs as much as
multiplying the U of d_head tokens by W_k, so one long text repays it, and many short ones do. The
first is decided from the text's own length. The second is the user's to say (`Lens.prepare`): a
number must not depend on what was computed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from normlens.components import FeedForward, Layer, Norm
from normlens.decomposition.attention import output_basis
from normlens.decomposition.costs.paths import path_elements, paths_pay
from normlens.decomposition.fingerprint import Fingerprint, description, fingerprints
from normlens.decomposition.norm import stretch
from normlens.decomposition.rules import projections

T = TypeVar("T")
Projections = tuple[Tensor, ...]  # one (h, d_head, m) per input projection


class Paths:
    """The paths of one layer in one call: the kept ones, or formed where a text repays it."""

    def __init__(self, kept: KeptProducts | None, basis: Tensor, weights: Sequence[Tensor]):
        self._formed = None if kept is None else kept.paths
        self._always = kept is not None
        self._basis, self._weights = basis, weights

    def pay_for(self, n: int) -> bool:
        """Whether n tokens that are worked on together take the paths; U W_k may cost less."""
        _, d_head, d = self._basis.shape
        return self._always or paths_pay(d_head, d, n)

    def for_tokens(self, n: int) -> Projections | None:
        """The paths for n tokens, or None where they do not pay."""
        if not self.pay_for(n):
            return None
        if self._formed is None:
            self._formed = form(self._basis, self._weights)
        return self._formed


def form(basis: Tensor, weights: Sequence[Tensor]) -> Projections:
    """``B_h W_k`` for each input projection."""
    return tuple(basis @ w for w in weights)


# Kept from call to call -------------------------------------------------------------------------


class KeptProducts:
    """Products of one layer's weights, with the fingerprint of what they were formed from."""

    def __init__(self, store: ProductStore, paths: Projections, fingerprint: Fingerprint):
        self.paths, self.fingerprint = paths, fingerprint
        self._store = store
        self._operands: dict[Hashable, Any] = {}  # what a kernel multiplies by
        self._operand_sizes: dict[Hashable, int] = {}

    @property
    def size(self) -> int:
        """Bytes held."""
        return sum(t.nbytes for t in self.paths) + sum(self._operand_sizes.values())

    def operand(self, name: Hashable, make: Callable[[], tuple[T, int]]) -> T:
        """What `make` forms from this layer's weights, with its size in bytes; kept if it fits."""
        if name in self._operands:
            return self._operands[name]
        made, size = make()
        if self._store.size + size <= self._store.limit:
            self._operands[name], self._operand_sizes[name] = made, size
        return made


class ProductStore:
    """The products of a model's layers, within a limit of bytes, each as new as its weights.

    Which layers have room depends on the limit and on shapes alone, the first ones first.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self._kept: dict[Hashable, KeptProducts] = {}

    def of(self, key: Hashable) -> KeptProducts | None:
        """What is kept of a layer."""
        return self._kept.get(key)

    @property
    def size(self) -> int:
        """Bytes held."""
        return sum(kept.size for kept in self._kept.values())

    def refresh(
        self, layers: Mapping[Any, Layer], wanted: Collection[Hashable], dtype: torch.dtype
    ) -> None:
        """Form what is missing of the `wanted` layers, or no longer belongs to their weights."""
        fitting = self._fitting(layers, dtype)
        found = fingerprints({key: _sources(layers[key]) for key in fitting if key in wanted})
        kept = {
            key: known
            for key in fitting
            if (known := self._kept.get(key)) is not None
            and _described_by(layers[key], known.fingerprint)
            and (key not in found or found[key] == known.fingerprint)
        }
        self._kept = kept  # what is stale goes before anything new takes its room
        for key, fingerprint in found.items():
            if key not in kept:
                kept[key] = KeptProducts(self, _formed(layers[key].to(dtype)), fingerprint)

    def _fitting(self, layers: Mapping[Any, Layer], dtype: torch.dtype) -> list[Hashable]:
        fitting, total = [], 0
        for key, layer in layers.items():
            size = _bytes(layer, dtype)
            if size and total + size <= self.limit:
                fitting.append(key)
                total += size
        return fitting


def _formed(layer: Layer) -> Projections:
    assert layer.feed_forward is not None
    return form(_basis(layer), projections(layer.feed_forward))


def _basis(layer: Layer) -> Tensor:
    """B (h, d_head, d) as it stands at the input of the feed-forward block."""
    basis = output_basis(layer.attention)
    for step in _between(layer):
        basis = stretch(basis, step)
    return basis


def _between(layer: Layer) -> list[Norm]:
    """The norms between the attention and the feed-forward block."""
    kinds = [type(step) for step in layer.steps]
    first, last = layer.steps.index(layer.attention), kinds.index(FeedForward)
    return [step for step in layer.steps[first:last] if isinstance(step, Norm)]


def _sources(layer: Layer) -> list[Tensor]:
    """Every weight that a product or an operand of this layer is formed from."""
    ff = layer.feed_forward
    assert ff is not None
    gammas = [norm.gamma for norm in _between(layer) if norm.gamma is not None]
    return [layer.attention.output.weight, *gammas, *projections(ff), ff.down.weight]


def _described_by(layer: Layer, fingerprint: Fingerprint) -> bool:
    known = tuple(entry[:-1] for entry in fingerprint)  # type: ignore[index]
    return known == tuple(description(tensor) for tensor in _sources(layer))


def _bytes(layer: Layer, dtype: torch.dtype) -> int:
    """Size of a layer's products; 0 if no feed-forward block stands behind its attention."""
    if layer.feed_forward is None:
        return 0
    heads = layer.attention.heads
    d_head = layer.attention.output.weight.shape[0] // heads
    ff = layer.feed_forward
    elements = path_elements(heads, d_head, ff.up.weight.shape[1], len(projections(ff)))
    return elements * dtype.itemsize
