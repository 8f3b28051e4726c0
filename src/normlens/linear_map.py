"""A linear map of a model, and where the model computes it.

Vectors are rows, as in the papers: ``y = x W + b`` with ``W`` of shape (in, out).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from normlens.late import formed
from normlens.matmul import splits, times, times_plus

C = TypeVar("C")


def cast(component: C, dtype: torch.dtype, split: bool = False) -> C:
    """The same component with its tensors converted to `dtype`, those formed that are late.

    With `split`, matrices stay as they are where products with them are split (`normlens.matmul`).
    A component with a method `to` converts itself.
    """
    if isinstance(component, Linear) and component.is_scaled:
        return component.folded(dtype)  # type: ignore[return-value]
    if hasattr(component, "to"):
        return component.to(dtype, split)
    changes: dict[str, Any] = {}
    for field in fields(component):  # type: ignore[arg-type]
        value = getattr(component, field.name)
        if isinstance(value, Tensor):
            value = formed(value)
            stays = split and value.dim() == 2 and splits(value)
            changes[field.name] = value.detach() if stays else value.detach().to(dtype)
        elif is_dataclass(value):
            changes[field.name] = cast(value, dtype, split)
    return replace(component, **changes)  # type: ignore[type-var]


def _whole(output: Tensor) -> Tensor:
    return output


@dataclass(frozen=True, eq=False)
class Linear:
    """``x ↦ x W + b``."""

    weight: Tensor  # (in, out)
    bias: Tensor | None = None  # (out,)
    module: nn.Module | None = None  # where the model computes it
    part: Callable[[Tensor], Tensor] = _whole  # selects this map's share of the module's output
    bias_outside: bool = False  # the model adds the bias to what the module returns
    scale: float | Tensor = 1.0  # what the model multiplies x W + b by; a number or (out,)

    @property
    def is_scaled(self) -> bool:
        return isinstance(self.scale, Tensor) or self.scale != 1.0

    def folded(self, dtype: torch.dtype) -> Linear:
        """The same map in `dtype` with its scale inside the weight and the bias.

        Only here is a copy made, and of one layer at a time; in half precision the products of the
        model's own weights would be rounded.
        """
        scale = self.scale.detach().to(dtype) if isinstance(self.scale, Tensor) else self.scale
        weight = self.weight.detach().to(dtype) * scale
        bias = None if self.bias is None else self.bias.detach().to(dtype) * scale
        whole = replace(self, scale=1.0)
        return replace(whole, weight=weight, bias=bias, part=lambda y: whole.part(y) * scale)

    def __call__(self, x: Tensor) -> Tensor:
        if self.is_scaled:
            return replace(self, scale=1.0)(x) * self.scale
        if self.bias is None:
            return times(x, self.weight)
        return times_plus(x, self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class Projection:
    """``y ↦ y W + b`` on the way of all parts: into a narrower bottleneck, or out of it."""

    linear: Linear

    symbol = "PROJ"

    @property
    def module(self) -> nn.Module | None:
        return self.linear.module
