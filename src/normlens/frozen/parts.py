"""Parts of a layer's vectors in factored form, and what every frozen step does with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from normlens.errors import InputError
from normlens.gpu.matmul import by_head
from normlens.gpu.transfer import on_device
from normlens.layers import Reach
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
        weights = self.weights.reshape(b * n, n_targets, h)
        values = self.values.reshape(b * n, h, -1)
        squares = weights.new_empty(b * n, n_targets)
        step = gram_sources(h, n_targets, values.shape[-1], device)
        for start in range(0, b * n, step):
            rows = slice(start, start + step)
            u, a = (part[rows].to(gram_dtype(device)) for part in (values, weights))
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
        total = self.own if self.bias is None else self.own + self.bias
        return total if self.mixed is None else total + self.mixed

    def __add__(self, saved: Parts) -> Parts:
        """Sum, part by part, with parts that bypassed these."""
        groups = sorted((*saved.groups, *self.groups), key=lambda group: group.source is None)
        if len({group.source for group in groups}) < len(groups):
            raise ValueError(
                "a residual before the feed-forward block must branch where its sources are not "
                "mixed yet"
            )
        return Parts(
            self.own + saved.own,
            plus(self.bias, saved.bias),
            plus(self.mixed, saved.mixed),
            tuple(groups),
        )


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
    y = real.to(total.dtype)
    error = torch.linalg.vector_norm(total - y, dim=-1)
    size = torch.linalg.vector_norm(y, dim=-1).clamp_min(torch.finfo(y.dtype).tiny)
    relative = error / size
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
# all of these (`pass_on`), and once for the way back (`backward`).


T = TypeVar("T")


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
        return plus(self.linear(y), self.bias_part)

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
