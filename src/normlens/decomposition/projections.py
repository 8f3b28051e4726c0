"""Each head's path from value to feed-forward neuron, ``B_h W_k``, kept from text to text.

``U_jh W_k = v_jh (B_h W_k)``, and the bracket depends on weights alone. Forming it costs as much as
multiplying the U of d_head tokens by W_k, so it pays from there on, in one text or in several.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from normlens.decomposition.buffers import Buffers

T = TypeVar("T")
Projections = tuple[Tensor, ...]  # one (h, d_head, m) per input projection


@dataclass
class LayerProjections:
    """What is remembered of one layer."""

    cache: ProjectionCache
    version: Hashable  # the state of the weights that it was formed from
    tokens: int = 0  # met so far without the projections
    kept: Projections | None = None
    _operands: dict[Hashable, Any] = field(default_factory=dict)  # what a kernel multiplies by
    _operand_sizes: dict[Hashable, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes held."""
        return sum(t.nbytes for t in self.kept or ()) + sum(self._operand_sizes.values())

    def operand(self, name: Hashable, make: Callable[[], tuple[T, int]]) -> T:
        """What `make` gives, with its size in bytes; kept if it fits, as long as weights stay."""
        if name in self._operands:
            return self._operands[name]
        made, size = make()
        if self.cache.size + size <= self.cache.limit:
            self._operands[name], self._operand_sizes[name] = made, size
        return made

    def get(self, basis: Tensor, weights: Sequence[Tensor], tokens: int) -> Projections | None:
        """The projections if they are kept, or are worth forming for `tokens` more; else None."""
        if self.kept is not None:
            return self.kept
        self.tokens += tokens
        fits = self.cache.size + _bytes(basis, weights) <= self.cache.limit
        # Without room they serve this call only, so only its own tokens can repay them.
        if not _pays(basis, self.tokens if fits else tokens):
            return None
        formed = tuple(basis @ w for w in weights)
        if fits:
            self.kept = formed
        return formed


class ProjectionCache:
    """The projections of a model's layers, within a limit of bytes."""

    def __init__(self, limit: int = 0):
        self.limit = limit
        self.buffers = Buffers()  # for the tiles of whichever layer is in work
        self._layers: dict[int, LayerProjections] = {}

    def of(self, layer: int, version: Hashable) -> LayerProjections:
        """What is remembered of a layer; nothing if its weights are no longer the same."""
        known = self._layers.get(layer)
        if known is None or known.version != version:
            known = self._layers[layer] = LayerProjections(self, version)
        return known

    @property
    def size(self) -> int:
        """Bytes held."""
        return sum(layer.size for layer in self._layers.values())

    def resize(self, limit: int) -> None:
        """Change the limit, and forget what exceeds it."""
        self.limit = limit
        if self.size > limit:
            self.clear()

    def clear(self) -> None:
        self._layers.clear()


def _pays(basis: Tensor, tokens: int) -> bool:
    """Whether H·d_head·d·m + n·H·d_head·m operations are fewer than n·H·d·m."""
    _, d_head, d = basis.shape
    return d_head * (d + tokens) < tokens * d


def _bytes(basis: Tensor, weights: Sequence[Tensor]) -> int:
    heads, d_head, _ = basis.shape
    return sum(heads * d_head * w.shape[1] * w.element_size() for w in weights)
