"""How a kernel is called."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

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
