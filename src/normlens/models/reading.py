"""Reading of the weights of linear modules, or an error that says why they cannot be read.

A weight says what a module computes only if nothing else acts inside it. With adapters (peft), and
where weights are quantised or offloaded, the matrix that the module really multiplies by is formed
when it is needed (`normlens.late`), one layer at a time; the model stays as it is. Either way the
module's output is compared with x W + b when it runs (`normlens.tracing.checks`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normlens.components import Linear
from normlens.errors import UnsupportedModelError
from normlens.late import formed, late
from normlens.models.offloading import is_offloaded, loaded
from normlens.models.probing import probed_bias, probed_weight
from normlens.precisions import DTYPES

#: Precisions that a model may have.
_DTYPES = tuple(getattr(torch, name) for name in DTYPES)

_UNPACKED = (
    "load the model without quantisation, or turn it back (model.dequantize() of transformers)"
)
#: Names under which quantised modules keep the sizes of their input and output.
_SIZES = (("in_features", "out_features"), ("infeatures", "outfeatures"))


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
    """An ``nn.Linear``, whose weight is (out, in), GPT-2's Conv1D, whose weight is (in, out), or
    any other module that computes x W + b: with adapters, with quantised weights."""
    inner = without_idle_adapters(module)
    if hasattr(inner, "base_layer"):
        weight, bias = _adapted(inner)
    elif _holds_matrix(inner):
        weight, bias = _held(inner)
    else:
        weight, bias = _probed(inner)
    return Linear(weight, bias, module)


def read_tensor(module: Any, name: str) -> Tensor | None:
    """A module's parameter as a tensor that can be multiplied; None if it has none."""
    tensor = getattr(module, name, None)
    if tensor is None:
        return None
    if tensor is not None and is_offloaded(module) and getattr(tensor, "is_meta", False):
        return late(tensor.shape, tensor.dtype, partial(_loaded_tensor, module, name))
    # Quantised modules of torch have a method of that name; torchao and bitsandbytes have tensors
    # of special classes, which may look like floating point and not act like it.
    if type(tensor) not in (Tensor, nn.Parameter):
        kind = "packed weights" if callable(tensor) else f"weights of {type(tensor).__name__}"
        raise UnreadableModule(module, f"holds {kind} that cannot be read as a matrix", _UNPACKED)
    if tensor.dtype not in _DTYPES:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise UnreadableModule(module, f"holds weights in {kind}", _UNPACKED)
    return tensor


def without_idle_adapters(module: Any) -> Any:
    """The layer inside a wrapper of torch.compile, and of peft where no adapter is at work."""
    module = getattr(module, "_orig_mod", module)  # torch.compile's wrapper
    while (base := getattr(module, "base_layer", None)) is not None and not active_adapters(module):
        module = base
    return module


def without_adapters(module: Any) -> Any:
    """The same for a module that is no linear map: an adapter at work there is refused."""
    inner = without_idle_adapters(module)
    if hasattr(inner, "ln_tuning_layers") and len(active_adapters(inner)) == 1:
        return inner.ln_tuning_layers[active_adapters(inner)[0]]
    if hasattr(inner, "base_layer"):
        raise UnreadableModule(
            inner,
            f"computes with the adapter {', '.join(active_adapters(inner))}, not with its weight "
            "alone",
            "merge it first (model.merge_and_unload(), or .merge() of each such module)",
        )
    return inner


def active_adapters(module: Any) -> list[str]:
    """The adapters of a peft module that act beside its base layer."""
    if getattr(module, "merged", False) or getattr(module, "disable_adapters", False):
        return []
    active = list(getattr(module, "active_adapters", ()) or ())
    if hasattr(module, "_get_available_adapters"):
        here = module._get_available_adapters()
        active = [name for name in active if name in here]
    return sorted(active)


# Kinds of modules ---------------------------------------------------------------------------------


def _holds_matrix(module: Any) -> bool:
    """Whether a module's `weight` is what it multiplies by, or the module cannot be asked."""
    weight = getattr(module, "weight", None)
    if _sizes(module) is None or callable(weight):
        return True
    if "forward" in vars(module) and not hasattr(module, "_hf_hook"):
        return False  # somebody has replaced what it computes; accelerate's hooks do not
    if type(module) is nn.Linear or _is_quantised(weight):
        return True
    return _is_plain(weight) and not is_offloaded(module)  # a subclass of nn.Linear


def _held(module: Any) -> tuple[Tensor, Tensor | None]:
    """The weight (in, out) and bias of a module that holds a matrix, quantised or offloaded."""
    weight: Any = getattr(module, "weight", None)
    matrix: Tensor | None
    if _is_quantised(weight):
        matrix = late(weight.shape, weight.dtype, lambda: numbers_of(module.weight))
    elif type(weight) is Tensor and _is_plain(weight):
        # No parameter: it is computed at every look (parametrizations) or at every run
        # (weight_norm), and a view would keep the result.
        matrix = late(weight.shape, weight.dtype, lambda: module.weight.detach())
    else:
        matrix = read_tensor(module, "weight")
    if matrix is None or matrix.dim() != 2:
        raise UnreadableModule(
            module, "has no matrix named `weight`", f"{_UNPACKED}, or write an adapter for it"
        )
    bias = None if getattr(module, "bias", None) is None else read_tensor(module, "bias")
    return matrix if _is_transposed(module) else matrix.T, bias


def _adapted(module: Any) -> tuple[Tensor, Tensor | None]:
    """What a peft module with adapters at work multiplies by and adds."""
    active, base = active_adapters(module), read_linear(module.base_layer)
    if _is_sum(module, active):

        def added() -> Tensor:
            weight = formed(base.weight).detach()
            wide = torch.promote_types(weight.dtype, torch.float32)
            total = weight.to(wide, copy=True)
            for name in active:
                delta = module.get_delta_weight(name).detach().to(total)
                total += delta if _is_transposed(module.base_layer) else delta.T
            return total

        return late(base.weight.shape, base.weight.dtype, torch.no_grad()(added)), base.bias
    return _probed(module, tuple(base.weight.shape), base.weight.dtype)


def _is_sum(module: Any, active: list[str]) -> bool:
    """Whether the adapters are LoRA's matrices beside the weight, and nothing else."""
    kind = type(module).__module__
    return (
        kind.startswith(("peft.tuners.lora.", "peft.tuners.adalora."))
        and hasattr(module, "get_delta_weight")
        and type(module).__name__ != "ParamWrapper"
        and not any(name in getattr(module, "lora_variant", {}) for name in active)
        and not any(getattr(module, "lora_bias", {}).get(name) for name in active)
    )


def _probed(
    module: Any, sizes: tuple[int, ...] | None = None, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor | None]:
    """The weight and bias of any other module, read by running it."""
    d_in, d_out = sizes or _sizes(module) or (0, 0)
    kind = dtype or _dtype_of(module)
    weight = late((d_in, d_out), kind, partial(probed_weight, module, d_in, d_out, kind))
    if not _has_bias(module):
        return weight, None
    return weight, late((d_out,), kind, partial(probed_bias, module, d_in, kind))


def numbers_of(tensor: Tensor) -> Tensor:
    """A tensor as plain numbers: itself, or what a quantised one stands for."""
    with torch.no_grad():
        return tensor.dequantize().detach() if _is_quantised(tensor) else tensor


def _loaded_tensor(module: Any, name: str) -> Tensor:
    with torch.no_grad(), loaded(module):
        return numbers_of(getattr(module, name)).detach().clone()


def _is_plain(tensor: Any) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and tensor.dtype in _DTYPES


def _is_quantised(tensor: Any) -> bool:
    """Whether a tensor is of a class that can be turned back into numbers (torchao, quanto)."""
    kind = type(tensor)
    return isinstance(tensor, Tensor) and kind.dequantize is not Tensor.dequantize


def _is_transposed(module: Any) -> bool:
    return type(module).__name__ == "Conv1D"


def _sizes(module: Any) -> tuple[int, int] | None:
    """The sizes of a linear module's input and output, if it tells them."""
    for names in _SIZES:
        sizes = [getattr(module, name, None) for name in names]
        if all(isinstance(size, int) for size in sizes):
            return sizes[0], sizes[1]  # type: ignore[return-value]
    return None


def _dtype_of(module: Any) -> torch.dtype:
    """The precision in which a quantised module takes vectors: that of its scales or its bias."""
    tensors = (*module.parameters(), *module.buffers())
    return next((t.dtype for t in tensors if t.dtype in _DTYPES), torch.float32)


def _has_bias(module: Any) -> bool:
    tensors = (*module.named_parameters(), *module.named_buffers())
    named = any(name.rpartition(".")[2] == "bias" for name, _ in tensors)
    return named or getattr(module, "bias", None) is not None
