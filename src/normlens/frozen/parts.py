"""Parts of a layer's vectors in factored form, and their norms from Gram matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from normlens.gpu.matmul import by_head, times
from normlens.layers import Linear, Reach

# Norms of parts before the feed-forward block, by PyTorch: Gram matrices in float64.
#
# ``‖F_i(x_j)‖² = s_i² A_ijᵀ G_j A_ij`` with ``G_j = U_j U_jᵀ`` (H, H), some sources at a time.


CHUNK_ELEMENTS = 1 << 22
CHUNK_ELEMENTS_ON_GPU = 1 << 24  # fewer launches


def gram_sources(heads: int, targets: int, d: int, device: str) -> int:
    """How many sources are treated at a time, so that U (j, h, d) and A (j, i, h) fit a chunk."""
    chunk = CHUNK_ELEMENTS if device == "cpu" else CHUNK_ELEMENTS_ON_GPU
    return max(1, chunk // (heads * max(targets, d)))


def exact_itemsize(device: str) -> int:
    """Bytes per number of the quadratic form: float64 where the device has it."""
    return 4 if device == "mps" else 8


def gram_memory(sources: int, heads: int, targets: int, d: int, device: str) -> int:
    """Bytes of one chunk: U; and A, A G and A G ⊙ A.

    `sources` counts those of the whole batch.
    """
    some = min(sources, gram_sources(heads, targets, d, device))
    return exact_itemsize(device) * some * heads * (d + 3 * targets)


def gram_operations(sources: int, heads: int, targets: int, d: int) -> int:
    """Operations of G_j = U_j U_jᵀ, and of A_ij G_j for every target."""
    return 2 * sources * heads * heads * (d + targets)


# Parts of a layer's vectors, kept in factored form.
#
# Until the feed-forward block every part is a mixture of a few vectors of its source token:
#
#     F_i(x_j) = s_i Σ_h A_ijh U_jh        for j ≠ i,
#
# so the n×n parts are never formed. The token's own part F_i(x_i) is kept as a vector (`own`). The
# bias b_i is a mixture, too, of a few rows that are weights. The model's vector is the sum, ``y_i
# = Σ_{j≠i} F_i(x_j) + F_i(x_i) + b_i``. Each component's module says what it does to parts.


#: A linear map of vectors (…, d).
Stretch = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Bias:
    """What no token owns, ``b_i = Σ_k κ_ik c_k + rest_i``: rows of weights, scaled per target.

    The rest is the bias behind a feed-forward block, which no longer is such a mixture.
    """

    coefficients: Tensor  # κ (b, i, k)
    rows: Tensor  # c (k, d), b_O and the β of each norm, as the norms behind have left them
    rest: Tensor | None = None  # (b, i, d)

    @classmethod
    def none(cls, like: Tensor, width: int | None = None) -> Bias:
        """No bias yet, for vectors like these (b, i, d), or of another width."""
        width = like.shape[-1] if width is None else width
        return cls(like.new_empty(*like.shape[:2], 0), like.new_empty(0, width))

    @classmethod
    def dense(cls, vectors: Tensor) -> Bias:
        """A bias given as vectors (b, i, d)."""
        return replace(cls.none(vectors), rest=vectors)

    @property
    def is_none(self) -> bool:
        """Whether nothing has been added yet."""
        return not len(self.rows) and self.rest is None

    def from_token(self, first: int) -> Bias:
        """The same for the targets from `first` on."""
        rest = None if self.rest is None else self.rest[:, first:]
        return Bias(self.coefficients[:, first:], self.rows, rest)

    def in_one_row(self) -> Bias:
        """The targets of all sequences one after the other, as if they were one sequence's."""
        rest = None if self.rest is None else self.rest.flatten(0, 1)[None]
        return Bias(self.coefficients.flatten(0, 1)[None], self.rows, rest)

    def at_tokens(self, places: Tensor) -> Bias:
        """The same for some targets (t,) of every sequence."""
        rest = None if self.rest is None else self.rest[:, places]
        return Bias(self.coefficients[:, places], self.rows, rest)

    def weighted(self, factor: Tensor) -> Bias:
        """Multiplied by a number for each target, (i,) or (b, i)."""
        return self.scaled(lambda rows: rows, factor)

    @cached_property
    def vectors(self) -> Tensor:
        """b (b, i, d)."""
        mixed = self.coefficients @ self.rows
        return mixed if self.rest is None else mixed + self.rest

    def through(self, linear: Linear) -> Tensor:
        """``b W`` plus the bias of `linear`, (b, i, m), at the cost of a few rows."""
        mixed = Linear(times(self.rows, linear.weight), linear.bias)(self.coefficients)
        return mixed if self.rest is None else mixed + times(self.rest, linear.weight)

    def plus(self, row: Tensor | None) -> Bias:
        """Add one row, the same for every target."""
        if row is None:
            return self
        ones = self.coefficients.new_ones(*self.coefficients.shape[:2], 1)
        coefficients = torch.cat([self.coefficients, ones], -1)
        return replace(self, coefficients=coefficients, rows=torch.cat([self.rows, row[None]]))

    def __add__(self, other: Bias) -> Bias:
        """The sum of two biases."""
        rests = [rest for rest in (self.rest, other.rest) if rest is not None]
        return Bias(
            torch.cat([self.coefficients, other.coefficients], -1),
            torch.cat([self.rows, other.rows]),
            sum(rests[1:], rests[0]) if rests else None,
        )

    def scaled(self, stretch: Stretch, factor: Tensor) -> Bias:
        """``κ_i ← factor_i κ_i`` and ``c ← stretch(c)``: a norm without its β."""
        rest = None if self.rest is None else stretch(self.rest) * factor[..., None]
        return Bias(self.coefficients * factor[..., None], stretch(self.rows), rest)


@dataclass(frozen=True)
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

    def scaled(self, stretch: Stretch, factor: Tensor) -> Factors:
        """``s_i ← factor_i s_i`` and ``U ← stretch(U)``, through the basis."""
        return replace(self, scale=self.scale * factor, basis=stretch(self.basis))

    def norms(self) -> Tensor:
        """``‖F_i(x_j)‖² = s_i² A_ijᵀ G_j A_ij`` with ``G_j = U_j U_jᵀ``; (b, i, j).

        In float64 where the device has it: the quadratic form cancels, and a part that is small
        beside its heads' contributions would otherwise lose half of its digits.
        """
        b, n, n_targets, h = self.weights.shape
        device = self.weights.device.type
        exact = torch.float64 if exact_itemsize(device) == 8 else torch.float32
        weights = self.weights.reshape(b * n, n_targets, h)
        values = self.values.reshape(b * n, h, -1)
        squares = weights.new_empty(b * n, n_targets)
        step = gram_sources(h, n_targets, values.shape[-1], device)
        for start in range(0, b * n, step):
            rows = slice(start, start + step)
            u, a = values[rows].to(exact), weights[rows].to(exact)
            gram = u @ u.transpose(-1, -2)  # (bj, h, h)
            squares[rows] = ((a @ gram) * a).sum(-1).clamp_min_(0).sqrt_().to(squares.dtype)
        return squares.view(b, n, n_targets).transpose(1, 2) * self.scale[..., None]


@dataclass(frozen=True)
class Parts:
    """The parts of a layer's vectors (b, i, d) at one point inside it."""

    own: Tensor  # F_i(x_i), the part of the token itself
    bias: Bias  # b_i, what no token owns
    #: Σ_{j≠i} F_i(x_j), the sum of the other sources' parts; None: no tokens are mixed yet
    mixed: Tensor | None = None
    groups: tuple[Factors, ...] = ()  # the other sources' parts, as long as they are factored

    @classmethod
    def of_tokens(cls, x: Tensor) -> Parts:
        """The parts before any attention: each token's vector is its own part."""
        return cls(x, Bias.none(x))

    @cached_property
    def total(self) -> Tensor:
        """The real vectors."""
        total = self.own + self.bias.vectors
        return total if self.mixed is None else total + self.mixed

    def __add__(self, saved: Parts) -> Parts:
        """Sum, part by part, with parts that bypassed these."""
        if {group.source for group in self.groups} & {group.source for group in saved.groups}:
            raise ValueError(
                "a residual before the feed-forward block must branch where its sources are not "
                "mixed yet"
            )
        mixed = [m for m in (self.mixed, saved.mixed) if m is not None]
        return Parts(
            self.own + saved.own,
            self.bias + saved.bias,
            None if not mixed else mixed[0] if len(mixed) == 1 else mixed[0] + mixed[1],
            (*saved.groups, *self.groups),
        )


def side_by_side(norms: Sequence[Tensor], groups: Sequence[Factors], fill: float = 0) -> Tensor:
    """Join the groups' maps along j, the layer's tokens last; `fill` if they are no source."""
    others = [norm for norm, group in zip(norms, groups, strict=True) if group.source is not None]
    same = [norm for norm, group in zip(norms, groups, strict=True) if group.source is None]
    if not others:
        return same[0]
    b, n, _ = others[0].shape
    return torch.cat([*others, *(same or [others[0].new_full((b, n, n), fill)])], dim=-1)
