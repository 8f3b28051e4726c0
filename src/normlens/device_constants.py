"""What kernels need of their device: to be the current one, and small numbers, put there once.

Copying numbers there for each layer would cost more than the layer's smaller kernels. A recorded
call (`normlens.analysing.recording`) reads them again whenever it is replayed, so it holds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache

import torch
from torch import Tensor

_held: ContextVar[list[Tensor] | None] = ContextVar("held", default=None)


def on_device(
    numbers: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.int64
) -> Tensor:
    """These numbers as a tensor on `device`; nobody may write into it."""
    tensor = _made(numbers, device, dtype)
    if (held := _held.get()) is not None:
        held.append(tensor)
    return tensor


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one for a while: kernels and events go to that one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@lru_cache(maxsize=256)
def _made(numbers: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    # Making the tensor on the device itself would wait for the device.
    return torch.tensor(numbers, dtype=dtype).to(device, non_blocking=True)


@contextmanager
def holding() -> Iterator[list[Tensor]]:
    """Collect every constant that is used inside, which keeps it in memory."""
    held: list[Tensor] = []
    token = _held.set(held)
    try:
        yield held
    finally:
        _held.reset(token)
