"""The matrix of a module that is affine but holds none: what it makes of unit vectors.

Adapters and quantised weights come in dozens of kinds, and all of them can be run. A module that
computes x W + b turns the unit vector e_i into the row W_i + b, and zero into b. Whether it is
affine at all is judged by the vectors that it really reads (`normlens.tracing.checks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from normlens.models.offloading import execution_device

#: Unit vectors at a time: they are few beside the matrix that is formed.
_ROWS = 512
#: What unit vectors are multiplied by, so that the bias does not drown small weights in half
#: precision. A power of two changes no digit; a larger one might leave the range of float16.
_SCALE = 2.0**6


@torch.no_grad()
def probed_weight(module: Any, d_in: int, d_out: int, dtype: torch.dtype) -> Tensor:
    """W (in, out) of a module that computes x W + b, in float32 at least."""
    device = execution_device(module)
    wide = torch.promote_types(dtype, torch.float32)
    weight = torch.empty(d_in, d_out, dtype=wide, device=device)
    with _evaluated(module):
        at_zero = _run(module, torch.zeros(1, 1, d_in, dtype=dtype, device=device))
        for start in range(0, d_in, _ROWS):
            count = min(_ROWS, d_in - start)
            units = torch.zeros(1, count, d_in, dtype=dtype, device=device)
            units[0, :, start : start + count].fill_diagonal_(_SCALE)
            rows = _run(module, units).to(wide) - at_zero.to(wide)
            weight[start : start + count] = rows / _SCALE
    return weight


@torch.no_grad()
def probed_bias(module: Any, d_in: int, dtype: torch.dtype) -> Tensor:
    """b (out,) of a module that computes x W + b."""
    with _evaluated(module):
        zero = torch.zeros(1, 1, d_in, dtype=dtype, device=execution_device(module))
        return _run(module, zero)[0]


def _run(module: Any, x: Tensor) -> Tensor:
    # Not called as a module: hooks of an analysis that is going on must not see these vectors.
    return module.forward(x)[0]


@contextmanager
def _evaluated(module: nn.Module) -> Iterator[None]:
    """Dropout off in this module, and every mode put back."""
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True
