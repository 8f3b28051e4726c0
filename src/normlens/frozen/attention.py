"""ATTN: each source's value vectors, weighted by α.

    f^h(x_j) = (s_j W_V^h + b_V^h) W_O^h,    F_i(x_j) = Σ_h α^h_ij f^h(x_j),    b_i = b_O

Kobayashi et al. 2020, eq. 5. `s` is what the value projection reads. Inside a layer the value bias
belongs to the source token; across layers no token owns it (`unowned`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from normlens.frozen.norm import FrozenNorm
from normlens.frozen.parts import Bias, Factors, Parts
from normlens.frozen.step import FrozenBlock, Scored, State, inner
from normlens.gpu.matmul import times, weighted
from normlens.layers import Attention, Reach

#: Pairs of tokens whose flow is computed at a time, of some heads; more of them are not faster.
_FLOW_PAIRS = 1 << 20


@dataclass(frozen=True)
class FrozenAttention(FrozenBlock):
    """An attention with the weights α that the model gave its sources."""

    attention: Attention
    alpha: Tensor  # (b, h, i, j)
    values: Tensor  # (b, j, h, d_head), each head's value vectors of the real sources
    reach: Reach
    parts: bool = True  # whether parts will be taken, so that their sums serve for the output, too
    #: real tokens of another sequence that it reads; None: it reads the layer's tokens
    lengths: tuple[int, ...] | None = None
    latent: FrozenNorm | None = None  # the norm of the vectors that values are projected from

    @classmethod
    def at(
        cls,
        attention: Attention,
        s: Tensor,
        alpha: Tensor,
        reach: Reach,
        parts: bool = True,
        lengths: Sequence[int] | None = None,
    ) -> FrozenAttention:
        """The attention over sources `s` (b, j, d).

        `lengths` counts the real ones of another sequence; None is all of them.
        """
        real: tuple[int, ...] | None = None
        if attention.source is not None:
            real = (s.shape[1],) * s.shape[0] if lengths is None else tuple(lengths)
        latent: FrozenNorm | None = None
        if attention.latent is not None:
            s = attention.latent.down(s)
            latent = FrozenNorm.at(attention.latent.norm, s)
            s = latent.apply(s)
        values = _by_head(attention, attention.value(s))
        return cls(attention, alpha, values, reach, parts, real, latent)

    def linear(self, v: Tensor) -> Tensor:
        """``Σ_j Σ_h α^h_ij v_j W_V^h W_O^h`` of vectors (…, b, j, d).

        One product with α for all vectors that stand side by side: (b, g, h/g · i, j) times
        (b, g, j, … · d_head), where the heads of a group g read the same values.
        """
        lead, groups = v.shape[:-3], self.attention.groups
        values = self._projected(v).unflatten(-1, (groups, -1))
        values = values.reshape(-1, *values.shape[-4:]).permute(1, 3, 2, 0, 4)  # (b, g, j, …, e)
        b, _, n, many, width = values.shape
        mixed = weighted(self._grouped_alpha, values.reshape(b, groups, n, many * width))
        mixed = mixed.view(b, groups, -1, self.alpha.shape[2], many, width)
        heads = mixed.permute(4, 0, 3, 1, 2, 5).reshape(*lead, b, self.alpha.shape[2], -1)
        return times(heads, self.attention.output.weight)

    def from_token(self, first: int) -> FrozenAttention:
        """The linear face for the tokens from `first` on; another sequence stays whole."""
        sources = slice(first if self.attention.source is None else 0, None)
        alpha, values = self.alpha[:, :, first:, sources], self.values[:, sources]
        latent = None if self.latent is None else self.latent.from_token(sources.start)
        return replace(self, alpha=alpha, values=values, latent=latent)

    def adjoint(self, g: Tensor) -> Tensor:
        """``Σ_i Σ_h α^h_ij W_V^h W_O^h g_i``, (…, b, j, d)."""
        return self._sources_adjoint(self._heads_adjoint(g))

    @property
    def unowned(self) -> Tensor | None:
        """``Σ_j Σ_h α^h_ij b_V^h W_O^h + b_O``, (b, i, d) or (d,)."""
        read = self._unowned_read
        if read is None:
            return self.attention.output.bias
        mixed = self._output(read)
        return mixed if self.attention.output.bias is None else mixed + self.attention.output.bias

    def forward(self, state: State[Tensor], biases: bool = False) -> None:
        """Pass on vectors of the sequence that the attention reads; none of another is zero."""
        source = self.attention.source
        if source is None:
            return super().forward(state, biases)
        other = state.others.get(source)
        state.stream = torch.zeros_like(state.stream) if other is None else self.linear(other)
        if biases:
            state.add(self.unowned)

    def backward(self, state: State[Tensor], act: Callable[[Tensor], Scored]) -> Scored:
        """Hand the gradient to the sequence that the attention reads."""
        source = self.attention.source
        if source is None:
            return super().backward(state, act)
        scored, others = act(state.stream), state.others
        arrived = scored.arriving
        others[source] = others[source] + arrived if source in others else arrived
        state.stream = torch.zeros_like(state.stream)  # its tokens are read by queries, inside α
        return scored

    @cached_property
    def head_sums(self) -> Tensor:
        """``Σ_j α^h_ij v^h_j``, what each head reads (b, h, i, d_head), value biases included."""
        return weighted(self.alpha, self.values.transpose(1, 2))

    @cached_property
    def output(self) -> Tensor:
        """The attention's real output (b, i, d)."""
        if self.parts:
            mixed, own = self._sums
            total = mixed if own is None else mixed + own
        else:
            total = self._output(self.head_sums)
        bias = self.attention.output.bias
        return total if bias is None else total + bias

    def score(self, g: Tensor) -> Scored:
        """What the attention, and each of its heads, adds to the score of g (…, b, i, d)."""
        at_heads = self._heads_adjoint(g)
        heads = (at_heads * self.head_sums).sum(-1)  # (…, b, h, i)
        unowned = inner(g, self.attention.output.bias)
        if self._unowned_read is not None:
            of_values = (at_heads * self._unowned_read).sum(-1)
            heads = heads - of_values
            unowned = of_values.sum(-2) if unowned is None else unowned + of_values.sum(-2)
        return Scored(self._sources_adjoint(at_heads), heads.sum(-2), unowned, heads, at_heads)

    def owed_by_head(self, at_heads: Tensor, unowned: Tensor) -> Tensor:
        """What each head's output owes to tokens, (…, b, h, i): the sum of `head_flow` over j."""
        values = self._unowned_values(unowned)
        assert values is not None
        return (at_heads * (self.head_sums - self._read(values))).sum(-1)

    def head_flow(self, at_heads: Tensor, unowned: Tensor | None = None) -> Tensor:
        """``g_i · α^h_ij s_j W_V^h W_O^h``: how much of a score goes from j to i by each head.

        Shape (…, b, h, i, j); `at_heads` is g as it arrives there (`score`). No token owns value
        biases, nor `unowned` (d,) of the attention's input.
        """
        values = self._owned_values(unowned)  # (b, h, d_head, j)
        return (at_heads @ values).mul_(self.alpha)

    def flow(self, at_heads: Tensor, unowned: Tensor | None = None) -> Tensor:
        """The same of all heads together, (…, b, i, j), a few heads at a time."""
        values = self._owned_values(unowned)
        total: Tensor | None = None
        count = self.attention.heads
        step = max(1, _FLOW_PAIRS * count // self.alpha.numel())
        for first in range(0, count, step):
            heads = slice(first, first + step)
            some = (at_heads[..., heads, :, :] @ values[:, heads]).mul_(self.alpha[:, heads])
            total = some.sum(-3) if total is None else total.add_(some.sum(-3))
        assert total is not None
        return total

    def _owned_values(self, unowned: Tensor | None) -> Tensor:
        """What the heads' values owe to tokens, (b, h, d_head, j)."""
        bias = self._unowned_values(unowned)
        values = self.values if bias is None else self.values - bias
        return values.permute(0, 2, 3, 1)

    def _unowned_values(self, unowned: Tensor | None = None) -> Tensor | None:
        """The share of the values that no token owns, `unowned` of the input included.

        Shape (h, d_head) if `unowned` is (d,); if it is (b, j, d), or behind a norm of the
        attention's own, each source has its own, (b, j, h, d_head).
        """
        attention, latent = self.attention, self.latent
        if attention.latent is None or latent is None:
            bias = attention.value.bias
            if unowned is not None:
                bias = attention.value(unowned[None])[0]
            return None if bias is None else _by_head(attention, bias)
        down, bias = attention.latent.down, attention.latent.down.bias
        if unowned is not None:
            bias = down(unowned[None])[0]
        if bias is None and latent.unowned is None and attention.value.bias is None:
            return None
        compressed = self.values.new_zeros(*self.values.shape[:2], down.weight.shape[1])
        compressed = latent.apply(compressed if bias is None else compressed + bias)
        return _by_head(attention, attention.value(compressed))

    @cached_property
    def _unowned_read(self) -> Tensor | None:
        """What each head reads that no token owns, (b, h, i, d_head)."""
        values = self._unowned_values()
        return None if values is None else self._read(values)

    def _read(self, values: Tensor) -> Tensor:
        """What each head reads, (b, h, i, d_head), of values (h, d_head) or (b, j, h, d_head)."""
        if values.dim() == 2:
            return self._row_sums[..., None] * values[:, None]
        return weighted(self.alpha, values.transpose(1, 2))

    def on_parts(self, parts: Parts) -> Parts:
        """The sources' parts, factored; what the targets held before passes by the residual."""
        b, _, n, _ = self.alpha.shape
        mixed, own = self._sums
        if own is not None and parts.mixed is not None:
            raise ValueError("an attention over tokens that are mixed already does not factor")
        others = self.alpha.permute(0, 3, 2, 1).clone(memory_format=torch.contiguous_format)
        if own is not None:
            others.diagonal(dim1=1, dim2=2).zero_()
        factors = Factors(
            weights=others,
            scale=self.alpha.new_ones(b, n),
            heads=self.values,
            basis=output_basis(self.attention),
            reach=self.reach,
            source=self.attention.source,
            lengths=self.lengths,
        )
        own = torch.zeros_like(mixed) if own is None else own
        return Parts(own, self.on_bias(None), mixed, (factors,))

    def on_bias(self, bias: Bias | None) -> Bias:
        """b_O; what was there before passes by the residual."""
        b, _, n, _ = self.alpha.shape
        output = self.attention.output
        none = Bias.none(self.values.new_empty(b, n, 0), output.weight.shape[1])
        return none.plus(output.bias)

    def head_norms(self) -> Tensor:
        """``‖f^h(x_j)‖``, (b, j, h)."""
        basis = output_basis(self.attention)
        return torch.linalg.vector_norm(torch.einsum("bjhe,hed->bjhd", self.values, basis), dim=-1)

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor | None]:
        """``Σ_{j≠i} F_i(x_j)`` and ``F_i(x_i)``; None where sources are not the targets' tokens.

        Sums over sources are taken before W_O: v is H times smaller than f.
        """
        total = self.head_sums
        if self.attention.source is not None:
            return self._output(total), None
        own = self.alpha.diagonal(dim1=2, dim2=3)[..., None] * self.values.transpose(1, 2)
        mixed, own = self._output(torch.stack([total - own, own]))
        return mixed, own

    @cached_property
    def _grouped_alpha(self) -> Tensor:
        """α as (b, g, h/g · i, j), the rows of a group's heads below each other."""
        grouped = self.alpha.unflatten(1, (self.attention.groups, -1))
        return grouped.flatten(2, 3)

    @property
    def _row_sums(self) -> Tensor:
        """``Σ_j α^h_ij`` (b, h, i): 1, unless something takes attention that is no token's."""
        return self.alpha.sum(-1, dtype=self.values.dtype)

    def _heads_adjoint(self, g: Tensor) -> Tensor:
        """The transpose of `_output`."""
        at_output = times(g, self.attention.output.weight.T)
        heads = at_output.unflatten(-1, (self.attention.heads, -1))
        return heads.transpose(-2, -3)

    def _sources_adjoint(self, at_heads: Tensor) -> Tensor:
        """Hand what arrives at the heads (…, b, h, i, d_head) on to the sources (…, b, j, d)."""
        sources = weighted(self.alpha.transpose(-1, -2), at_heads)  # (…, b, h, j, d_head)
        grouped = sources.unflatten(-3, (self.attention.groups, -1)).sum(-3)
        values = times(grouped.transpose(-2, -3).flatten(-2), self.attention.value.weight.T)
        if self.attention.latent is None or self.latent is None:
            return values
        return times(self.latent.adjoint(values), self.attention.latent.down.weight.T)

    def _projected(self, v: Tensor) -> Tensor:
        """Vectors (…, b, j, d) as values (…, b, j, groups · d_head), without any bias."""
        if self.attention.latent is not None and self.latent is not None:
            v = self.latent.linear(times(v, self.attention.latent.down.weight))
        return times(v, self.attention.value.weight)

    def _output(self, heads: Tensor) -> Tensor:
        """Vectors (…, i, d) of all heads (…, h, i, d_head) together, without b_O."""
        return times(heads.transpose(-2, -3).flatten(-2), self.attention.output.weight)


def _by_head(attention: Attention, v: Tensor) -> Tensor:
    """Value vectors (…, groups · d_head) as (…, h, d_head), each head with its group's."""
    heads_per_group = attention.heads // attention.groups
    return v.unflatten(-1, (attention.groups, -1)).repeat_interleave(heads_per_group, dim=-2)


def output_basis(attention: Attention) -> Tensor:
    """B (h, d_head, d): how each head's values enter the layer's vectors."""
    weight = attention.output.weight
    return weight.reshape(attention.heads, -1, weight.shape[1])
