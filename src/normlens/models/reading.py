"""Read the weights of linear modules, wherever they are kept, or say why they cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normlens.errors import UnsupportedModelError
from normlens.gpu.lazy_tensor import formed, lazy_tensor
from normlens.layers import Linear
from normlens.options import DTYPES

# Weights that accelerate keeps elsewhere and brings when a module runs (`device_map`, offloading).
#
# Such a parameter is on the meta device. Its module has a hook that loads it before the module
# runs and lets go of it afterwards; here the same hook loads the weights of one module to be read.


def is_offloaded(module: Any) -> bool:
    """Whether a hook brings this module's own weights when it runs."""
    return _loading_hook(module) is not None


def execution_device(model: nn.Module) -> torch.device:
    """The device on which a model runs: its weights', or the one they are brought to."""
    for module in model.modules():
        hook = _loading_hook(module)
        place = None if hook is None else getattr(hook, "execution_device", None)
        if place is not None:
            return torch.device(place)
        for parameter in module.parameters(recurse=False):
            if not parameter.is_meta:
                return parameter.device
    # A module of packed weights may have nothing but buffers.
    return next((buffer.device for buffer in model.buffers()), torch.device("meta"))


def execution_places(module: nn.Module) -> set[torch.device]:
    """Every device on which parts of a module run; meta where nothing brings their weights."""
    return {
        _numbered(execution_device(part) if is_offloaded(part) else parameter.device)
        for part in module.modules()
        for parameter in part.parameters(recurse=False)
    }


def _numbered(device: torch.device) -> torch.device:
    """The device with its number: "cuda" is the current GPU."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)


@contextmanager
def loaded(module: Any) -> Iterator[None]:
    """Have a module's own weights in memory for a while, where a hook offloads them."""
    hook = _loading_hook(module)
    if hook is None:
        yield
        return
    hook.pre_forward(module)
    try:
        yield
    finally:
        hook.post_forward(module, None)


def loaded_tensor(model: nn.Module, name: str) -> Tensor:
    """A tensor of a model's state, in memory; a copy where a hook offloads it."""
    place, _, own = name.rpartition(".")
    module = model.get_submodule(place)
    with loaded(module):
        tensor = getattr(module, own).detach()
        return tensor.clone() if is_offloaded(module) else tensor


def _loading_hook(module: Any) -> Any:
    """The hook that loads a module's own weights, alone or as one of several."""
    hook = getattr(module, "_hf_hook", None)
    hooks = getattr(hook, "hooks", (hook,))
    # A hook of a whole block has the weights of its parts, which have no hook then.
    return next((each for each in hooks if getattr(each, "offload", False)), None)


# The matrix of a module that is affine but holds none: what it makes of unit vectors.
#
# Adapters and quantised weights come in dozens of kinds, and all of them can be run. A module that
# computes x W + b turns the unit vector e_i into the row W_i + b, and zero into b. Whether it is
# affine at all is judged by the vectors that it really reads (`normlens.trace.checks`).


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


# Reading of the weights of linear modules, or an error that says why they cannot be read.
#
# A weight says what a module computes only if nothing else acts inside it. With adapters (peft),
# and where weights are quantised or offloaded, the matrix that the module really multiplies by is
# formed when it is needed (`normlens.gpu.matmul`), one layer at a time; the model stays as it is.
# Either way the module's output is compared with x W + b when it runs (`normlens.trace.checks`).


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
        return lazy_tensor(tensor.shape, tensor.dtype, partial(_loaded_tensor, module, name))
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
        matrix = lazy_tensor(weight.shape, weight.dtype, lambda: numbers_of(module.weight))
    elif type(weight) is Tensor and _is_plain(weight):
        # No parameter: it is computed at every look (parametrizations) or at every run
        # (weight_norm), and a view would keep the result.
        matrix = lazy_tensor(weight.shape, weight.dtype, lambda: module.weight.detach())
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

        return lazy_tensor(base.weight.shape, base.weight.dtype, torch.no_grad()(added)), base.bias
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
    weight = lazy_tensor((d_in, d_out), kind, partial(probed_weight, module, d_in, d_out, kind))
    if not _has_bias(module):
        return weight, None
    return weight, lazy_tensor((d_out,), kind, partial(probed_bias, module, d_in, kind))


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
