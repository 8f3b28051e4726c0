"""How a kernel is called."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from normlens.components import Reach

EVERYWHERE = 1 << 29  # a reach without limit, in tokens
#: Whether Triton's interpreter runs the kernels, on a CPU.
INTERPRETED = bool(triton.knobs.runtime.interpret)


def described(tensor: Tensor, block: list[int]) -> TensorDescriptor:
    """A tensor whose blocks the copy engine brings in; beyond its edges they are zero."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)


def launch(
    kernel: Any, programs: int, *arguments: Any, operand: torch.dtype | None = None, **options: Any
) -> None:
    """Run a kernel in so many programs; those with an operand type also learn who runs them."""
    if operand is not None:
        options["OPERAND"] = tl.bfloat16 if operand == torch.bfloat16 else tl.float16
        options["PLAIN"] = INTERPRETED
    kernel[(programs,)](*arguments, **options)


@lru_cache(maxsize=64)
def on_device(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Lengths of sequences, as int32."""
    # A tensor that is made on the device itself would wait for it.
    return torch.tensor(lengths, dtype=torch.int32).to(device, non_blocking=True)


def strided(values: Tensor) -> tuple[Tensor, int, int]:
    """U (b, j, h, d) in any order of its heads, with the strides of tokens and heads."""
    if values.stride(3) != 1:
        values = values.contiguous()
    flat = values.flatten(0, 1)  # a copy where the batch does not follow on
    return flat, flat.stride(0), flat.stride(1)


def reaches(reach: Reach) -> tuple[int, int]:
    """How far a target sees, back and ahead."""
    back, ahead = (EVERYWHERE if far is None else far for far in (reach.back, reach.ahead))
    return back, ahead
