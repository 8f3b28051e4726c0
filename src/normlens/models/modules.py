"""Modules of a model as components: what adapters are written with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from normlens.components import Attention, Branch, Linear, Norm, Residual, Step
from normlens.models.reading import read_linear, read_tensor, without_adapters


def linear(module: Any) -> Linear:
    """An ``nn.Linear``, whose weight is (out, in), or GPT-2's Conv1D, whose weight is (in, out)."""
    return read_linear(module)


def columns(module: Any, start: int, stop: int) -> Linear:
    """Some output columns of a fused projection."""
    return _share(module, lambda t: t[..., start:stop])


def interleaved_values(module: Any, heads: int, parts: int = 3, place: int = -1) -> Linear:
    """The value part of a fused projection laid out head by head as (query, key, value).

    Groups of heads may take the place of heads: `parts` counts all that one of them holds, several
    queries for example, and `place` says which is the value.
    """
    return _share(module, lambda t: t.unflatten(-1, (heads, parts, -1))[..., place, :].flatten(-2))


def head_columns(module: Any, heads: int, start: int, stop: int | None = None) -> Linear:
    """Some columns of every head of a fused projection laid out head by head."""
    return _share(module, lambda t: t.unflatten(-1, (heads, -1))[..., start:stop].flatten(-2))


def scaled(linear: Linear, factor: float | Tensor) -> Linear:
    """A map whose output, bias included, the model multiplies by `factor`: a number or (d,)."""
    return replace(linear, scale=linear.scale * factor)


def _share(module: Any, part: Callable[[Tensor], Tensor]) -> Linear:
    whole = read_linear(module)
    bias = None if whole.bias is None else part(whole.bias)
    return Linear(part(whole.weight), bias, module, part)


def layer_norm(module: Any, offset: float = 0.0) -> Norm:
    """A LayerNorm, with or without γ and β; `offset` 1 where the model multiplies by 1 + γ."""
    base = without_adapters(module)
    return Norm(_gamma(base, offset), read_tensor(base, "bias"), _eps(base), True, module)


def rms_norm(module: Any, offset: float = 0.0) -> Norm:
    """An RMSNorm; `offset` 1 where the model multiplies by 1 + γ."""
    base = without_adapters(module)
    return Norm(_gamma(base, offset), None, _eps(base), False, module)


def affine(module: Any) -> Norm:
    """γ and β in a norm's place, without any deviation."""
    base = without_adapters(module)
    return Norm(read_tensor(base, "weight"), read_tensor(base, "bias"), None, False, module)


def _gamma(module: Any, offset: float) -> Tensor | None:
    gamma = read_tensor(module, "weight")
    if gamma is None or not offset:
        return gamma
    # Models form 1 + γ in float32; in half precision γ's last digits would be lost.
    return gamma.to(torch.promote_types(gamma.dtype, torch.float32)) + offset


def _eps(module: Any) -> float:
    return module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps


def sublayers(parts: Iterable[tuple[Norm, Step]], *, norm_first: bool) -> list[Step]:
    """Steps of a block: each part with its norm, before the part or behind its residual."""
    steps: list[Step] = []
    for norm, part in parts:
        if norm_first:
            steps += [Branch(), norm, part, Residual()]
        else:
            steps += [Branch(), part, Residual(), norm]
    return steps


def projected_attention(module: Any, source: str | None = None) -> Attention:
    """An attention whose projections are called `v_proj` and `out_proj`, as BART named them."""
    return Attention(
        value=linear(module.v_proj),
        output=linear(module.out_proj),
        heads=module.num_heads,
        groups=module.num_heads,
        weights=module,
        module=module.out_proj,
        source=source,
    )
