"""Memory that tiles share, because fresh pages for each tile would cost more than filling them."""

from __future__ import annotations

from math import prod

from torch import Tensor


class Buffers:
    """Named pieces of memory that grow to the largest shape they were asked for."""

    def __init__(self) -> None:
        self._storage: dict[str, Tensor] = {}

    def take(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """An uninitialised tensor of `shape` in the piece called `name`, of `like`'s kind."""
        size = prod(shape)
        stored = self._storage.get(name)
        kind = like.dtype, like.device
        if stored is None or stored.numel() < size or (stored.dtype, stored.device) != kind:
            self._storage.pop(name, None)  # free the old piece before taking a larger one
            stored = self._storage[name] = like.new_empty(size)
        return stored[:size].view(shape)

    def clear(self) -> None:
        self._storage.clear()
