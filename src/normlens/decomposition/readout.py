"""A frozen readout: the steps behind the last layer, from vectors to what a score is read from.

Norms keep their rule; a dense map is itself; an activation has the slope of the rule, as in a
feed-forward block:

    DENSE  v ← v W                 g ← W g            b
    ACT    v ← v ⊙ r               g ← g ⊙ r          g(z) − z ⊙ r
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normlens.components import Norm
from normlens.decomposition.activations import activation
from normlens.decomposition.norm import FrozenNorm
from normlens.decomposition.rules import PLAIN_RULES
from normlens.decomposition.scored import inner
from normlens.heads import Dense, Elementwise, HeadStep


@dataclass(frozen=True)
class FrozenDense:
    """A dense map."""

    dense: Dense

    def linear(self, v: Tensor) -> Tensor:
        """``v W``."""
        return v @ self.dense.linear.weight

    def adjoint(self, g: Tensor) -> Tensor:
        """``W g``."""
        return g @ self.dense.linear.weight.T

    @property
    def unowned(self) -> Tensor | None:
        """b."""
        return self.dense.linear.bias


@dataclass(frozen=True)
class FrozenElementwise:
    """An activation with the slopes that it has at its real input."""

    slope: Tensor  # r (…, d)
    unowned: Tensor  # g(z) − z ⊙ r (…, d)

    @classmethod
    def at(cls, step: Elementwise, z: Tensor, bias: Tensor, rule: str) -> FrozenElementwise:
        """The activation at z (…, d), of which no token owns `bias`."""
        neurons = PLAIN_RULES[rule](activation(step.activation), z, lambda: bias)
        (slope,) = neurons.slopes
        return cls(slope, neurons.hidden - z * slope)

    def linear(self, v: Tensor) -> Tensor:
        """``v ⊙ r``."""
        return v * self.slope

    def adjoint(self, g: Tensor) -> Tensor:
        """``g ⊙ r``."""
        return g * self.slope


FrozenHeadStep = FrozenNorm | FrozenDense | FrozenElementwise


@dataclass(frozen=True)
class FrozenReadout:
    """Steps in order, frozen at the vectors that passed them."""

    steps: tuple[FrozenHeadStep, ...]
    output: Tensor  # (…, d) behind the last step
    bias: Tensor  # (…, d), the part of the output that no token owns if all of the input is owned

    @classmethod
    def at(
        cls, steps: Sequence[HeadStep], y: Tensor, rule: str, bias: Tensor | None = None
    ) -> FrozenReadout:
        """The steps at their real input `y` (…, d), of which no token owns `bias`."""
        frozen: list[FrozenHeadStep] = []
        unowned = torch.zeros_like(y) if bias is None else bias
        for step in steps:
            place: FrozenHeadStep
            if isinstance(step, Norm):
                place = FrozenNorm.at(step, y)
            elif isinstance(step, Dense):
                place = FrozenDense(step)
            else:
                place = FrozenElementwise.at(step, y, unowned, rule)
            frozen.append(place)
            y, unowned = place.linear(y), place.linear(unowned)
            if place.unowned is not None:
                y, unowned = y + place.unowned, unowned + place.unowned
        return cls(tuple(frozen), y, unowned)

    def linear(self, v: Tensor) -> Tensor:
        """What the steps make of vectors (…, d), without any bias."""
        for step in self.steps:
            v = step.linear(v)
        return v

    def score(self, g: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """The gradient at the input of g (…, d) at the output, and what no token owns by step."""
        unowned: list[Tensor | None] = []
        for step in reversed(self.steps):
            unowned.append(inner(g, step.unowned))
            g = step.adjoint(g)
        return g, unowned[::-1]
