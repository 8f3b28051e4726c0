"""LN: LayerNorm and RMSNorm with the deviation of the real vector.

F ← (F − mean F) / σ_i ⊙ γ,    b ← (b − mean b) / σ_i ⊙ γ + β        (RMSNorm: without the mean)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from normlens.components import Norm
from normlens.decomposition.devices import takes_one_pass
from normlens.decomposition.parts import Bias, Parts
from normlens.decomposition.scored import Scored, inner


@dataclass(frozen=True)
class FrozenNorm:
    """A norm at the vectors that the model normalised."""

    norm: Norm
    inverse_deviation: Tensor  # 1/σ_i (b, i)

    @classmethod
    def at(cls, norm: Norm, y: Tensor) -> FrozenNorm:
        """The norm with ``σ_i``: the deviation of `y` (b, i, d), or its root mean square.

        Without an ε, σ is 1.
        """
        if norm.eps is None:
            return cls(norm, y.new_ones(y.shape[:-1]))
        square = y.var(-1, correction=0) if norm.centred else y.square().mean(-1)
        return cls(norm, (square + norm.eps).rsqrt())

    def linear(self, v: Tensor) -> Tensor:
        """``(v − mean v)/σ_i ⊙ γ`` of vectors (…, i, d)."""
        return self._normalised(v)

    def adjoint(self, g: Tensor) -> Tensor:
        """``(γ⊙g − mean(γ⊙g))/σ_i``."""
        return self.stretch_adjoint(g) * self.inverse_deviation[..., None]

    def score(self, g: Tensor) -> Scored:
        """A norm hands the score on to its input, but for β."""
        return Scored(self.adjoint(g), unowned=inner(g, self.norm.beta))

    @property
    def unowned(self) -> Tensor | None:
        """β."""
        return self.norm.beta

    def from_token(self, first: int) -> FrozenNorm:
        """The same for the tokens from `first` on."""
        return FrozenNorm(self.norm, self.inverse_deviation[:, first:])

    def apply(self, y: Tensor) -> Tensor:
        """The complete norm of the real vectors, β included."""
        return self._normalised(y, self.norm.beta)

    def _normalised(self, v: Tensor, beta: Tensor | None = None) -> Tensor:
        # The kernel has a row of v for each σ; PyTorch would also repeat one for several.
        if v.shape[-3:-1] == self.inverse_deviation.shape and takes_one_pass(v):
            from normlens.decomposition.fused.rows import normalised  # Triton is slow to import

            return normalised(v, self.norm, self.inverse_deviation, beta)
        v = self.stretch(v) * self.inverse_deviation[..., None]
        return v if beta is None else v + beta

    def on_parts(self, parts: Parts) -> Parts:
        """Every part is centred by its own mean; β belongs to the token until tokens are mixed."""
        if parts.mixed is None:
            return Parts(self.apply(parts.own), parts.bias)
        groups = tuple(group.scaled(self.stretch, self.inverse_deviation) for group in parts.groups)
        bias = self.on_bias(parts.bias)
        return Parts(self.linear(parts.own), bias, self.linear(parts.mixed), groups)

    def on_bias(self, bias: Bias) -> Bias:
        """The bias behind the norm once tokens are mixed: treated as any part, plus β."""
        rows = replace(bias, rest=None).scaled(self.stretch, self.inverse_deviation)
        rest = None if bias.rest is None else self.linear(bias.rest)
        return replace(rows, rest=rest).plus(self.norm.beta)

    def stretch(self, v: Tensor) -> Tensor:
        """The norm without the division: centre (if it centres), times γ."""
        return stretch(v, self.norm)

    def stretch_(self, v: Tensor) -> None:
        """`stretch` in place."""
        if self.norm.centred:
            v.sub_(v.mean(-1, keepdim=True))
        if self.norm.gamma is not None:
            v.mul_(self.norm.gamma)

    def stretch_adjoint(self, g: Tensor) -> Tensor:
        """The transpose of `stretch`: times γ, then centred."""
        g = g if self.norm.gamma is None else g * self.norm.gamma
        return g - g.mean(-1, keepdim=True) if self.norm.centred else g


def stretch(v: Tensor, norm: Norm) -> Tensor:
    """A norm without the division, which depends on weights alone: centre, times γ."""
    if norm.centred:
        v = v - v.mean(-1, keepdim=True)
    return v if norm.gamma is None else v * norm.gamma
