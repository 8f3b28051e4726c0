"""Read the weights of a model's modules, wherever they are kept, or say why they cannot be read."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normlens.errors import UnsupportedModelError
from normlens.gpu.matmul import formed, lazy_tensor
from normlens.layers import Linear
from normlens.options import DTYPES

#: Precisions that a model may have.
_DTYPES = tuple(getattr(torch, name) for name in DTYPES)
_UNPACKED = (
    "load the model without quantisation, or turn it back (model.dequantize() of transformers)"
)


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


# Weights that accelerate keeps elsewhere and brings when a module runs (`device_map`, offloading).
#
# Such a parameter is on the meta device. Its module has a hook that loads it before the module
# runs and lets go of it afterwards; here the same hook loads the weights of one module to be read.


def execution_device(model: nn.Module) -> torch.device:
    """The device on which a model runs: its weights', or the one they are brought to."""
    for module in model.modules():
        place = getattr(_loading_hook(module), "execution_device", None)
        if place is not None:
            return torch.device(place)
        for parameter in module.parameters(recurse=False):
            if not parameter.is_meta:
                return parameter.device
    # A module of packed weights may have nothing but buffers.
    return next((buffer.device for buffer in model.buffers()), torch.device("meta"))


def weights_dtype(model: nn.Module) -> torch.dtype:
    """The precision of a model's weights, by the first of them."""
    return next(filter(torch.is_floating_point, model.parameters())).dtype


def execution_places(module: nn.Module) -> set[torch.device]:
    """Every device on which parts of a module run; meta where nothing brings their weights."""
    places = set()
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            place = parameter.device if _loading_hook(part) is None else execution_device(part)
            if place.type == "cuda" and place.index is None:  # the current GPU
                current = torch.cuda.current_device() if torch.cuda.is_available() else 0
                place = torch.device("cuda", current)
            places.add(place)
    return places


def loaded_tensor(model: nn.Module, name: str) -> Tensor:
    """A tensor of a model's state as plain numbers in memory; a copy where a hook offloads it."""
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    hook = _loading_hook(module)
    if hook is None:
        return numbers_of(getattr(module, own)).detach()
    hook.pre_forward(module)
    try:
        return numbers_of(getattr(module, own)).detach().clone()
    finally:
        hook.post_forward(module, None)


def _loading_hook(module: Any) -> Any:
    """The hook that loads a module's own weights, alone or as one of several."""
    hook = getattr(module, "_hf_hook", None)
    # A hook of a whole block has the weights of its parts, which have no hook then.
    for each in getattr(hook, "hooks", (hook,)):
        if getattr(each, "offload", False):
            return each
    return None


# Quantised tensors, and modules with adapters (peft).


def numbers_of(tensor: Tensor) -> Tensor:
    """A tensor as plain numbers: itself, or what a quantised one stands for."""
    with torch.no_grad():
        return tensor.dequantize() if _is_quantised(tensor) else tensor


def _is_quantised(tensor: Any) -> bool:
    """Whether a tensor is of a class that can be turned back into numbers (torchao, quanto)."""
    return isinstance(tensor, Tensor) and type(tensor).dequantize is not Tensor.dequantize


def without_idle_adapters(module: Any) -> Any:
    """The layer inside a wrapper of torch.compile, and of peft where no adapter is at work.

    Of a norm that one adapter replaces, it is that adapter's.
    """
    module = getattr(module, "_orig_mod", module)  # torch.compile's wrapper
    while hasattr(module, "base_layer"):
        active = active_adapters(module)
        if hasattr(module, "ln_tuning_layers") and len(active) == 1:
            return module.ln_tuning_layers[active[0]]
        if active:
            return module
        module = module.base_layer
    return module


def active_adapters(module: Any) -> list[str]:
    """The adapters of a peft module that act beside its base layer."""
    if getattr(module, "merged", False) or getattr(module, "disable_adapters", False):
        return []
    active = list(getattr(module, "active_adapters", ()) or ())
    if hasattr(module, "_get_available_adapters"):
        here = module._get_available_adapters()
        active = [name for name in active if name in here]
    return sorted(active)


# Reading of weights, or an error that says why they cannot be read.
#
# A weight says what a module computes only if nothing else acts inside it. With adapters (peft),
# and where weights are quantised or offloaded, the matrix that the module really multiplies by is
# formed when it is needed (`normlens.gpu.matmul`), one layer at a time; the model stays as it is.
# Either way the module's output is compared with x W + b when it runs (`normlens.trace.checks`).


def read_tensor(module: Any, name: str) -> Tensor | None:
    """A module's parameter as a tensor that can be multiplied; None if it has none."""
    if hasattr(module, "base_layer"):
        raise UnreadableModule(
            module,
            f"computes with the adapter {', '.join(active_adapters(module))}, not with its weight "
            "alone",
            "merge it first (model.merge_and_unload(), or .merge() of each such module)",
        )
    tensor = getattr(module, name, None)
    if tensor is None:
        return None
    if type(tensor) in (Tensor, nn.Parameter):
        if tensor.dtype not in _DTYPES:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UnreadableModule(module, f"holds weights in {kind}", _UNPACKED)
        # What is no parameter is computed at every look (parametrizations) or at every run
        # (weight_norm), and a view would keep the result.
        is_offloaded = tensor.is_meta and _loading_hook(module) is not None
        if type(tensor) is nn.Parameter and not is_offloaded:
            return tensor
    # Quantised modules of torch have a method of that name; bitsandbytes has tensors of special
    # classes, which may look like floating point and not act like it.
    elif not _is_quantised(tensor):
        kind = "packed weights" if callable(tensor) else f"weights of {type(tensor).__name__}"
        raise UnreadableModule(module, f"holds {kind} that cannot be read as a matrix", _UNPACKED)
    return lazy_tensor(tensor.shape, tensor.dtype, partial(loaded_tensor, module, name))


def linear(module: Any) -> Linear:
    """The map x W + b of a module, or one that was read already.

    The module is an ``nn.Linear``, whose weight is (out, in), GPT-2's Conv1D, whose weight is
    (in, out), or any other that computes x W + b: with adapters, with quantised weights.
    """
    if isinstance(module, Linear):
        return module
    inner = without_idle_adapters(module)
    if hasattr(inner, "base_layer"):
        return Linear(*_adapted(inner), module)
    weight: Any = getattr(inner, "weight", None)
    # Quantised modules have names of their own for the sizes of their input and output.
    d_in = getattr(inner, "in_features", getattr(inner, "infeatures", None))
    d_out = getattr(inner, "out_features", getattr(inner, "outfeatures", None))
    if isinstance(d_in, int) and isinstance(d_out, int) and not callable(weight):
        # Somebody may have replaced what a module computes; accelerate's hooks do not.
        replaced = "forward" in vars(inner) and not hasattr(inner, "_hf_hook")
        plain = type(weight) in (Tensor, nn.Parameter) and weight.dtype in _DTYPES
        in_memory = plain and _loading_hook(inner) is None  # of a subclass of nn.Linear
        if replaced or not (type(inner) is nn.Linear or in_memory or _is_quantised(weight)):
            # It takes vectors in the precision of its scales or its bias.
            tensors = (*inner.parameters(), *inner.buffers())
            dtype = next((t.dtype for t in tensors if t.dtype in _DTYPES), torch.float32)
            return Linear(*_probed(inner, d_in, d_out, dtype), module)
    matrix = read_tensor(inner, "weight")
    if matrix is None or matrix.dim() != 2:
        raise UnreadableModule(
            inner, "has no matrix named `weight`", f"{_UNPACKED}, or write an adapter for it"
        )
    is_transposed = type(inner).__name__ == "Conv1D"
    return Linear(matrix if is_transposed else matrix.T, read_tensor(inner, "bias"), module)


def _adapted(module: Any) -> tuple[Tensor, Tensor | None]:
    """What a peft module with adapters at work multiplies by and adds."""
    active, base = active_adapters(module), linear(module.base_layer)
    #: Whether the adapters are LoRA's matrices beside the weight, and nothing else.
    are_added = (
        type(module).__module__.startswith(("peft.tuners.lora.", "peft.tuners.adalora."))
        and hasattr(module, "get_delta_weight")
        and type(module).__name__ != "ParamWrapper"
        and not any(name in getattr(module, "lora_variant", {}) for name in active)
        and not any(getattr(module, "lora_bias", {}).get(name) for name in active)
    )
    if not are_added:
        d_in, d_out = base.weight.shape
        return _probed(module, d_in, d_out, base.weight.dtype)

    @torch.no_grad()
    def added() -> Tensor:
        weight = formed(base.weight).detach()
        total = weight.to(torch.promote_types(weight.dtype, torch.float32), copy=True)
        for name in active:
            delta = module.get_delta_weight(name).detach().to(total)
            total += delta if type(module.base_layer).__name__ == "Conv1D" else delta.T
        return total

    return lazy_tensor(base.weight.shape, base.weight.dtype, added), base.bias


#: Unit vectors at a time: they are few beside the matrix that is formed.
_ROWS = 512
#: What unit vectors are multiplied by, so that the bias does not drown small weights in half
#: precision. A power of two changes no digit; a larger one might leave the range of float16.
_SCALE = 2.0**6


def _probed(module: Any, d_in: int, d_out: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The weight, in float32 at least, and the bias of a module that is affine but holds no matrix.

    Adapters and quantised weights come in dozens of kinds, and all of them can be run. A module
    that computes x W + b turns the unit vector e_i into the row W_i + b, and zero into b. Whether
    it is affine at all is judged by the vectors that it really reads (`normlens.trace.checks`).
    """

    @torch.no_grad()
    def run(first: int = 0, count: int = 0) -> Tensor:
        """What the module makes of `count` unit vectors from the `first` on, or of one zero."""
        x = torch.zeros(max(count, 1), d_in, dtype=dtype, device=execution_device(module))
        x[:count].diagonal(first).fill_(_SCALE)
        training = [part for part in module.modules() if part.training]
        try:
            for part in training:
                part.training = False  # dropout
            # Not called as a module: hooks of an analysis that is going on must not see these.
            return module.forward(x[None])[0]
        finally:
            for part in training:
                part.training = True

    def weight() -> Tensor:
        bias = run()
        wide = torch.promote_types(dtype, torch.float32)
        rows = torch.empty(d_in, d_out, dtype=wide, device=bias.device)
        for start in range(0, d_in, _ROWS):
            scaled = run(start, min(_ROWS, d_in - start)).to(wide) - bias.to(wide)
            rows[start : start + _ROWS] = scaled / _SCALE
        return rows

    tensors = (*module.named_parameters(), *module.named_buffers())
    has_bias = getattr(module, "bias", None) is not None or any(
        name.rpartition(".")[2] == "bias" for name, _ in tensors
    )
    bias = lazy_tensor((d_out,), dtype, lambda: run()[0]) if has_bias else None
    return lazy_tensor((d_in, d_out), dtype, weight), bias
