"""Whether a device runs the fused kernels."""

from __future__ import annotations

import importlib.util
import warnings
from functools import cache

import torch
from torch import Tensor

OLDEST_CAPABILITY = (8, 0)  # of GPUs that multiply bfloat16
WIDEST = 1 << 14  # numbers of a vector that one program holds


def kernels_run_on(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether kernels can work on numbers of this type on `device`.

    Without a GPU in this machine, one that is recent enough, with Triton, is assumed.
    """
    if device.type != "cuda" or dtype != torch.float32:
        return False
    if not torch.cuda.is_available():
        return True
    return torch.cuda.get_device_capability(device) >= OLDEST_CAPABILITY and has_triton()


def takes_one_pass(v: Tensor) -> bool:
    """Whether Triton takes a step over these vectors in one pass; it keeps track of no gradient."""
    if not (v.is_cuda and torch.cuda.is_available() and kernels_run_on(v.device, v.dtype)):
        return False
    return v.shape[-1] <= WIDEST and not (v.requires_grad and torch.is_grad_enabled())


@cache
def has_triton() -> bool:
    """Whether Triton is installed; warns once where it is missing."""
    if importlib.util.find_spec("triton") is not None:
        return True
    warnings.warn(
        "Triton is not installed, so the feed-forward stage runs as PyTorch tiles on this GPU, "
        "several times slower and in float32; `pip install triton` brings the fused kernel",
        RuntimeWarning,
        stacklevel=2,
    )
    return False
