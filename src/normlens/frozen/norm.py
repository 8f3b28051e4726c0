"""LN, RES and PROJ: the steps of a layer that act on each token alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from normlens.frozen.parts import Bias, Parts
from normlens.frozen.step import FrozenStep, Scored, State, T, inner
from normlens.gpu.matmul import times
from normlens.layers import Branch, Norm, Projection
from normlens.plan.memory import takes_one_pass

# LN: LayerNorm and RMSNorm with the deviation of the real vector.
#
# F ← (F − mean F) / σ_i ⊙ γ,    b ← (b − mean b) / σ_i ⊙ γ + β        (RMSNorm: without the mean)


@dataclass(frozen=True)
class FrozenNorm(FrozenStep):
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
            from normlens.gpu.operands import normalised  # Triton is slow to import

            return normalised(v, self.norm, self.inverse_deviation, beta)
        v = self.stretch(v) * self.inverse_deviation[..., None]
        return v if beta is None else v + beta

    def on_parts(self, parts: Parts) -> Parts:
        """Every part is centred by its own mean; β belongs to the token until tokens are mixed."""
        if parts.mixed is None:
            return Parts(self.apply(parts.own), parts.bias)
        groups = tuple(group.scaled(self.stretch, self.inverse_deviation) for group in parts.groups)
        bias = self.on_bias(parts.bias)
        assert bias is not None
        return Parts(self.linear(parts.own), bias, self.linear(parts.mixed), groups)

    def on_bias(self, bias: Bias | None) -> Bias | None:
        """It is treated as any part, and β added, which tokens own until they are mixed."""
        if bias is None:
            return None
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


# PROJ: a linear map that every part passes.
#
# F ← F W,    b ← b W + b_P


@dataclass(frozen=True)
class FrozenProjection(FrozenStep):
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
        assert bias is not None
        return Parts(self.linear(parts.own), bias, self.linear(parts.mixed), groups)

    def on_bias(self, bias: Bias | None) -> Bias | None:
        """It is treated as any part, and b_P added, which tokens own until they are mixed."""
        if bias is None:
            return None
        ones = bias.coefficients.new_ones(bias.coefficients.shape[:-1])
        return bias.scaled(self.linear, ones).plus(self.unowned)


# RES: add, part by part, what was saved at the branching point.
#
# F ← F + F_saved,    b ← b + b_saved


@dataclass(frozen=True)
class FrozenBranch(FrozenStep):
    """A branching point, where vectors are saved for a residual connection.

    They are saved behind the steps in `through`; most branches have none, and save what arrives.
    """

    through: tuple[FrozenNorm | FrozenProjection, ...] = ()

    @classmethod
    def at(cls, branch: Branch, y: Tensor) -> FrozenBranch:
        """The branch at the vectors `y` (b, i, d)."""
        steps: list[FrozenNorm | FrozenProjection] = []
        for step in branch.through:
            place = FrozenNorm.at(step, y) if isinstance(step, Norm) else FrozenProjection(step)
            steps.append(place)
            y = place.apply(y)
        return cls(tuple(steps))

    def linear(self, v: Tensor) -> Tensor:
        """What is saved of vectors (…, i, d), without any bias."""
        for step in self.through:
            v = step.linear(v)
        return v

    def adjoint(self, g: Tensor) -> Tensor:
        """The gradient before the branch of g (…, i, d) at what is saved."""
        return self.score(g).arriving

    def score(self, g: Tensor) -> Scored:
        """What is saved hands the score on to the branch, but for biases."""
        unowned: Tensor | None = None
        for step in reversed(self.through):
            scored = step.score(g)
            g = scored.arriving
            if scored.unowned is not None:
                unowned = scored.unowned if unowned is None else unowned + scored.unowned
        return Scored(g, unowned=unowned)

    def apply(self, y: Tensor) -> Tensor:
        """What is saved of the real vectors, biases included."""
        for step in self.through:
            y = step.apply(y)
        return y

    def from_token(self, first: int) -> FrozenBranch:
        """The same for the tokens from `first` on."""
        return FrozenBranch(tuple(step.from_token(first) for step in self.through))

    def on_parts(self, parts: Parts) -> Parts:
        """The parts that are saved."""
        for step in self.through:
            parts = step.on_parts(parts)
        return parts

    def on_bias(self, bias: Bias | None) -> Bias | None:
        """The bias that is saved; steps in `through` stand only where there is none yet."""
        return bias

    def pass_on(self, state: State[T], act: Callable[[T], T]) -> None:
        """Save what arrives; the stream goes on as it is."""
        state.saved.append(act(state.stream))

    def forward(self, state: State[Tensor], biases: bool = False) -> None:
        """Save vectors (…, b, i, d)."""
        self.pass_on(state, self.apply if biases else self.linear)

    def backward(self, state: State[Tensor], act: Callable[[Tensor], Scored]) -> Scored:
        """Add what its residual left; there is none if the way back began before that."""
        if not state.saved:
            return Scored(state.stream)
        scored = act(state.saved.pop())
        state.add(scored.arriving)
        return scored


@dataclass(frozen=True)
class FrozenResidual(FrozenStep):
    """A residual connection; nothing about it depends on the input."""

    def from_token(self, first: int) -> FrozenResidual:
        """The same for the tokens from `first` on."""
        return self

    def pass_on(self, state: State[T], act: Callable[[T], T]) -> None:
        """Add what was saved last."""
        state.add(state.saved.pop())

    def backward(self, state: State[Tensor], act: Callable[[Tensor], Scored]) -> Scored:
        """The gradient goes on, and to the branch."""
        state.saved.append(state.stream)
        return Scored(state.stream)
