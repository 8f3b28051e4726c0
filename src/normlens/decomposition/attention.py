"""ATTN: each source's value vectors, weighted by α.

    f^h(x_j) = (s_j W_V^h + b_V^h) W_O^h,    F_i(x_j) = Σ_h α^h_ij f^h(x_j),    b_i = b_O

Kobayashi et al. 2020, eq. 5. `s` is what the value projection reads. Inside a layer the value bias
belongs to the source token; across layers no token owns it (`unowned`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normlens.components import Attention, Reach
from normlens.decomposition.parts import Bias, Factors, Parts


@dataclass(frozen=True)
class FrozenAttention:
    """An attention with the weights α that the model gave its sources."""

    attention: Attention
    alpha: Tensor  # (b, h, i, j)
    values: Tensor  # (b, j, h, d_head), each head's value vectors of the real sources
    reach: Reach

    @classmethod
    def at(cls, attention: Attention, s: Tensor, alpha: Tensor, reach: Reach) -> FrozenAttention:
        """The attention over sources `s` (b, j, d)."""
        return cls(attention, alpha, _by_head(attention, attention.value(s)), reach)

    def linear(self, v: Tensor) -> Tensor:
        """``Σ_j Σ_h α^h_ij v_j W_V^h W_O^h`` of vectors (…, b, j, d)."""
        heads = _by_head(self.attention, v @ self.attention.value.weight).transpose(-2, -3)
        return self._output(self.alpha @ heads)

    def adjoint(self, g: Tensor) -> Tensor:
        """``Σ_i Σ_h α^h_ij W_V^h W_O^h g_i``, (…, b, j, d)."""
        attention = self.attention
        heads = (g @ attention.output.weight.T).unflatten(-1, (attention.heads, -1))
        sources = self.alpha.transpose(-1, -2) @ heads.transpose(-2, -3)  # (…, b, h, j, d_head)
        grouped = sources.unflatten(-3, (attention.groups, -1)).sum(-3)
        return grouped.transpose(-2, -3).flatten(-2) @ attention.value.weight.T

    @property
    def unowned(self) -> Tensor | None:
        """``Σ_j Σ_h α^h_ij b_V^h W_O^h + b_O``, (b, i, d) or (d,)."""
        bias = self.attention.value.bias
        if bias is None:
            return self.attention.output.bias
        heads = _by_head(self.attention, bias)  # (h, d_head)
        mixed = self._output(self.alpha.sum(-1)[..., None] * heads[:, None])
        return mixed if self.attention.output.bias is None else mixed + self.attention.output.bias

    @cached_property
    def output(self) -> Tensor:
        """The attention's real output (b, i, d)."""
        mixed, own = self._sums
        total = mixed if own is None else mixed + own
        bias = self.attention.output.bias
        return total if bias is None else total + bias

    def on_parts(self, parts: Parts) -> Parts:
        """The sources' parts, factored; what the targets held before passes by the residual."""
        b, _, n, _ = self.alpha.shape
        mixed, own = self._sums
        if own is not None and parts.mixed is not None:
            raise ValueError("an attention over tokens that are mixed already does not factor")
        others = self.alpha.clone(memory_format=torch.contiguous_format)
        if own is not None:
            others.diagonal(dim1=2, dim2=3).zero_()
        factors = Factors(
            weights=others.permute(0, 3, 2, 1).contiguous(),
            scale=self.alpha.new_ones(b, n),
            heads=self.values,
            basis=output_basis(self.attention),
            reach=self.reach,
            source=self.attention.source,
        )
        bias = Bias.none(mixed).plus(self.attention.output.bias)
        return Parts(torch.zeros_like(mixed) if own is None else own, bias, mixed, (factors,))

    def head_norms(self) -> Tensor:
        """``‖f^h(x_j)‖``, (b, j, h)."""
        basis = output_basis(self.attention)
        return torch.linalg.vector_norm(torch.einsum("bjhe,hed->bjhd", self.values, basis), dim=-1)

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor | None]:
        """``Σ_{j≠i} F_i(x_j)`` and ``F_i(x_i)``; None where sources are not the targets' tokens.

        Sums over sources are taken before W_O: v is H times smaller than f.
        """
        v = self.values.transpose(1, 2)  # (b, h, j, d_head)
        total = self.alpha @ v
        if self.attention.source is not None:
            return self._output(total), None
        own = self.alpha.diagonal(dim1=2, dim2=3)[..., None] * v
        mixed, own = self._output(torch.stack([total - own, own]))
        return mixed, own

    def _output(self, heads: Tensor) -> Tensor:
        """Vectors (…, i, d) of all heads (…, h, i, d_head) together, without b_O."""
        return heads.transpose(-2, -3).flatten(-2) @ self.attention.output.weight


def _by_head(attention: Attention, v: Tensor) -> Tensor:
    """Value vectors (…, groups · d_head) as (…, h, d_head), each head with its group's."""
    heads_per_group = attention.heads // attention.groups
    return v.unflatten(-1, (attention.groups, -1)).repeat_interleave(heads_per_group, dim=-2)


def output_basis(attention: Attention) -> Tensor:
    """B (h, d_head, d): how each head's values enter the layer's vectors."""
    weight = attention.output.weight
    return weight.reshape(attention.heads, -1, weight.shape[1])
