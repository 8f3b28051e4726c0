"""The components of a Transformer layer: the vocabulary that the rest of the package shares.

Axis words, the same everywhere:

    batch b · layer · head h · target i (output, row) · source j (input, column)
    d_model d · d_head · d_ff m

Vectors are rows, as in the papers: ``y = x W + b`` with ``W`` of shape (in, out).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from normlens.late import formed
from normlens.matmul import splits, times
from normlens.reach import Reach
from normlens.scopes import WEIGHT_SCOPES

__all__ = [
    "Attention",
    "Branch",
    "FeedForward",
    "Layer",
    "Linear",
    "Norm",
    "ParallelFeedForward",
    "Reach",
    "Residual",
    "Step",
    "cast",
]

C = TypeVar("C")


def cast(component: C, dtype: torch.dtype, split: bool = False) -> C:
    """The same component with its tensors converted to `dtype`, those formed that are late.

    With `split`, matrices stay as they are where products with them are split (`normlens.matmul`).
    """
    if isinstance(component, Linear) and component.is_scaled:
        return component.folded(dtype)  # type: ignore[return-value]
    changes: dict[str, Any] = {}
    for field in fields(component):  # type: ignore[arg-type]
        value = getattr(component, field.name)
        if isinstance(value, Tensor):
            value = formed(value)
            stays = split and value.dim() == 2 and splits(value)
            changes[field.name] = value.detach() if stays else value.detach().to(dtype)
        elif isinstance(value, (Linear, Norm, FeedForward)):
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
        if self.weight.dtype != x.dtype:
            return times(x, self.weight) + self.bias
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


@dataclass(frozen=True, eq=False)
class Branch:
    """The point whose parts the next residual connection adds back."""

    symbol = ""


@dataclass(frozen=True, eq=False)
class Residual:
    """``y ↦ y + (y at the last branch)``."""

    symbol = "RES"


@dataclass(frozen=True, eq=False)
class Norm:
    """LayerNorm (``centred``) or RMSNorm, ``(y − mean) / σ ⊙ γ + β``."""

    gamma: Tensor | None  # (d,)
    beta: Tensor | None  # (d,)
    eps: float
    centred: bool
    module: nn.Module | None = None  # where the model computes it

    symbol = "LN"


@dataclass(frozen=True, eq=False)
class Attention:
    """Multi-head attention; head h reads the value group ``h // (heads // groups)``."""

    value: Linear  # (d, groups · d_head)
    output: Linear  # (heads · d_head, d)
    heads: int
    groups: int
    weights: nn.Module | None = None  # returns α, alone or beside other outputs
    module: nn.Module | None = None  # returns the attention's output vector
    source: str | None = None  # another sequence that it reads; None: the layer's tokens
    weights_at: int = 1  # the place of α among several outputs of `weights`

    @property
    def symbol(self) -> str:
        return "ATTN" if self.source is None else "CROSS"


@dataclass(frozen=True, eq=False)
class FeedForward:
    """``g(y W_up) W_down``, or gated ``(g(y W_gate) ⊙ y W_up) W_down``."""

    up: Linear  # (d, m)
    down: Linear  # (m, d)
    activation: str
    gate: Linear | None = None  # (d, m)
    module: nn.Module | None = None  # returns the block's output vector

    symbol = "FF"


@dataclass(frozen=True, eq=False)
class ParallelFeedForward:
    """A feed-forward block beside the attention: it reads the layer's input token by token."""

    feed_forward: FeedForward
    norm: Norm | None = None

    symbol = "FF"

    @property
    def module(self) -> nn.Module | None:
        return self.feed_forward.module


Step = Branch | Residual | Norm | Attention | FeedForward | ParallelFeedForward


class Layer:
    """One layer: its steps in the order in which the model runs them."""

    def __init__(self, steps: Sequence[Step], reach: Reach = Reach()):
        self.steps = tuple(steps)
        self.reach = reach
        kinds = [type(step) for step in self.steps]
        if Attention not in kinds or kinds.count(FeedForward) > 1:
            raise ValueError("a layer has an Attention and at most one FeedForward step")
        last_attention = len(kinds) - 1 - kinds[::-1].index(Attention)
        if FeedForward in kinds and kinds.index(FeedForward) < last_attention:
            raise ValueError("a feed-forward block before an attention is not supported")
        self_attentions = [step for step in self.attentions if step.source is None]
        if len(self_attentions) > 1:
            raise ValueError("a layer has one Attention over its own tokens")
        if kinds.count(Branch) != kinds.count(Residual):
            raise ValueError("a layer needs one Branch for each Residual")

    def to(self, dtype: torch.dtype, split: bool = False) -> Layer:
        """The same layer with all weights in `dtype` (the same tensors where they are already).

        With `split`, matrices stay as they are where products with them are split.
        """
        return Layer([cast(step, dtype, split) for step in self.steps], self.reach)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Every attention, in order."""
        return tuple(step for step in self.steps if isinstance(step, Attention))

    @property
    def attention(self) -> Attention:
        """The first attention."""
        return self.attentions[0]

    @property
    def feed_forward(self) -> FeedForward | None:
        return next((step for step in self.steps if isinstance(step, FeedForward)), None)

    @property
    def norm_behind_feed_forward(self) -> Norm | None:
        """The first norm behind the feed-forward block, if there is one."""
        block = self.feed_forward
        behind = () if block is None else self.steps[self.steps.index(block) :]
        return next((step for step in behind if isinstance(step, Norm)), None)

    @property
    def linear_maps(self) -> list[Linear]:
        """Every linear map of the layer, in the order of its steps."""
        maps: list[Linear | None] = []
        for step in self.steps:
            if isinstance(step, Attention):
                maps += [step.value, step.output]
            elif isinstance(step, (FeedForward, ParallelFeedForward)):
                block = step if isinstance(step, FeedForward) else step.feed_forward
                maps += [block.gate, block.up, block.down]
        return [linear for linear in maps if linear is not None]

    @cached_property
    def scope_of_step(self) -> dict[int, str]:
        """The scope that ends with each step: the concatenated components from ATTN on."""
        names: dict[int, str] = {}
        prefix = ""
        for index, step in enumerate(self.steps):
            if isinstance(step, Branch) or (not prefix and not isinstance(step, Attention)):
                continue
            prefix += step.symbol
            names[index] = f"{prefix}-N"
        return names

    @cached_property
    def step_names(self) -> dict[int, str]:
        """A short name for each component: as scopes call it, or bracketed before the attention."""
        names: dict[int, str] = {}
        symbols = [self.steps[index].symbol for index in self.scope_of_step]
        seen: list[str] = []
        for index, step in enumerate(self.steps):
            if isinstance(step, Branch):
                continue
            if index not in self.scope_of_step:
                names[index] = f"({step.symbol})"
                continue
            seen.append(step.symbol)
            several = symbols.count(step.symbol) > 1
            names[index] = step.symbol + (str(seen.count(step.symbol)) if several else "")
        return names

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes of this layer: those of weights alone, then one per prefix."""
        cross = any(attention.source is not None for attention in self.attentions)
        weights = WEIGHT_SCOPES if cross else WEIGHT_SCOPES[:2]
        return (*weights, *self.scope_of_step.values())

    @property
    def component_sequence(self) -> str:
        """The components in order, as text; a norm before the attention is in brackets."""
        words: list[str] = []
        for step in self.steps:
            if isinstance(step, Branch):
                continue
            before_attention = isinstance(step, Norm) and "ATTN" not in words
            if isinstance(step, ParallelFeedForward):
                words.append("∥ FF" if step.norm is None else "∥ (LN) FF")
            else:
                words.append(f"({step.symbol})" if before_attention else step.symbol)
        return " ".join(words)
