"""Calls of the kernels: arguments in the form that Triton takes."""

from __future__ import annotations

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
    """Describe a tensor for the GPU's copy engine, which reads zeros beyond its edges."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)


def launch(
    kernel: Any, programs: int, *arguments: Any, operand: torch.dtype | None = None, **options: Any
) -> None:
    """Run a kernel as so many programs.

    A kernel with an `operand` type is also told whether Triton's interpreter runs it.
    """
    if operand is not None:
        options["OPERAND"] = tl.bfloat16 if operand == torch.bfloat16 else tl.float16
        options["PLAIN"] = INTERPRETED
    kernel[(programs,)](*arguments, **options)


def strided(values: Tensor) -> tuple[Tensor, int, int]:
    """U (j, h, d) or (b, j, h, d), whatever its memory layout, and its token and head strides."""
    if values.stride(-1) != 1:
        values = values.contiguous()
    # a copy where sequences are not adjacent in memory
    flat = values.flatten(0, 1) if values.dim() == 4 else values
    return flat, flat.stride(0), flat.stride(1)


def reaches(reach: Reach) -> tuple[int, int]:
    """How many tokens back and ahead a target sees, as integers."""
    back, ahead = (EVERYWHERE if far is None else far for far in (reach.back, reach.ahead))
    return back, ahead
