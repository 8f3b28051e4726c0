"""A batch's small results, which stay on their device until all layers are through."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from normlens.analysing.layer_results import Key
from normlens.analysing.outbox import Outbox
from normlens.pinned import pinned_copy

#: Bytes of results that may stay on a device until the last layer is through.
HELD_ON_DEVICE = 2 << 30


class _Alike(NamedTuple):
    """Results of one name, of several layers, one behind the other in a flat tensor."""

    key: Key
    layers: int
    shape: torch.Size  # of one layer's, (b, …)


class SmallResults:
    """Results of several layers, put into a few flat tensors before they are asked for."""

    def __init__(self, outbox: Outbox | None):
        self._outbox = outbox
        self.waiting: dict[Key, list[Tensor]] = {}
        self._held = 0  # bytes on the device
        self._settled: list[tuple[Tensor, list[_Alike]]] = []
        self._home: dict[Key, list[NDArray[Any]]] = {}  # pieces, each (b, layer, …)

    def add(self, key: Key, tensor: Tensor) -> None:
        """Keep a layer's result (b, …)."""
        self.waiting.setdefault(key, []).append(tensor)
        self._held += tensor.nbytes if tensor.is_cuda else 0

    def make_room(self) -> None:
        """Bring home what waits if it takes too much of the device's memory."""
        if self._held > HELD_ON_DEVICE and self._outbox is not None:
            self._bring()

    def settle(self) -> None:
        """Put everything that waits into one tensor of each type; nothing is waited for."""
        by_type: dict[torch.dtype, list[Key]] = {}
        for key, pieces in self.waiting.items():
            by_type.setdefault(pieces[0].dtype, []).append(key)
        for keys in by_type.values():
            flat = torch.cat([piece.flatten() for key in keys for piece in self.waiting[key]])
            alike = [_Alike(key, len(w := self.waiting[key]), w[0].shape) for key in keys]
            self._settled.append((flat, alike))
        self.waiting.clear()
        self._held = 0

    def leave(self) -> None:
        """Send off what is settled, behind the device's last kernel."""
        self._settled = [(self._sent(flat), alike) for flat, alike in self._settled]

    def bring_home(self) -> None:
        """Copy what is settled to pinned memory, as the last thing that the device does."""
        self._settled = [(pinned_copy(flat), alike) for flat, alike in self._settled]

    def replayed(self, recorded: SmallResults) -> None:
        """Take over what a recorded batch leaves."""
        self._settled = list(recorded._settled)

    def take(self) -> None:
        """Copy numbers that the next replay writes over."""
        self._settled = [(flat.clone(), alike) for flat, alike in self._settled]

    def arrived(self) -> dict[Key, list[NDArray[Any]]]:
        """Everything, in pieces of some layers (b, layer, …); it is forgotten here."""
        self._bring()
        home, self._home = self._home, {}
        return home

    def _bring(self) -> None:
        """Move what waits on the device to the CPU."""
        if self.waiting and not next(iter(self.waiting.values()))[0].is_cuda:
            for key, pieces in self.waiting.items():
                self._home.setdefault(key, []).append(torch.stack(pieces, dim=1).cpu().numpy())
            self.waiting.clear()
        self.settle()
        for flat, alike in self._settled:
            start, whole = 0, self._on_cpu(flat)
            for key, layers, shape in alike:
                stop = start + layers * shape.numel()
                array = whole[start:stop].reshape(layers, *shape)
                self._home.setdefault(key, []).append(array.swapaxes(0, 1))
                start = stop
        self._settled.clear()

    def _on_cpu(self, flat: Tensor) -> NDArray[Any]:
        if self._outbox is None or not flat.is_cuda:
            return flat.cpu().numpy()
        arrived = self._sent(flat)
        self._outbox.wait()
        return arrived.numpy()

    def _sent(self, flat: Tensor) -> Tensor:
        """Where numbers arrive that the outbox is on its way with."""
        assert self._outbox is not None
        arrived = torch.empty(flat.shape, dtype=flat.dtype)
        self._outbox.send_flat(flat, arrived)
        return arrived
