"""ATTN: each source's value vectors, weighted by α.

    f^h(x_j) = (s_j W_V^h + b_V^h) W_O^h,    F_i(x_j) = Σ_h α^h_ij f^h(x_j),    b_i = b_O

Kobayashi et al. 2020, eq. 5. `s` is what the value projection reads. Inside a layer the value bias
belongs to the source token; across layers no token owns it (`bias_part`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

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
from normlens.gpu.matmul import halves, times
from normlens.gpu.sizes import kernels_run_on
from normlens.layers import Attention, Reach

# The weights α of an attention: as the model returned them, or formed from queries and keys.
#
#     α^h_ij = exp(s^h_ij − lse^h_i),    s^h_ij = cap(scale · q^h_i · k^h_j) + bias_ij
#
# Scores need of α only how it acts on values and on gradients. Where queries and keys are kept
# instead, tiles of α exist for a moment, and no tensor of size n² per head ever does.


#: Weights in a tile, on a CPU and on a GPU; larger tiles are not faster.
_TILE = {"cpu": 1 << 21, "cuda": 1 << 27}
#: Numbers of a query for which the kernel has room.
WIDEST_HEAD = 256


@dataclass(frozen=True)
class Weights:
    """Weights as the model returned them, a row for each target."""

    dense: Tensor  # (b, h, i, j)
    mixed: Tensor | None = None  # what the model itself mixed from its values (b, h, i, e)

    @property
    def shape(self) -> torch.Size:
        return self.dense.shape

    def of_heads(self, heads: slice) -> Tensor:
        """The weights of some heads."""
        return self.dense[:, heads]

    def mix(self, values: Tensor) -> Tensor:
        """``Σ_j α_ij v_j`` of values (…, b, h, j, e), of the same precision or a higher one."""
        alpha = self.dense
        if values.dtype == alpha.dtype:
            return alpha @ values
        if values.dim() > 4:
            return torch.stack([self.mix(each) for each in values])
        high, low = halves(values.flatten(0, 1))
        flat = alpha.flatten(0, 1)
        product = torch.bmm(flat, high, out_dtype=values.dtype)
        product += torch.bmm(flat, low, out_dtype=values.dtype)
        return product.unflatten(0, values.shape[:2])

    def spread(self, g: Tensor, groups: int) -> Tensor:
        """``Σ_h Σ_i α^h_ij g^h_i`` over the heads of each group, (…, b, group, j, e)."""
        sources = Weights(self.dense.transpose(-1, -2)).mix(g)  # (…, b, h, j, e)
        return sources.unflatten(-3, (groups, -1)).sum(-3)

    def row_sums(self, dtype: torch.dtype) -> Tensor:
        """``Σ_j α_ij`` (b, h, i): 1, unless something takes what is no token's."""
        return self.dense.sum(-1, dtype=dtype)

    def first(self, tokens: int) -> Tensor:
        """The weights of the first tokens of the first sequence."""
        return self.dense[:1, :, :tokens, :tokens]

    def from_token(self, target: int, source: int) -> Weights:
        """The weights of targets and sources from these on."""
        return Weights(self.dense[:, :, target:, source:])


@dataclass(frozen=True)
class QueryKey:
    """Queries and keys in the place of weights, with all that the model does to their products."""

    query: Tensor  # (b, h, i, e)
    key: Tensor  # (b, group, j, e)
    scale: float
    dtype: torch.dtype  # of the tiles
    mask: Tensor | None = None  # added, or where a target may look; broadcasts to (b, h, i, j)
    bias: Tensor | None = None  # added, too; broadcasts to (b, h, i, j)
    causal: bool = False  # instead of a mask: no target looks ahead
    soft_cap: float | None = None
    sinks: Tensor | None = None  # (h,), a logit that takes its share of each row
    output: Tensor | None = None  # (b, i, h, e), what the model mixed from its values
    log_sums: Tensor | None = None  # (b, h, i), lse as the model's own kernel has it

    def to(self, dtype: torch.dtype | torch.device) -> QueryKey:
        """The same with tiles of this type; q and k stay as they are."""
        return replace(self, dtype=dtype) if isinstance(dtype, torch.dtype) else self

    @property
    def device(self) -> torch.device:
        return self.query.device

    @property
    def nbytes(self) -> int:
        kept = self.query, self.key, self.output
        return sum(tensor.nbytes for tensor in kept if tensor is not None)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.query.shape[:3], self.key.shape[2]))

    @property
    def dense(self) -> Tensor:
        return self.of_heads(slice(None))

    def of_heads(self, heads: slice) -> Tensor:
        chosen = range(self.shape[1])[heads]
        of_group = self.shape[1] // self.key.shape[1]
        one_by_one = [self._with(slice(h, h + 1), h // of_group) for h in chosen]
        return torch.cat([each._tile(slice(0, self.shape[2])) for each in one_by_one], dim=1)

    def _with(self, heads: slice, group: int) -> QueryKey:
        """Heads of one group alone."""
        return replace(
            self,
            query=self.query[:, heads],
            key=self.key[:, group : group + 1],
            mask=_of_heads(self.mask, heads),
            bias=_of_heads(self.bias, heads),
            sinks=None if self.sinks is None else self.sinks[heads],
        )

    def first(self, tokens: int) -> Tensor:
        one = replace(
            self,
            query=self.query[:1, :, :tokens],
            key=self.key[:1, :, :tokens],
            mask=_of_first(self.mask, tokens),
            bias=_of_first(self.bias, tokens),
        )
        return one.dense  # among themselves, so that no weight of another source is formed

    def from_token(self, target: int, source: int) -> Weights:
        return Weights(self.dense).from_token(target, source)

    @property
    def mixed(self) -> Tensor | None:
        return None if self.output is None else self.output.transpose(1, 2)

    def mix(self, values: Tensor) -> Tensor:
        b, h, n, _ = self.shape
        mixed = values.new_empty(b, h, n, values.shape[-1])
        for rows, tile in self._tiles():
            torch.matmul(tile, values[:, :, : tile.shape[-1]], out=mixed[:, :, rows])
        return mixed

    def spread(self, g: Tensor, groups: int) -> Tensor:
        lead = g.shape[:-4]
        b, j = self.shape[0], self.shape[3]
        together = g.reshape(-1, *g.shape[-4:]).permute(1, 2, 3, 0, 4).flatten(3)  # (b, h, i, …·e)
        if self._takes_kernel:
            from normlens.gpu import attention  # Triton is slow to import

            each = together.split(g.shape[-1], -1)
            sources = torch.cat([attention.spread(self, one) for one in each], -1)
        else:
            sources = g.new_zeros(b, groups, j, together.shape[-1])
            for rows, tile in self._tiles():
                # The rows of a group's heads are added up by the product.
                by_group = tile.unflatten(1, (groups, -1)).flatten(2, 3)
                arrived = together[:, :, rows].unflatten(1, (groups, -1)).flatten(2, 3)
                seen = sources[:, :, : tile.shape[-1]]
                seen += by_group.transpose(-1, -2) @ arrived
        shape = b, groups, j, -1, g.shape[-1]
        return sources.view(shape).permute(3, 0, 1, 2, 4).reshape(*lead, b, groups, j, g.shape[-1])

    def row_sums(self, dtype: torch.dtype) -> Tensor:
        if self.sinks is None:
            return self.query.new_ones(self.shape[:3], dtype=dtype)
        ones = self.query.new_ones(*self.shape[:2], self.shape[3], 1, dtype=self.dtype)
        return self.mix(ones)[..., 0].to(dtype)

    def _tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """The weights of some targets at a time (b, h, i, j); causal ones of the sources so far."""
        b, h, n, j = self.shape
        count = max(1, _TILE.get(self.device.type, _TILE["cpu"]) // (b * h * j))
        for first in range(0, n, count):
            rows = slice(first, min(first + count, n))
            yield rows, self._tile(rows)

    def _tile(self, rows: slice) -> Tensor:
        b, h, _, n = self.shape
        last = rows.stop if self.causal else n  # no source ahead of all targets is looked at
        query = self.query[:, :, rows].to(self.dtype) * self.scale
        key = self.key[:, :, :last].to(self.dtype)
        grouped = query.unflatten(1, (key.shape[1], -1)).flatten(2, 3)  # (b, group, h/g · i, e)
        scores = (grouped @ key.transpose(-1, -2)).view(b, h, -1, last)
        if self.soft_cap is not None:
            scores = scores.div_(self.soft_cap).tanh_().mul_(self.soft_cap)
        if self.bias is not None:
            scores += self.bias[..., rows if self.bias.shape[-2] > 1 else slice(None), :last]
        # The least number, and not −∞: a row that sees nothing is padding, and must not be NaN.
        least = torch.finfo(self.dtype).min
        if self.causal:
            ahead = scores.new_ones(scores.shape[2], scores.shape[2], dtype=torch.bool).triu_(1)
            scores[..., rows.start :].masked_fill_(ahead, least)
        elif self.mask is not None:
            mask = self.mask[..., rows if self.mask.shape[-2] > 1 else slice(None), :]
            if mask.dtype == torch.bool:
                scores.masked_fill_(~mask, least)
            else:
                scores = (scores + mask).clamp_min_(least)
        if self.sinks is not None:
            taken = self.sinks.to(self.dtype).view(1, -1, 1, 1).expand(b, -1, scores.shape[2], 1)
            return torch.cat([scores, taken], dim=-1).softmax(-1)[..., :-1]
        return scores.softmax(-1)

    @property
    def _takes_kernel(self) -> bool:
        """Whether a kernel spreads gradients without forming tiles."""
        is_half = self.query.dtype in (torch.float16, torch.bfloat16)
        is_plain = self.mask is None or self.mask.dtype == torch.bool
        fits = self.bias is None and self.query.shape[-1] <= WIDEST_HEAD
        return is_half and is_plain and fits and kernels_run_on(self.device, torch.float32)


#: What an attention gave its sources.
Alpha = Weights | QueryKey


def alpha_of(given: Tensor | Alpha) -> Alpha:
    """Weights as a model returned them, or what stands for them."""
    return Weights(given) if isinstance(given, Tensor) else given


def _of_first(given: Tensor | None, tokens: int) -> Tensor | None:
    """What belongs to the first targets and sources of the first sequence."""
    return given if given is None else given[:1, :, :tokens, :tokens]


def _of_heads(given: Tensor | None, heads: slice) -> Tensor | None:
    """What is the same for all heads, or that of some."""
    return given if given is None or given.shape[1] == 1 else given[:, heads]


#: Pairs of tokens whose flow is computed at a time, of some heads; more of them are not faster.
_FLOW_PAIRS = 1 << 20


@dataclass(frozen=True)
class FrozenAttention(FrozenBlock):
    """An attention with the weights α that the model gave its sources."""

    attention: Attention
    alpha: Alpha  # (b, h, i, j), as a tensor or by what it is formed from
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
        """Each head's value vectors (b, j, h, d_head), those of its group."""
        heads, groups = self.attention.heads, self.attention.groups
        by_group = self.grouped.unflatten(-1, (groups, -1))
        return by_group.repeat_interleave(heads // groups, dim=-2)

    def linear(self, v: Tensor) -> Tensor:
        """``Σ_j Σ_h α^h_ij v_j W_V^h W_O^h`` of vectors (…, b, j, d).

        One product with α for all vectors that stand side by side: (b, g, h/g · i, j) times
        (b, g, j, … · d_head), where the heads of a group g read the same values.
        """
        lead, groups = v.shape[:-3], self.attention.groups
        values = self.reading.linear(v).unflatten(-1, (groups, -1))
        values = values.reshape(-1, *values.shape[-4:]).permute(1, 3, 2, 0, 4)  # (b, g, j, …, e)
        b, _, n, many, width = values.shape
        alpha = self.alpha.dense.unflatten(1, (groups, -1)).flatten(2, 3)  # rows of a group's heads
        mixed = Weights(alpha).mix(values.reshape(b, groups, n, many * width))
        mixed = mixed.view(b, groups, -1, self.alpha.shape[2], many, width)
        heads = mixed.permute(4, 0, 3, 1, 2, 5).reshape(*lead, b, self.alpha.shape[2], -1)
        return times(heads, self.attention.output.weight)

    def from_token(self, first: int) -> FrozenAttention:
        """The linear face for the tokens from `first` on; another sequence stays whole."""
        begin = first if self.attention.source is None else 0
        alpha, grouped = self.alpha.from_token(first, begin), self.grouped[:, begin:]
        return replace(self, alpha=alpha, grouped=grouped, reading=self.reading.from_token(begin))

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
        """``Σ_j α^h_ij v^h_j``, what each head reads (b, h, i, d_head), value biases included.

        As the model mixed it, in its precision, where that is there.
        """
        mixed = self.alpha.mixed
        return self.alpha.mix(self.values.transpose(1, 2)) if mixed is None else mixed

    @cached_property
    def output(self) -> Tensor:
        """The attention's real output (b, i, d)."""
        output = self.attention.output
        if self.parts:
            return plus(plus(*self._sums), output.bias)
        heads = _together(self.head_sums).to(self.grouped.dtype)
        return plus(times(heads, output.weight), output.bias)

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
        grouped = self.alpha.spread(at_heads, self.attention.groups)  # (…, b, group, j, d_head)
        arriving = self.reading.adjoint(grouped.transpose(-2, -3).flatten(-2))
        return Scored(arriving, passed, bias_part, heads, at_heads)

    def flow(self, at_heads: Tensor) -> Tensor:
        """``g_i · Σ_h α^h_ij s_j W_V^h W_O^h``: how much of a score goes from j to i.

        Shape (…, b, i, j), a few heads at a time; `at_heads` is g as it arrives there (`score`). No
        token owns value biases, nor what is `before` the attention.
        """
        count = self.attention.heads
        step = max(1, _FLOW_PAIRS * count // self.alpha.shape.numel())
        total = self.head_flow(at_heads, slice(0, step)).sum(-3)
        for first in range(step, count, step):
            total += self.head_flow(at_heads, slice(first, first + step)).sum(-3)
        return total

    def head_flow(self, at_heads: Tensor, heads: slice = slice(None)) -> Tensor:
        """The same of each head, or of some, (…, b, h, i, j)."""
        bias = self._unowned_values(self.before)
        values = self.values if bias is None else self.values - bias
        some = values[:, :, heads].permute(0, 2, 3, 1)  # (b, h, d_head, j)
        return (at_heads[..., heads, :, :] @ some).mul_(self.alpha.of_heads(heads))

    def _unowned_values(self, before: Tensor | None) -> Tensor | None:
        """The share of the values that no token owns: biases, and `before` of the input.

        Shape (h, d_head); where each source has its own, (b, j, h, d_head).
        """
        values = self.reading.affine(before)
        return None if values is None else replace(self, grouped=values).values

    @cached_property
    def _unowned_read(self) -> Tensor | None:
        """What each head reads that no token owns, (b, h, i, d_head)."""
        values = self._unowned_values(None)
        return None if values is None else self._read(values)

    def _read(self, values: Tensor) -> Tensor:
        """What each head reads, (b, h, i, d_head), of values (h, d_head) or (b, j, h, d_head)."""
        if values.dim() == 2:  # a row of α sums to 1, unless something takes what is no token's
            return self.alpha.row_sums(values.dtype)[..., None] * values[:, None]
        return self.alpha.mix(values.transpose(1, 2))

    def on_parts(self, parts: Parts) -> Parts:
        """The sources' parts, factored; what the targets held before passes by the residual."""
        alpha, (mixed, own) = self.alpha.dense, self._sums
        if own is not None and parts.mixed is not None:
            raise ValueError("an attention over tokens that are mixed already does not factor")
        others = alpha.permute(0, 3, 2, 1).clone(memory_format=torch.contiguous_format)
        if own is not None:
            others.diagonal(dim1=1, dim2=2).zero_()
        factors = Factors(
            weights=others,
            scale=alpha.new_ones(alpha.shape[::2]),
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
        alpha = self.alpha.dense[..., first:last].permute(3, 0, 2, 1)  # (j, b, i, h)
        values = self.values[:, first:last].transpose(0, 1)[:, :, None]  # (j, b, 1, h, d_head)
        return (alpha[..., None] * values).flatten(-2) @ self.attention.output.weight

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor | None]:
        """``Σ_{j≠i} F_i(x_j)`` and ``F_i(x_i)``; None where sources are not the targets' tokens.

        Sums over sources are taken before W_O: v is H times smaller than f.
        """
        total = self.head_sums.to(self.grouped.dtype)
        if self.attention.source is not None:
            return times(_together(total), self.attention.output.weight), None
        own = self.alpha.dense.diagonal(dim1=2, dim2=3)[..., None] * self.values.transpose(1, 2)
        both = _together(torch.stack([total - own, own]))
        mixed, own = times(both, self.attention.output.weight)
        return mixed, own


def _together(heads: Tensor) -> Tensor:
    """All heads' vectors (…, h, i, d_head) side by side, as W_O takes them (…, i, h · d_head)."""
    return heads.transpose(-2, -3).flatten(-2)


def output_basis(attention: Attention) -> Tensor:
    """B (h, d_head, d): how each head's values enter the layer's vectors."""
    weight = attention.output.weight
    return weight.reshape(attention.heads, -1, weight.shape[1])
