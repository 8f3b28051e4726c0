"""LN, RES and PROJ: the steps of a layer that act on each token alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor

from normlens.frozen.parts import Factors, FrozenStep, Parts, Scored, State, T, plus
from normlens.gpu.matmul import times
from normlens.gpu.sizes import takes_one_pass
from normlens.layers import Branch, Linear, Norm

C = TypeVar("C", bound="Chain")

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

    def linear(self, v: Tensor, beta: Tensor | None = None) -> Tensor:
        """``(v − mean v)/σ_i ⊙ γ`` of vectors (…, i, d), plus `beta`."""
        # The kernel has a row of v for each σ; PyTorch would also repeat one for several.
        if v.shape[-3:-1] == self.inverse_deviation.shape and takes_one_pass(v):
            from normlens.gpu.rows import normalised  # Triton is slow to import

            return normalised(v, self.norm, self.inverse_deviation, beta)
        v = stretch(v, self.norm) * self.inverse_deviation[..., None]
        return v if beta is None else v + beta

    def adjoint(self, g: Tensor) -> Tensor:
        """``(γ⊙g − mean(γ⊙g))/σ_i``."""
        g = g if self.norm.gamma is None else g * self.norm.gamma
        g = g - g.mean(-1, keepdim=True) if self.norm.centred else g
        return g * self.inverse_deviation[..., None]

    @property
    def bias_part(self) -> Tensor | None:
        """β."""
        return self.norm.beta

    def apply(self, y: Tensor) -> Tensor:
        """The complete norm, β included."""
        return self.linear(y, self.norm.beta)

    def from_token(self, first: int) -> FrozenNorm:
        """The same for the tokens from `first` on."""
        return FrozenNorm(self.norm, self.inverse_deviation[:, first:])

    def on_factors(self, factors: Factors) -> Factors:
        """``B ← stretch(B)``, and ``s_i ← s_i/σ_i``."""
        scale = factors.scale * self.inverse_deviation
        return replace(factors, scale=scale, basis=stretch(factors.basis, self.norm))

    def on_tile(self, tile: Tensor, index: int, targets: slice, sources: slice) -> Tensor:
        """Stretch the parts of a tile (j, i, d) in place; the factors 1/σ_i (i,) are to come."""
        if self.norm.centred:
            tile.sub_(tile.mean(-1, keepdim=True))
        if self.norm.gamma is not None:
            tile.mul_(self.norm.gamma)
        return self.inverse_deviation[index, targets]


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

    projection: Linear

    def linear(self, v: Tensor) -> Tensor:
        """``v W`` of vectors (…, d)."""
        weight = self.projection.weight
        return times(v, weight) if v.dim() > 1 else times(v[None], weight)[0]

    def adjoint(self, g: Tensor) -> Tensor:
        """``W g``."""
        return times(g, self.projection.weight.T)

    @property
    def bias_part(self) -> Tensor | None:
        """b_P."""
        return self.projection.bias


@dataclass(frozen=True)
class Chain(FrozenStep):
    """Steps one after the other, as one."""

    steps: tuple[FrozenStep, ...] = ()

    def linear(self, v: Tensor) -> Tensor:
        """All of them on vectors (…, i, d)."""
        for step in self.steps:
            v = step.linear(v)
        return v

    def adjoint(self, g: Tensor) -> Tensor:
        """All of them on a gradient, from the last to the first."""
        for step in reversed(self.steps):
            g = step.adjoint(g)
        return g

    @property
    def bias_part(self) -> Tensor | None:
        """What the biases of all of them come to."""
        return self.affine(None)

    def affine(self, v: Tensor | None) -> Tensor | None:
        """All of them with their biases."""
        for step in self.steps:
            v = step.affine(v)
        return v

    def score(self, g: Tensor) -> Scored:
        """What the last one owes to its input, but for the biases of the others."""
        passed: Tensor | None = None
        bias_part: Tensor | None = None
        for step in reversed(self.steps):
            scored = step.score(g)
            g, bias_part = scored.arriving, plus(bias_part, scored.bias_part)
            if passed is None:
                passed = scored.passed
            elif scored.bias_part is not None:
                passed = passed - scored.bias_part
        return Scored(g, passed, bias_part)

    def on_parts(self, parts: Parts) -> Parts:
        """All of them on parts."""
        for step in self.steps:
            parts = step.on_parts(parts)
        return parts

    def from_token(self: C, first: int) -> C:
        """The same for the tokens from `first` on."""
        return replace(self, steps=tuple(step.from_token(first) for step in self.steps))


# RES: add, part by part, what was saved at the branching point.
#
# F ← F + F_saved,    b ← b + b_saved


@dataclass(frozen=True)
class FrozenBranch(Chain):
    """A branching point, where vectors are saved for a residual connection.

    They are saved behind the steps of a chain; most branches have none, and save what arrives.
    """

    @classmethod
    def at(cls, branch: Branch, y: Tensor) -> FrozenBranch:
        """The branch at the vectors `y` (b, i, d)."""
        steps: list[FrozenStep] = []
        for step in branch.through:
            frozen: FrozenStep
            if isinstance(step, Norm):
                frozen = FrozenNorm.at(step, y)
            else:
                frozen = FrozenProjection(step.linear)
            steps.append(frozen)
            y = frozen.apply(y)
        return cls(tuple(steps))

    def pass_on(self, state: State[T], act: Callable[[T], T]) -> None:
        """Save what arrives; the stream goes on as it is."""
        state.saved.append(act(state.stream) if self.steps else state.stream)

    def backward(self, state: State[Tensor]) -> Scored:
        """Add what its residual left; there is none if the way back began before that."""
        if not state.saved:
            return Scored(state.stream)
        scored = self.score(state.saved.pop())
        state.stream = state.stream + scored.arriving
        return scored


@dataclass(frozen=True)
class FrozenResidual(FrozenStep):
    """A residual connection; nothing about it depends on the input."""

    def pass_on(self, state: State[T], act: Callable[[T], T]) -> None:
        """Add what was saved last."""
        state.stream = plus(state.stream, state.saved.pop())

    def backward(self, state: State[Tensor]) -> Scored:
        """The gradient goes on, and to the branch."""
        state.saved.append(state.stream)
        return Scored(state.stream)
