"""Memory of devices and limits on it; the error of completeness."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from normlens.gpu.matmul import on_device

# Memory limits and memory of devices.


GIB = 1 << 30
#: The limit of the feed-forward stage: larger tiles are not faster. It is the same on every
#: machine, because the sizes of tiles decide the last digits.
DEFAULT_LIMIT = GIB // 4
DEFAULT_PREPARED = GIB // 2  # of products that a prepared lens keeps


def free_memory(device: torch.device) -> int:
    """Bytes free on `device`; for a CPU, what Linux calls available memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    try:  # half of what macOS says is there
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return 4 * GIB


def device_memory(device: torch.device) -> int:
    """Total memory of a device in bytes; 4 GiB where it does not tell."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return 4 * GIB


# The error of completeness: parts and bias against the vectors that the model computed.


def relative_error(total: Tensor, real: Tensor, lengths: Sequence[int]) -> Tensor:
    """The largest ``‖Σ_j F_i(x_j) + b_i − y_i‖ / ‖y_i‖`` over the real tokens of a batch (b, i, d).

    The number stays on the device: reading it here would hold up the layers that follow.
    """
    return largest_errors([relative_rows(total, real, lengths)])[0]


def relative_rows(total: Tensor, real: Tensor, lengths: Sequence[int]) -> Tensor:
    """The error of each target (b, i), 0 for padding."""
    y = real.to(total.dtype)
    error = torch.linalg.vector_norm(total - y, dim=-1)
    size = torch.linalg.vector_norm(y, dim=-1).clamp_min(torch.finfo(y.dtype).tiny)
    relative = error / size
    if min(lengths) < total.shape[1]:
        ends = on_device(tuple(lengths), total.device)
        is_token = torch.arange(total.shape[1], device=total.device) < ends[:, None]
        relative = relative.masked_fill(~is_token, 0)
    return relative


def largest_errors(relative: Sequence[Tensor]) -> Sequence[Tensor]:
    """The largest of each scope's errors (b, i), all taken together."""
    if not relative:
        return ()
    worst = torch.stack(list(relative)).flatten(1).amax(1)
    # NaN must not pass as a small error.
    return worst.nan_to_num(nan=float("inf"), posinf=float("inf")).unbind()


# Whether a device runs the fused kernels.


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
