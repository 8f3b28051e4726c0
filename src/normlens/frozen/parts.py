"""Parts of a layer's vectors in factored form, and the frozen steps that they pass.

What every step says of itself stands here, and the steps that act on each token alone: LN, RES and
PROJ. Attention and feed-forward blocks have modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from normlens.errors import InputError
from normlens.gpu.matmul import by_head, times
from normlens.gpu.sizes import WIDEST, kernels_run_on
from normlens.gpu.transfer import on_device
from normlens.layers import Branch, Dense, Linear, Norm, Projection, Reach
from normlens.options import NOT_LINEAR

# Norms of parts before the feed-forward block, by PyTorch: Gram matrices in float64.
#
# ``‖F_i(x_j)‖² = s_i² A_ijᵀ G_j A_ij`` with ``G_j = U_j U_jᵀ`` (H, H), some sources at a time.


CHUNK_ELEMENTS = 1 << 22
CHUNK_ELEMENTS_ON_GPU = 1 << 24  # fewer launches


def gram_sources(heads: int, targets: int, d: int, device: str) -> int:
    """How many sources are treated at a time, so that U (j, h, d) and A (j, i, h) fit a chunk."""
    chunk = CHUNK_ELEMENTS if device == "cpu" else CHUNK_ELEMENTS_ON_GPU
    return max(1, chunk // (heads * max(targets, d)))


def gram_dtype(device: str) -> torch.dtype:
    """The precision of the quadratic form: float64 where the device has it."""
    return torch.float32 if device == "mps" else torch.float64


def gram_memory(sources: int, heads: int, targets: int, d: int, device: str) -> int:
    """Bytes of one chunk: U; and A, A G and A G ⊙ A.

    `sources` counts those of the whole batch.
    """
    some = min(sources, gram_sources(heads, targets, d, device))
    return gram_dtype(device).itemsize * some * heads * (d + 3 * targets)


def gram_operations(sources: int, heads: int, targets: int, d: int) -> int:
    """Operations of G_j = U_j U_jᵀ, and of A_ij G_j for every target."""
    return 2 * sources * heads * heads * (d + targets)


# Parts of a layer's vectors, kept in factored form.
#
# Until the feed-forward block every part is a mixture of a few vectors of its source token:
#
#     F_i(x_j) = s_i Σ_h A_ijh U_jh        for j ≠ i,
#
# so the n×n parts are never formed. The token's own part F_i(x_i) is kept as a vector (`own`), and
# so is the bias b_i. The model's vector is the sum, ``y_i = Σ_{j≠i} F_i(x_j) + F_i(x_i) + b_i``.
# Each component's module says what it does to parts.


@dataclass(frozen=True, eq=False)
class Factors:
    """One group of sources: ``F_i(x_j) = s_i Σ_h A_ijh U_jh`` with ``U_jh = v_jh B_h``."""

    weights: Tensor  # A (b, j, i, h), zero where i = j
    scale: Tensor  # s (b, i)
    heads: Tensor  # v (b, j, h, d_head), each head's value vectors
    basis: Tensor  # B (h, d_head, d), W_O and every norm behind it
    reach: Reach  # which sources each target sees
    source: str | None = None  # name of another sequence; None: the layer's tokens
    lengths: tuple[int, ...] | None = None  # real sources of each sequence; None: the targets'

    @cached_property
    def values(self) -> Tensor:
        """U (b, j, h, d)."""
        return by_head(self.heads, self.basis)

    def values_of(self, first: int, last: int) -> Tensor:
        """U (j, h, d) of some sources of the batch, counted through all of its sequences."""
        return by_head(self.heads.flatten(0, 1)[first:last], self.basis)

    def sum_of_sources(self) -> Tensor:
        """``Σ_j F_i(x_j)`` of the group, (b, i, d), without its parts."""
        heads = torch.einsum("bjih,bjhe->bihe", self.weights, self.heads)
        return torch.einsum("bihe,hed->bid", heads, self.basis) * self.scale[..., None]

    def tile(self, index: int, targets: slice, sources: slice) -> tuple[Tensor, Tensor]:
        """``s_i A_ij`` (j, i, h) and U (j, h, d) of some pairs of a sequence."""
        weights = self.weights[index, sources, targets] * self.scale[index, targets, None]
        return weights, self.values[index, sources]

    def norms(self) -> Tensor:
        """``‖F_i(x_j)‖² = s_i² A_ijᵀ G_j A_ij`` with ``G_j = U_j U_jᵀ``; (b, i, j).

        In float64 where the device has it: the quadratic form cancels, and a part that is small
        beside its heads' contributions would otherwise lose half of its digits.
        """
        b, n, n_targets, h = self.weights.shape
        device = self.weights.device.type
        dtype = gram_dtype(device)
        weights = self.weights.reshape(b * n, n_targets, h)
        values = self.values.reshape(b * n, h, -1)
        squares = weights.new_empty(b * n, n_targets)
        step = gram_sources(h, n_targets, values.shape[-1], device)
        for start in range(0, b * n, step):
            rows = slice(start, start + step)
            u, a = values[rows].to(dtype), weights[rows].to(dtype)
            gram = u @ u.transpose(-1, -2)  # (bj, h, h)
            squares[rows] = ((a @ gram) * a).sum(-1).clamp_min_(0).sqrt_().to(squares.dtype)
        return squares.view(b, n, n_targets).transpose(1, 2) * self.scale[..., None]


@dataclass(frozen=True)
class Parts:
    """The parts of a layer's vectors (b, i, d) at one point inside it."""

    own: Tensor  # F_i(x_i), the part of the token itself
    bias: Tensor | None = None  # b_i, what no token owns, (b, i, d) or (d,); None: nothing
    #: Σ_{j≠i} F_i(x_j), the sum of the other sources' parts; None: no tokens are mixed yet
    mixed: Tensor | None = None
    #: the other sources' parts, as long as they are factored; the layer's own tokens are the last
    groups: tuple[Factors, ...] = ()

    @property
    def total(self) -> Tensor:
        """The real vectors."""
        return plus(plus(self.own, self.bias), self.mixed)

    def __add__(self, saved: Parts) -> Parts:
        """Sum, part by part, with parts that bypassed these."""
        groups = saved.groups + self.groups
        if saved.groups and self.groups:
            groups = tuple(sorted(groups, key=lambda group: group.source is None))
            if len({group.source for group in groups}) < len(groups):
                raise InputError(
                    "a residual connection before the feed-forward block would add mixed parts to "
                    "themselves; leave it, or the norm that it stands around, out of the scope"
                )
        bias, mixed = plus(self.bias, saved.bias), plus(self.mixed, saved.mixed)
        return Parts(self.own + saved.own, bias, mixed, groups)

    def factors_of(self, source: str | None) -> Factors | None:
        """The parts of one sequence's tokens; None where it has none off the diagonal."""
        for group in self.groups:
            if group.source == source:
                return group
        return None


def side_by_side(norms: list[Tensor], groups: Sequence[Factors]) -> Tensor:
    """Join the groups' maps along j, the layer's tokens last; 0 if they are no source."""
    if groups[-1].source is not None:
        b, n, _ = norms[0].shape
        norms = [*norms, norms[0].new_zeros(b, n, n)]
    return norms[0] if len(norms) == 1 else torch.cat(norms, dim=-1)


# The error of completeness: parts and bias against the vectors that the model computed.


def relative_error(total: Tensor, real: Tensor, lengths: Sequence[int]) -> Tensor:
    """The largest ``‖Σ_j F_i(x_j) + b_i − y_i‖ / ‖y_i‖`` over the real tokens of a batch (b, i, d).

    The number stays on the device: reading it here would hold up the layers that follow.
    """
    return largest_errors([relative_rows(total, real, lengths)])[0]


def relative_rows(total: Tensor, real: Tensor, lengths: Sequence[int]) -> Tensor:
    """The error of each target (b, i), 0 for padding."""
    error = torch.linalg.vector_norm(total - real, dim=-1)
    size = torch.linalg.vector_norm(real, dim=-1, dtype=total.dtype)
    relative = error / size.clamp_min(torch.finfo(total.dtype).tiny)
    if min(lengths) < total.shape[1]:
        ends = on_device(tuple(lengths), total.device)
        is_token = torch.arange(total.shape[1], device=total.device) < ends[:, None]
        relative = relative.masked_fill(~is_token, 0)
    return relative


def largest_errors(relative: Sequence[Tensor]) -> Sequence[Tensor]:
    """The largest of each scope's errors (b, i), all taken together."""
    if not relative:
        return ()
    worst = torch.stack(list(relative)).flatten(1).amax(1)
    # NaN must not pass as a small error.
    return worst.nan_to_num(nan=float("inf"), posinf=float("inf")).unbind()


# What a frozen step says of itself, and what it does with the state of a layer.
#
# A step is affine for one input. It says how it acts on vectors (`linear`), on gradients
# (`adjoint`) and scores (`score`), on parts (`on_parts`), on the model's own vectors (`apply`), and
# what it adds that no token owns (`bias_part`). Where it reads and where it writes is said once for
# all of these (`pass_on`), and once for the backward pass (`backward`).


T = TypeVar("T")
C = TypeVar("C", bound="Chain")


def plus(a: T, b: T | None) -> T:
    """The sum, where None is nothing."""
    first: Any = a
    return first if b is None else b if first is None else first + b


def inner(g: Tensor, vectors: Tensor | None) -> Tensor | None:
    """``g_i · v_i`` of vectors (…, b, i, d); None of none."""
    return None if vectors is None else (g * vectors).sum(-1)


@dataclass
class State(Generic[T]):
    """What passes a layer, at one point of it: vectors, gradients, parts or biases.

    They can be added; None is nothing.
    """

    stream: T
    saved: list[T] = field(default_factory=list)  # at branches, for the residuals to come
    start: T | None = None  # at the layer's input, which blocks beside the attention read
    others: dict[str, T] = field(default_factory=dict)  # of other sequences, by name


@dataclass(frozen=True)
class Scored:
    """One component's share of a score; `…` are scores side by side.

    A score s is linear in the vectors behind a component. With ``g_i = ∂s/∂y_i`` there, the
    component's output adds ``g_i · y_i``: what its input vectors own, and what no token owns.
    """

    arriving: Tensor  # ∂s/∂(the component's input) (…, b, j, d)
    passed: Tensor | None = None  # (…, b, i), what its output owes to its input
    bias_part: Tensor | None = None  # (…, b, i), what its output owes to biases
    heads: Tensor | None = None  # (…, b, h, i), what each head owes to the layer's input
    at_heads: Tensor | None = None  # ∂s/∂(what each head reads) (…, b, h, i, d_head)


class FrozenStep:
    """A step that reads the stream and replaces it; others override `pass_on` and `backward`."""

    def linear(self, v: Tensor) -> Tensor:
        """What the step makes of vectors (…, b, i, d), without any bias."""
        raise InputError(NOT_LINEAR)

    def adjoint(self, g: Tensor) -> Tensor:
        """The transpose of `linear`: the gradient at the input of g (…, b, i, d) at the output."""
        raise InputError(NOT_LINEAR)

    @property
    def bias_part(self) -> Tensor | None:
        """What the step adds that no token owns, (b, i, d) or (d,)."""
        return None

    def apply(self, y: Tensor) -> Tensor:
        """What the step makes of the model's own vectors (b, i, d), biases included."""
        made = self.affine(y)
        assert made is not None
        return made

    def affine(self, v: Tensor | None) -> Tensor | None:
        """What the step makes of vectors, and what it adds itself; None is nothing."""
        return self.bias_part if v is None else plus(self.linear(v), self.bias_part)

    def on_parts(self, parts: Parts) -> Parts:
        """What the step makes of parts: each passes alone; biases are the token's until the mixing.

        The others' parts stay factored.
        """
        if parts.mixed is None:
            return Parts(self.apply(parts.own))
        groups = tuple(map(self.on_factors, parts.groups))
        mixed = self.linear(parts.mixed)
        return Parts(self.linear(parts.own), self.affine(parts.bias), mixed, groups)

    def on_factors(self, factors: Factors) -> Factors:
        """Factored parts behind the step: their basis passes it."""
        return replace(factors, basis=self.linear(factors.basis))

    def score(self, g: Tensor) -> Scored:
        """The adjoint, and what the step adds to the score of g."""
        return Scored(self.adjoint(g), bias_part=inner(g, self.bias_part))

    def from_token(self, first: int) -> FrozenStep:
        """The linear face for the tokens from `first` on."""
        return self

    def pass_on(self, state: State[T], act: Callable[[T], T]) -> None:
        """Read from the state, and write what `act`, one of the above, makes of it."""
        state.stream = act(state.stream)

    def forward(self, state: State[Tensor], biases: bool = False) -> None:
        """Pass vectors (…, b, i, d) on; with `biases`, add what no token owns."""
        act: Any = self.affine if biases else self.linear
        self.pass_on(state, act)

    def backward(self, state: State[Tensor]) -> Scored:
        """Hand a score's gradient back from what the step wrote to what it read."""
        scored = self.score(state.stream)
        state.stream = scored.arriving
        return scored


class FrozenBlock(FrozenStep):
    """A step with an output of its own, by which ways through a layer are told apart."""

    @property
    def output(self) -> Tensor:
        """The real output (b, i, d)."""
        raise NotImplementedError

    def apply(self, y: Tensor) -> Tensor:
        """The real output: the block is frozen at its input."""
        return self.output


# LN: LayerNorm and RMSNorm with the deviation of the real vector.
#
# F ← (F − mean F) / σ_i ⊙ γ,    b ← (b − mean b) / σ_i ⊙ γ + β        (RMSNorm: without the mean)


def takes_one_pass(v: Tensor) -> bool:
    """Whether Triton takes a step over these vectors in one pass; it keeps track of no gradient."""
    if not v.is_cuda or v.shape[-1] > WIDEST or (v.requires_grad and torch.is_grad_enabled()):
        return False
    return torch.cuda.is_available() and kernels_run_on(v.device, v.dtype)


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
        return plus(stretch(v, self.norm) * self.inverse_deviation[..., None], beta)

    def adjoint(self, g: Tensor) -> Tensor:
        """``(γ⊙g − mean(γ⊙g))/σ_i``."""
        if g.shape[-3:-1] == self.inverse_deviation.shape and takes_one_pass(g):
            from normlens.gpu.rows import normalised  # Triton is slow to import

            return normalised(g, self.norm, self.inverse_deviation, adjoint=True)
        g = g if self.norm.gamma is None else g * self.norm.gamma
        g = g - g.mean(-1, keepdim=True) if self.norm.centred else g
        return g * self.inverse_deviation[..., None]

    @property
    def bias_part(self) -> Tensor | None:
        """β."""
        return self.norm.beta

    def affine(self, v: Tensor | None) -> Tensor | None:
        """The complete norm, β included."""
        return self.norm.beta if v is None else self.linear(v, self.norm.beta)

    def from_token(self, first: int) -> FrozenNorm:
        """The same for the tokens from `first` on."""
        return FrozenNorm(self.norm, self.inverse_deviation[:, first:])

    def on_factors(self, factors: Factors) -> Factors:
        """``B ← stretch(B)``, and ``s_i ← s_i/σ_i``."""
        scale = factors.scale * self.inverse_deviation
        return replace(factors, scale=scale, basis=stretch(factors.basis, self.norm))

    def stretch_tile(self, tile: Tensor, index: int, targets: slice) -> Tensor:
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


def frozen_at(step: Norm | Projection | Dense, y: Tensor) -> FrozenStep:
    """A norm, or a linear map, at its input `y` (…, d)."""
    return FrozenNorm.at(step, y) if isinstance(step, Norm) else FrozenProjection(step.linear)


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
            steps.append(frozen_at(step, y))
            y = steps[-1].apply(y)
        return cls(tuple(steps))

    def pass_on(self, state: State[T], act: Callable[[T], T]) -> None:
        """Save what arrives; the stream goes on as it is."""
        state.saved.append(act(state.stream) if self.steps else state.stream)

    def backward(self, state: State[Tensor]) -> Scored:
        """Add what its residual left; there is none if the backward pass began before that."""
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
