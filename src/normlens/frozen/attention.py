"""ATTN: each source's value vectors, weighted by α.

    f^h(x_j) = (s_j W_V^h + b_V^h) W_O^h,    F_i(x_j) = Σ_h α^h_ij f^h(x_j),    b_i = b_O

Kobayashi et al. 2020, eq. 5. `s` is what the value projection reads. Inside a layer the value bias
belongs to the source token; across layers no token owns it (`bias_part`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from normlens.frozen.alpha import Alpha, alpha_of
from normlens.frozen.parts import (
    Chain,
    Factors,
    FrozenBlock,
    FrozenNorm,
    FrozenProjection,
    FrozenStep,
    Parts,
    Scored,
    State,
    inner,
    plus,
)
from normlens.gpu.matmul import times, weighted
from normlens.layers import Attention, Reach

#: Pairs of tokens whose flow is computed at a time, of some heads; more of them are not faster.
_FLOW_PAIRS = 1 << 20


@dataclass(frozen=True)
class FrozenAttention(FrozenBlock):
    """An attention with the weights α that the model gave its sources."""

    attention: Attention
    given: Alpha  # α (b, h, i, j), or what it is formed from
    grouped: Tensor  # (b, j, groups · d_head), the value vectors of the real sources
    reading: Chain  # from vectors (…, b, j, d) to values (…, b, j, groups · d_head)
    reach: Reach
    before: Tensor | None = None  # what no token owns of the layer's tokens that it reads
    parts: bool = True  # whether parts will be taken, so that their sums serve for the output, too
    #: real tokens of another sequence that it reads; None: it reads the layer's tokens
    lengths: tuple[int, ...] | None = None

    @classmethod
    def at(
        cls,
        attention: Attention,
        s: Tensor,
        alpha: Tensor | Alpha,
        reach: Reach,
        before: Tensor | None = None,
        parts: bool = True,
        lengths: Sequence[int] | None = None,
    ) -> FrozenAttention:
        """The attention over sources `s` (b, j, d).

        `lengths` counts the real ones of another sequence; None is all of them.
        """
        real: tuple[int, ...] | None = None
        if attention.source is not None:
            real = (s.shape[1],) * s.shape[0] if lengths is None else tuple(lengths)
            reach, before = Reach(), None
        steps: list[FrozenStep] = []
        if attention.latent is not None:
            s = attention.latent.down(s)
            norm = FrozenNorm.at(attention.latent.norm, s)
            steps += [FrozenProjection(attention.latent.down), norm]
            s = norm.apply(s)
        reading = Chain((*steps, FrozenProjection(attention.value)))
        values = attention.value(s)
        return cls(attention, alpha_of(alpha), values, reading, reach, before, parts, real)

    @cached_property
    def values(self) -> Tensor:
        """Each head's value vectors (b, j, h, d_head)."""
        return _by_head(self.attention, self.grouped)

    @property
    def alpha(self) -> Tensor:
        """The weights as a tensor (b, h, i, j), which parts are made of; scores need none."""
        return self.given.dense

    def linear(self, v: Tensor) -> Tensor:
        """``Σ_j Σ_h α^h_ij v_j W_V^h W_O^h`` of vectors (…, b, j, d).

        One product with α for all vectors that stand side by side: (b, g, h/g · i, j) times
        (b, g, j, … · d_head), where the heads of a group g read the same values.
        """
        lead, groups = v.shape[:-3], self.attention.groups
        values = self.reading.linear(v).unflatten(-1, (groups, -1))
        values = values.reshape(-1, *values.shape[-4:]).permute(1, 3, 2, 0, 4)  # (b, g, j, …, e)
        b, _, n, many, width = values.shape
        alpha = self.alpha.unflatten(1, (groups, -1)).flatten(2, 3)  # rows of a group's heads
        mixed = weighted(alpha, values.reshape(b, groups, n, many * width))
        mixed = mixed.view(b, groups, -1, self.alpha.shape[2], many, width)
        heads = mixed.permute(4, 0, 3, 1, 2, 5).reshape(*lead, b, self.alpha.shape[2], -1)
        return times(heads, self.attention.output.weight)

    def from_token(self, first: int) -> FrozenAttention:
        """The linear face for the tokens from `first` on; another sequence stays whole."""
        begin = first if self.attention.source is None else 0
        given, grouped = self.given.from_token(first, begin), self.grouped[:, begin:]
        return replace(self, given=given, grouped=grouped, reading=self.reading.from_token(begin))

    @property
    def bias_part(self) -> Tensor | None:
        """``Σ_j Σ_h α^h_ij b_V^h W_O^h + b_O``, (b, i, d) or (d,)."""
        output = self.attention.output
        if self._unowned_read is None:
            return output.bias
        return plus(times(_together(self._unowned_read), output.weight), output.bias)

    def forward(self, state: State[Tensor], biases: bool = False) -> None:
        """Pass on vectors of the sequence that the attention reads; none of another is zero."""
        source = self.attention.source
        if source is None:
            return super().forward(state, biases)
        other = state.others.get(source)
        state.stream = torch.zeros_like(state.stream) if other is None else self.linear(other)
        if biases:
            state.stream = plus(state.stream, self.bias_part)

    def backward(self, state: State[Tensor]) -> Scored:
        """Hand the gradient to the sequence that the attention reads."""
        source = self.attention.source
        if source is None:
            return super().backward(state)
        scored = self.score(state.stream)
        state.others[source] = plus(scored.arriving, state.others.get(source))
        state.stream = torch.zeros_like(state.stream)  # its tokens are read by queries, inside α
        return scored

    @cached_property
    def head_sums(self) -> Tensor:
        """``Σ_j α^h_ij v^h_j``, what each head reads (b, h, i, d_head), value biases included."""
        mixed = self.given.mixed
        return self.given.mix(self.values.transpose(1, 2)) if mixed is None else mixed

    @cached_property
    def output(self) -> Tensor:
        """The attention's real output (b, i, d)."""
        output = self.attention.output
        if self.parts:
            return plus(plus(*self._sums), output.bias)
        return plus(times(_together(self.head_sums), output.weight), output.bias)

    def score(self, g: Tensor) -> Scored:
        """What the attention, and each of its heads, adds to the score of g (…, b, i, d)."""
        at_output = times(g, self.attention.output.weight.T)
        at_heads = at_output.unflatten(-1, (self.attention.heads, -1)).transpose(-2, -3)
        heads = (at_heads * self.head_sums).sum(-1)  # (…, b, h, i)
        bias_part = inner(g, self.attention.output.bias)
        if self._unowned_read is not None:
            of_values = (at_heads * self._unowned_read).sum(-1)
            heads, bias_part = heads - of_values, plus(bias_part, of_values.sum(-2))
        passed = heads.sum(-2)
        if self.before is not None and (values := self._unowned_values(self.before)) is not None:
            heads = (at_heads * (self.head_sums - self._read(values))).sum(-1)
        grouped = self.given.spread(at_heads, self.attention.groups)  # (…, b, group, j, d_head)
        arriving = self.reading.adjoint(grouped.transpose(-2, -3).flatten(-2))
        return Scored(arriving, passed, bias_part, heads, at_heads)

    def flow(self, at_heads: Tensor) -> Tensor:
        """``g_i · Σ_h α^h_ij s_j W_V^h W_O^h``: how much of a score goes from j to i.

        Shape (…, b, i, j), a few heads at a time; `at_heads` is g as it arrives there (`score`). No
        token owns value biases, nor what is `before` the attention.
        """
        count = self.attention.heads
        step = max(1, _FLOW_PAIRS * count // self.given.shape.numel())
        total = self.head_flow(at_heads, slice(0, step)).sum(-3)
        for first in range(step, count, step):
            total += self.head_flow(at_heads, slice(first, first + step)).sum(-3)
        return total

    def head_flow(self, at_heads: Tensor, heads: slice = slice(None)) -> Tensor:
        """The same of each head, or of some, (…, b, h, i, j)."""
        bias = self._unowned_values(self.before)
        values = self.values if bias is None else self.values - bias
        some = values[:, :, heads].permute(0, 2, 3, 1)  # (b, h, d_head, j)
        return (at_heads[..., heads, :, :] @ some).mul_(self.given.of_heads(heads))

    def _unowned_values(self, before: Tensor | None) -> Tensor | None:
        """The share of the values that no token owns: biases, and `before` of the input.

        Shape (h, d_head); where each source has its own, (b, j, h, d_head).
        """
        values = self.reading.affine(before)
        return None if values is None else _by_head(self.attention, values)

    @cached_property
    def _unowned_read(self) -> Tensor | None:
        """What each head reads that no token owns, (b, h, i, d_head)."""
        values = self._unowned_values(None)
        return None if values is None else self._read(values)

    def _read(self, values: Tensor) -> Tensor:
        """What each head reads, (b, h, i, d_head), of values (h, d_head) or (b, j, h, d_head)."""
        if values.dim() == 2:  # a row of α sums to 1, unless something takes what is no token's
            return self.given.row_sums(values.dtype)[..., None] * values[:, None]
        return self.given.mix(values.transpose(1, 2))

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
        # What no token owned before passes by the residual.
        return Parts(own, self.attention.output.bias, mixed, (factors,))

    def source_parts(self, first: int, last: int) -> Tensor:
        """``F_i(x_j) = Σ_h α^h_ij v^h_j W_O^h`` of some sources as vectors, (j, b, i, d)."""
        alpha = self.alpha[..., first:last].permute(3, 0, 2, 1)  # (j, b, i, h)
        values = self.values[:, first:last].transpose(0, 1)[:, :, None]  # (j, b, 1, h, d_head)
        return (alpha[..., None] * values).flatten(-2) @ self.attention.output.weight

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor | None]:
        """``Σ_{j≠i} F_i(x_j)`` and ``F_i(x_i)``; None where sources are not the targets' tokens.

        Sums over sources are taken before W_O: v is H times smaller than f.
        """
        total = self.head_sums
        if self.attention.source is not None:
            return times(_together(total), self.attention.output.weight), None
        own = self.alpha.diagonal(dim1=2, dim2=3)[..., None] * self.values.transpose(1, 2)
        both = _together(torch.stack([total - own, own]))
        mixed, own = times(both, self.attention.output.weight)
        return mixed, own


def _by_head(attention: Attention, v: Tensor) -> Tensor:
    """Value vectors (…, groups · d_head) as (…, h, d_head), each head with its group's."""
    heads_per_group = attention.heads // attention.groups
    return v.unflatten(-1, (attention.groups, -1)).repeat_interleave(heads_per_group, dim=-2)


def _together(heads: Tensor) -> Tensor:
    """All heads' vectors (…, h, i, d_head) side by side, as W_O takes them (…, i, h · d_head)."""
    return heads.transpose(-2, -3).flatten(-2)


def output_basis(attention: Attention) -> Tensor:
    """B (h, d_head, d): how each head's values enter the layer's vectors."""
    weight = attention.output.weight
    return weight.reshape(attention.heads, -1, weight.shape[1])
