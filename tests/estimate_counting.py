"""What an analysis holds, and how far an estimate of it may be off."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: How far an estimate may be off, as a factor. Operations are counted, memory is bounded by what
#: the largest tensors need, so it errs on the high side.
OPERATIONS_FACTOR = 1.1
MEMORY_FACTOR = 1.8
LIMIT = 64 << 20


class PeakMemory(TorchDispatchMode):
    """The largest sum of bytes that tensors other than `model`'s own held at one time."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.held = {p.untyped_storage()._cdata: 0 for p in model.parameters()}
        self.now = self.peak = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._hold(tensor.untyped_storage())
        return result

    def _hold(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self.held:
            self.held[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._release, key)

    def _release(self, key: int) -> None:
        self.now -= self.held.pop(key, 0)


def within(estimated: float, measured: float, factor: float) -> bool:
    return measured / factor <= estimated <= measured * factor
