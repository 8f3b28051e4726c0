"""PROJ: a linear map that every part passes.

F ← F W,    b ← b W + b_P
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from normlens.components import Projection
from normlens.decomposition.parts import Bias, Parts
from normlens.decomposition.scored import Scored, inner
from normlens.matmul import times


@dataclass(frozen=True)
class FrozenProjection:
    """A projection; nothing about it depends on the input."""

    projection: Projection

    def linear(self, v: Tensor) -> Tensor:
        """``v W`` of vectors (…, i, d)."""
        return times(v, self.projection.linear.weight)

    def adjoint(self, g: Tensor) -> Tensor:
        """``W g``."""
        return times(g, self.projection.linear.weight.T)

    def score(self, g: Tensor) -> Scored:
        """A projection hands the score on to its input, but for its bias."""
        return Scored(self.adjoint(g), unowned=inner(g, self.unowned))

    @property
    def unowned(self) -> Tensor | None:
        """b_P."""
        return self.projection.linear.bias

    def from_token(self, first: int) -> FrozenProjection:
        """The same for the tokens from `first` on."""
        return self

    def apply(self, y: Tensor) -> Tensor:
        """The complete map of the real vectors, b_P included."""
        return self.projection.linear(y)

    def on_parts(self, parts: Parts) -> Parts:
        """Every part passes alone; b_P belongs to the token until tokens are mixed."""
        if parts.mixed is None:
            own = self.apply(parts.own)
            return Parts(own, Bias.none(own))
        ones = parts.own.new_ones(parts.own.shape[:-1])
        groups = tuple(group.scaled(self.linear, ones) for group in parts.groups)
        bias = self.on_bias(parts.bias)
        return Parts(self.linear(parts.own), bias, self.linear(parts.mixed), groups)

    def on_bias(self, bias: Bias) -> Bias:
        """The bias behind the map once tokens are mixed: treated as any part, plus b_P."""
        ones = bias.coefficients.new_ones(bias.coefficients.shape[:-1])
        return bias.scaled(self.linear, ones).plus(self.unowned)
