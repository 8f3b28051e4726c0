"""Weights that accelerate keeps elsewhere and brings when a module runs (`device_map`, offloading).

Such a parameter is on the meta device. Its module has a hook that loads it before the module runs
and lets go of it afterwards; here the same hook loads the weights of one module to be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


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
