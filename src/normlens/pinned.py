"""Copies in memory that a GPU writes to without the CPU's help."""

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
