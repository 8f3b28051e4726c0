"""Copies in memory that a GPU reads and writes without the CPU's help."""

from __future__ import annotations

import torch
from torch import Tensor


def pinned_copy(tensor: Tensor) -> Tensor:
    """A copy of a GPU's tensor in pinned memory, there when the stream has come so far.

    Tensors of the CPU are returned as they are.
    """
    if not tensor.is_cuda:
        return tensor
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of a CPU's tensor on `device`; a GPU is not waited for."""
    if device.type == "cuda" and torch.cuda.is_available():
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
