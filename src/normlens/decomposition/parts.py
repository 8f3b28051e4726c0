"""Parts of a layer's vectors, kept in factored form.

Until the feed-forward block every part is a mixture of a few vectors of its source token:

    F_i(x_j) = s_i Σ_h A_ijh U_jh  for j ≠ i,        F_i(x_i) a vector of its own,

so the n×n parts are never formed. The bias b_i is a mixture, too, of a few rows that are weights.
What the model really computes is the sum, ``y_i = Σ_{j≠i} F_i(x_j) + F_i(x_i) + b_i``, and these
three vectors are carried along.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normlens.components import Attention, Linear, Norm

NORM_CHUNK_ELEMENTS = 1 << 22
NORM_CHUNK_ELEMENTS_ON_GPU = 1 << 24  # fewer launches


@dataclass(frozen=True)
class Vectors:
    """The three vectors whose sum is the real one, each (b, i, d)."""

    mixed: Tensor  # Σ_{j≠i} F_i(x_j), what the other tokens contribute together
    diagonal: Tensor  # F_i(x_i), what the token itself contributes
    bias: Tensor  # b_i, what no token owns

    @property
    def total(self) -> Tensor:
        return self.mixed + self.diagonal + self.bias

    def add(self, other: Vectors) -> Vectors:
        return Vectors(
            self.mixed + other.mixed, self.diagonal + other.diagonal, self.bias + other.bias
        )

    def normalise(self, norm: Norm, inverse_deviation: Tensor) -> Vectors:
        """LN of each vector with the real deviation; β goes to the bias."""

        def apply(v: Tensor) -> Tensor:
            return stretch(v, norm) * inverse_deviation[..., None]

        bias = apply(self.bias)
        return Vectors(
            apply(self.mixed),
            apply(self.diagonal),
            bias if norm.beta is None else bias + norm.beta,
        )


@dataclass(frozen=True)
class Bias:
    """What no token owns, ``b_i = Σ_k κ_ik c_k``: a few rows of weights, scaled per target."""

    coefficients: Tensor  # κ (b, i, k)
    rows: Tensor  # c (k, d), b_O and the β of each norm, as the norms behind have left them

    @property
    def vectors(self) -> Tensor:
        """b (b, i, d)."""
        return self.coefficients @ self.rows

    def through(self, linear: Linear) -> Tensor:
        """What `linear` makes of b, (b, i, m), for the price of its rows."""
        return Linear(self.rows @ linear.weight, linear.bias)(self.coefficients)

    def plus(self, row: Tensor | None) -> Bias:
        """One more row, the same for every target."""
        if row is None:
            return self
        ones = self.coefficients.new_ones(*self.coefficients.shape[:2], 1)
        return Bias(torch.cat([self.coefficients, ones], -1), torch.cat([self.rows, row[None]]))

    def normalise(self, norm: Norm, inverse_deviation: Tensor) -> Bias:
        """LN: ``c ← centre(c) ⊙ γ``, ``κ_i ← κ_i / σ_i``, and β joins the rows."""
        coefficients = self.coefficients * inverse_deviation[..., None]
        return Bias(coefficients, stretch(self.rows, norm)).plus(norm.beta)


@dataclass(frozen=True)
class Factors:
    """The bias, and the off-diagonal ``F_i(x_j) = s_i Σ_h A_ijh U_jh`` with ``U_jh = v_jh B_h``."""

    weights: Tensor  # A (b, j, i, h), zero where i = j
    scale: Tensor  # s (b, i)
    heads: Tensor  # v (b, j, h, d_head), each head's value vectors
    basis: Tensor  # B (h, d_head, d), what the layer has done to them since
    bias: Bias  # b, which norms scale like the parts

    @cached_property
    def values(self) -> Tensor:
        """U (b, j, h, d)."""
        return torch.einsum("bjhe,hed->bjhd", self.heads, self.basis)

    def normalise(self, norm: Norm, inverse_deviation: Tensor) -> Factors:
        """LN: ``U ← centre(U) ⊙ γ`` (through the basis) and ``s_i ← s_i / σ_i``."""
        return Factors(
            self.weights,
            self.scale * inverse_deviation,
            self.heads,
            stretch(self.basis, norm),
            self.bias.normalise(norm, inverse_deviation),
        )

    def norms(self) -> Tensor:
        """``‖F_i(x_j)‖² = s_i² A_ijᵀ G_j A_ij`` with ``G_j = U_j U_jᵀ``; (b, i, j), 0 if i = j.

        In float64 where the device has it: the quadratic form cancels, and a part that is small
        beside its heads' contributions would otherwise lose half of its digits.
        """
        b, n, n_targets, h = self.weights.shape
        exact = torch.float32 if self.weights.device.type == "mps" else torch.float64
        weights = self.weights.reshape(b * n, n_targets, h)
        values = self.values.reshape(b * n, h, -1)
        squares = weights.new_empty(b * n, n_targets)
        on_cpu = weights.device.type == "cpu"
        chunk = NORM_CHUNK_ELEMENTS if on_cpu else NORM_CHUNK_ELEMENTS_ON_GPU
        step = max(1, chunk // (h * max(n_targets, values.shape[-1])))
        for start in range(0, b * n, step):
            rows = slice(start, start + step)
            u, a = values[rows].to(exact), weights[rows].to(exact)
            gram = u @ u.transpose(-1, -2)  # (bj, h, h)
            squares[rows] = ((a @ gram) * a).sum(-1).clamp_min_(0).sqrt_().to(squares.dtype)
        return squares.view(b, n, n_targets).transpose(1, 2) * self.scale[..., None]


def stretch(v: Tensor, norm: Norm) -> Tensor:
    """The linear part of a norm, without the division: centre (if it centres), times γ."""
    if norm.centred:
        v = v - v.mean(-1, keepdim=True)
    return v if norm.gamma is None else v * norm.gamma


def inverse_deviation(y: Tensor, norm: Norm) -> Tensor:
    """``1/σ_i`` of the real vector: deviation for LayerNorm, root mean square for RMSNorm."""
    square = y.var(-1, correction=0) if norm.centred else y.square().mean(-1)
    return (square + norm.eps).rsqrt()


def normalise_tokens(x: Tensor, norm: Norm) -> Tensor:
    """The whole norm of each token's vector, β included."""
    y = stretch(x, norm) * inverse_deviation(x, norm)[..., None]
    return y if norm.beta is None else y + norm.beta


def output_basis(attention: Attention) -> Tensor:
    """B (h, d_head, d): how each head's values enter the layer's vectors."""
    weight = attention.output.weight
    return weight.reshape(attention.heads, weight.shape[0] // attention.heads, -1)


def attend(attention: Attention, s: Tensor, alpha: Tensor) -> tuple[Vectors, Factors]:
    """ATTN: ``F_i(x_j) = Σ_h α^h_ij f^h(x_j)`` with ``f^h(x_j) = (s_j W_V^h + b_V^h) W_O^h``.

    Kobayashi et al. 2020, eq. 5. `s` (b, j, d) is what the value projection reads and `alpha`
    (b, h, i, j) the attention weights. Value biases belong to the token, ``b_O`` to nobody.
    """
    b, n, _ = s.shape
    heads, groups = attention.heads, attention.groups
    v = attention.value(s).view(b, n, groups, -1)
    v = v.repeat_interleave(heads // groups, dim=2)  # (b, j, h, d_head)
    basis = output_basis(attention)
    own = alpha.diagonal(dim1=2, dim2=3)  # (b, h, i)
    others = alpha.clone(memory_format=torch.contiguous_format)
    others.diagonal(dim1=2, dim2=3).zero_()
    weights = others.permute(0, 3, 2, 1).contiguous()  # (b, j, i, h)
    bias = Bias(s.new_empty(b, n, 0), s.new_empty(0, basis.shape[-1])).plus(attention.output.bias)
    factors = Factors(weights, alpha.new_ones(b, n), v, basis, bias)
    # Sums over sources are taken before W_O: v is H times smaller than U.
    v = v.transpose(1, 2)
    sums = torch.stack([others @ v, own[..., None] * v])  # (2, b, h, i, d_head)
    mixed, diagonal = sums.transpose(2, 3).flatten(3) @ attention.output.weight
    return Vectors(mixed, diagonal, bias.vectors), factors
