"""Reading of the weights of linear modules, or an error that says why they cannot be read.

A weight says what a module computes only if nothing else acts inside it. Adapters (peft), packed
and offloaded weights are refused here. Any other case is noticed when the module runs, because its
output is compared with x W + b (`normlens.tracing.checks`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normlens.components import Linear
from normlens.errors import UnsupportedModelError
from normlens.precisions import DTYPES

#: Precisions that a model may have.
_DTYPES = tuple(getattr(torch, name) for name in DTYPES)

_UNPACKED = "load the model without quantisation"


class UnreadableModule(UnsupportedModelError):
    """A module whose weights do not tell what it computes; the caller adds the module's name."""

    def __init__(self, module: nn.Module, reason: str, cure: str):
        self.module, self.reason, self.cure = module, reason, cure
        super().__init__(self.line("a module"))

    def line(self, name: str) -> str:
        return f"{name} ({class_name(self.module)}) {self.reason}; {self.cure}"


def class_name(module: nn.Module) -> str:
    """The name of a module's class with its package: many packages have a class named Linear."""
    package = type(module).__module__.split(".", 1)[0]
    return f"{package} {type(module).__name__}" if package != "__main__" else type(module).__name__


def read_linear(module: Any) -> Linear:
    """An ``nn.Linear``, whose weight is (out, in), or GPT-2's Conv1D, whose weight is (in, out)."""
    base = without_adapters(module)
    weight, bias = read_tensor(base, "weight"), getattr(base, "bias", None)
    if weight is None or weight.dim() != 2:
        raise UnreadableModule(
            module, "has no matrix named `weight`", f"{_UNPACKED}, or write an adapter for it"
        )
    if bias is not None:
        bias = read_tensor(base, "bias")
    return Linear(weight if type(base).__name__ == "Conv1D" else weight.T, bias, module)


def read_tensor(module: Any, name: str) -> Tensor | None:
    """A module's parameter as a tensor that can be multiplied; None if it has none."""
    tensor = getattr(module, name, None)
    if tensor is None:
        return None
    # Quantised modules of torch have a method of that name; torchao and bitsandbytes have tensors
    # of special classes, which may look like floating point and not act like it.
    if type(tensor) not in (Tensor, nn.Parameter):
        kind = "packed weights" if callable(tensor) else f"weights of {type(tensor).__name__}"
        raise UnreadableModule(module, f"holds {kind} that cannot be read as a matrix", _UNPACKED)
    if tensor.dtype not in _DTYPES:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise UnreadableModule(module, f"holds weights in {kind}", _UNPACKED)
    return tensor


def without_adapters(module: Any) -> Any:
    """The layer inside a wrapper of torch.compile, or of peft if no adapter is active."""
    module = getattr(module, "_orig_mod", module)  # torch.compile's wrapper
    while (base := getattr(module, "base_layer", None)) is not None:
        active = set(getattr(module, "active_adapters", ()) or ())
        if hasattr(module, "_get_available_adapters"):
            active &= set(module._get_available_adapters())
        idle = getattr(module, "merged", False) or getattr(module, "disable_adapters", False)
        if active and not idle:
            raise UnreadableModule(
                module,
                f"computes with the adapter {', '.join(sorted(active))}, not with its weight alone",
                "merge it first (model.merge_and_unload(), or .merge() of each such module)",
            )
        module = base
    return module
