"""Modules of a model as components: what adapters are written with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from normlens.components import Linear, Norm
from normlens.models.reading import read_linear, read_tensor, without_adapters


def linear(module: Any) -> Linear:
    """An ``nn.Linear``, whose weight is (out, in), or GPT-2's Conv1D, whose weight is (in, out)."""
    return read_linear(module)


def columns(module: Any, start: int, stop: int) -> Linear:
    """Some output columns of a fused projection."""
    return _share(module, lambda t: t[..., start:stop])


def interleaved_values(module: Any, heads: int) -> Linear:
    """The value part of a fused projection laid out head by head as (query, key, value)."""
    return _share(module, lambda t: t.unflatten(-1, (heads, 3, -1))[..., 2, :].flatten(-2))


def _share(module: Any, part: Callable[[Tensor], Tensor]) -> Linear:
    whole = read_linear(module)
    bias = None if whole.bias is None else part(whole.bias)
    return Linear(part(whole.weight), bias, module, part)


def layer_norm(module: Any) -> Norm:
    """A LayerNorm, with or without γ and β."""
    base = without_adapters(module)
    return Norm(read_tensor(base, "weight"), read_tensor(base, "bias"), base.eps, True, module)


def rms_norm(module: Any, offset: float = 0.0) -> Norm:
    """An RMSNorm; `offset` 1 where the model multiplies by 1 + γ."""
    base = without_adapters(module)
    eps = base.variance_epsilon if hasattr(base, "variance_epsilon") else base.eps
    gamma = read_tensor(base, "weight")
    return Norm(gamma if gamma is None or not offset else gamma + offset, None, eps, False, module)
