"""FF: the feed-forward block with a slope for each neuron in place of its activation.

    F ← Σ_k ((F W_k) ⊙ r^k_i) W_down,    b ← (Σ_k (b W_k + b_k) ⊙ r^k_i + c_i) W_down + b_down

where k runs over the input projections (up; gate and up in a gated block). `activations` says where
the slopes r and the constant c come from. Behind the block parts no longer factor. Experts are such
blocks, each at the tokens that used it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from normlens.errors import InputError
from normlens.frozen.activations import IG_BIAS, Linearised, Nonlinearity, activation
from normlens.frozen.parts import (
    Chain,
    FrozenBlock,
    FrozenNorm,
    Parts,
    Scored,
    State,
    T,
    inner,
    plus,
)
from normlens.frozen.tiles import FeedForwardBlock, Job
from normlens.gpu.matmul import is_rounded_once, splits, times, wide_product
from normlens.layers import Experts, FeedForward, ParallelFeedForward
from normlens.options import NOT_LINEAR, SHAPLEY


def nonlinearity(ff: FeedForward) -> Nonlinearity:
    """What a block's neurons make of their arguments."""
    return Nonlinearity(activation(ff.activation), ff.limit)


def hidden(ff: FeedForward, y: Tensor) -> Tensor:
    """The real hidden vector of the block for input `y`, (b, i, m)."""
    return nonlinearity(ff).value(*(linear(y) for linear in ff.inputs))


@dataclass(frozen=True)
class FrozenFeedForward(FeedForwardBlock):
    """A feed-forward block linearised at its real input."""

    ff: FeedForward
    neurons: Linearised

    @classmethod
    def at(cls, ff: FeedForward, y: Tensor, bias: Tensor | None, rule: str) -> FrozenFeedForward:
        """The block at input `y` (b, i, d), of which no token owns `bias`."""
        z, start = list[Tensor](), list[Tensor]()
        before = None
        if rule == IG_BIAS:
            before = torch.zeros_like(y) if bias is None else bias.expand_as(y)
        for linear in ff.inputs:
            z.append(linear(y))
            start += [] if before is None else [linear(before)]
        return cls(ff, nonlinearity(ff).linearised(rule, z, start))

    def linear(self, v: Tensor) -> Tensor:
        """``Σ_k ((v W_k) ⊙ r^k_i) W_down`` of vectors (…, i, d)."""
        return times(self._neurons(v), self.ff.down.weight)

    @property
    def branches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """W_k and r^k of each input projection."""
        for linear, slope in zip(self.ff.inputs, self.neurons.slopes, strict=True):
            yield linear.weight, slope

    def _neurons(self, v: Tensor) -> Tensor:
        (first, r), *gated = self.branches
        # In place: with many sources side by side the neurons are the largest tensor of all.
        neurons = times(v, first).mul_(r)
        for w, slope in gated:
            neurons.addcmul_(times(v, w), slope)
        return neurons

    def from_token(self, first: int) -> FrozenFeedForward:
        """The linear face for the tokens from `first` on."""
        return FrozenFeedForward(self.ff, self.neurons.at_tokens(slice(first, None)))

    def score(self, g: Tensor) -> Scored:
        """What the block adds to the score of g (…, b, i, d)."""
        (first, r), *gated = self.branches
        at_neurons = times(g, self.ff.down.weight.T)
        arriving = times(at_neurons, first.T, r)
        for w, slope in gated:
            arriving = arriving + times(at_neurons, w.T, slope)
        passed = _inner(at_neurons, self.neurons.hidden)
        bias_part = None if self.ff.down.bias is None else g @ self.ff.down.bias
        if self.own is not None:
            of_neurons = _inner(at_neurons, self.own)
            passed, bias_part = passed - of_neurons, plus(bias_part, of_neurons)
        return Scored(arriving, passed, bias_part)

    @cached_property
    def own(self) -> Tensor | None:
        """``Σ_k b_k ⊙ r^k + c``: what the neurons owe to the block itself, (b, i, m)."""
        own = self.neurons.constant
        for linear, slope in zip(self.ff.inputs, self.neurons.slopes, strict=True):
            own = own if linear.bias is None else plus(own, linear.bias * slope)
        return own

    @property
    def bias_part(self) -> Tensor | None:
        """What the block adds to the bias it is given, (b, i, d) or (d,)."""
        return self.ff.down.bias if self.own is None else self.ff.down(self.own)

    @cached_property
    def output(self) -> Tensor:
        """The block's real output (b, i, d)."""
        return self.ff.down(self.neurons.hidden)

    def affine(self, v: Tensor | None) -> Tensor | None:
        """A bias (b, i, d) or (d,) behind the block, by one product with W_down."""
        if v is None:
            return self.bias_part
        neurons = self._neurons(v.expand(*self.neurons.hidden.shape[:-1], -1))
        return self.ff.down(plus(neurons, self.own))

    def rows(self, job: Job, index: int, sources: slice, count: int) -> list[Tensor]:
        """``Q^k_jh = U_jh W_k`` of some of a sequence's `count` sources, each (j, h, m)."""
        rows = []
        if job.uses_head_products(count):
            v = job.factors.heads[index, sources].transpose(0, 1)  # (h, j, d_head)
            for k, w in enumerate(job.formed_products):
                out = job.buffers.take(f"rows {k}", w, *v.shape[:2], w.shape[-1])
                rows.append(torch.bmm(v, w, out=out).transpose(0, 1))
            return rows
        u = job.factors.values[index, sources]  # (j, h, d)
        for k, linear in enumerate(self.ff.inputs):
            w = linear.weight
            out = job.buffers.take(f"rows {k}", w, u.shape[0] * u.shape[1], w.shape[1])
            rows.append(torch.mm(u.flatten(0, 1), w, out=out).view(*u.shape[:2], -1))
        return rows

    def tile(
        self, job: Job, index: int, targets: slice, sources: slice, rows: Iterable[Tensor]
    ) -> Tensor:
        """``Σ_k ((s_i Σ_h A_ijh Q^k_jh) ⊙ r^k_i) W_down``, (j, i, d)."""
        weights = job.factors.weights[index, sources, targets]  # (j, i, h)
        scale = job.factors.scale[index, targets, None]
        down = self.ff.down.weight
        j, i, _ = weights.shape
        m, d = down.shape
        hidden = job.buffers.take("hidden", down, j, i, m)
        for k, (q, slope) in enumerate(zip(rows, self.neurons.slopes, strict=True)):
            # s_i goes into the slopes: both belong to the target, and the slopes are smaller.
            scaled = slope[index, targets] * scale  # (i, m)
            if k == 0:
                torch.bmm(weights, q, out=hidden).mul_(scaled)
            else:
                mixed = job.buffers.take("gated", down, j, i, m)
                hidden.addcmul_(torch.bmm(weights, q, out=mixed), scaled)
        out = job.buffers.take("out", down, j * i, d)
        return torch.mm(hidden.view(j * i, m), down, out=out).view(j, i, d)

    def matrices(self, index: int, targets: slice) -> Tensor:
        """``M_i = Σ_k W_k diag(r^k_i) W_down`` of some targets, (i, d, d)."""
        up, down = self.ff.up.weight, self.ff.down.weight
        matrices = up.new_empty(targets.stop - targets.start, *up.shape[:1], *down.shape[1:])
        for matrix, target in zip(matrices, range(targets.start, targets.stop), strict=True):
            scaled = torch.zeros_like(up)
            for w, slope in self.branches:
                scaled.addcmul_(w, slope[index, target])
            torch.mm(scaled, down, out=matrix)
        return matrices


#: Numbers in a tensor of neurons, on a CPU and on a GPU; beyond them slopes are formed for some
#: tokens at a time.
NEURONS = {"cpu": 1 << 21, "cuda": 1 << 25}


def _most_neurons(y: Tensor) -> int:
    return NEURONS.get(y.device.type, NEURONS["cpu"])


@dataclass(frozen=True)
class ChunkedFeedForward(FrozenBlock):
    """A block whose slopes are formed whenever they are needed, for some tokens at a time.

    It takes the place of `FrozenFeedForward` for scores of long texts, whose neurons would take
    many times as much memory as their vectors.
    """

    ff: FeedForward
    y: Tensor  # (b, i, d), the block's real input
    bias: Tensor | None  # (b, i, d) or (d,), of which no token owns anything
    rule: str

    def _rows(self) -> Iterator[slice]:
        b, n, _ = self.y.shape
        count = max(1, _most_neurons(self.y) // (b * self.ff.down.weight.shape[0]))
        for first in range(0, n, count):
            yield slice(first, first + count)

    def _at(self, rows: slice) -> FrozenFeedForward:
        before = None if self.bias is None else self.bias.expand_as(self.y)[:, rows]
        return FrozenFeedForward.at(self.ff, self.y[:, rows], before, self.rule)

    def _chunks(self) -> Iterator[tuple[slice, FrozenFeedForward]]:
        for rows in self._rows():
            yield rows, self._at(rows)

    def _score(self, rows: slice, g: Tensor) -> Scored:
        """The score of some tokens' block; its slopes stay inside a kernel where it can form them.

        There gradients are rounded to bfloat16, as the weights are.
        """
        down, inputs = self.ff.down, self.ff.inputs
        if is_rounded_once() and splits(down.weight) and all(w.bias is None for w in inputs):
            at_neurons = times(g, down.weight.T)
            z = [linear(self.y[:, rows]) for linear in inputs]
            if (found := nonlinearity(self.ff).scored(self.rule, z, at_neurons)) is not None:
                weighted, passed = found
                arriving = [
                    wide_product(each.flatten(0, -2), linear.weight.T)
                    for each, linear in zip(weighted, inputs, strict=True)
                ]
                total = arriving[0].add_(arriving[1]).view(g.shape)
                return Scored(total, passed, inner(g, down.bias))
        return self._at(rows).score(g)

    def linear(self, v: Tensor) -> Tensor:
        """The block on vectors (…, i, d)."""
        return torch.cat([block.linear(v[..., rows, :]) for rows, block in self._chunks()], dim=-2)

    def score(self, g: Tensor) -> Scored:
        """What the block adds to the score of g (…, b, i, d)."""
        scored = [self._score(rows, g[..., rows, :]) for rows in self._rows()]

        def joined(name: str, dim: int) -> Any:
            found = [getattr(each, name) for each in scored]
            return None if found[0] is None else torch.cat(found, dim)

        return Scored(joined("arriving", -2), joined("passed", -1), joined("bias_part", -1))

    @property
    def bias_part(self) -> Tensor | None:
        """What the block adds to the bias it is given, (b, i, d)."""
        found = [(self.y[:, rows], block.bias_part) for rows, block in self._chunks()]
        if found[0][1] is None:
            return None
        return torch.cat([share.expand_as(y) for y, share in found if share is not None], dim=1)

    @property
    def output(self) -> Tensor:
        """The block's real output (b, i, d)."""
        return torch.cat([block.output for _, block in self._chunks()], dim=1)

    def from_token(self, first: int) -> ChunkedFeedForward:
        """The linear face for the tokens from `first` on."""
        bias = self.bias
        bias = bias if bias is None or bias.dim() == 1 else bias[:, first:]
        return replace(self, y=self.y[:, first:], bias=bias)


def frozen_feed_forward(
    ff: FeedForward, y: Tensor, bias: Tensor | None, rule: str, parts: bool = False
) -> FrozenFeedForward | ChunkedFeedForward:
    """The block at input `y` (b, i, d); without `parts`, a large one in chunks."""
    is_large = y.shape[:-1].numel() * ff.down.weight.shape[0] > _most_neurons(y)
    if not parts and (is_large or is_rounded_once()):
        return ChunkedFeedForward(ff, y, bias, rule)
    return FrozenFeedForward.at(ff, y, bias, rule)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """``a_i · b_i`` of neurons (…, b, i, m), without the products in memory."""
    return (a[..., None, :] @ b[..., None])[..., 0, 0]


@dataclass(frozen=True)
class SampledFeedForward(FeedForwardBlock):
    """A block under the rule of sampled Shapley values, which is not a linear operator."""

    ff: FeedForward
    y: Tensor  # (b, i, d), the block's real input

    @cached_property
    def output(self) -> Tensor:
        """The block's real output (b, i, d)."""
        return self.ff.down(hidden(self.ff, self.y))


@dataclass(frozen=True)
class FrozenParallelFeedForward(FrozenBlock):
    """A block beside the attention, which reads the layer's input token by token.

    Its input is the token alone, so inside the layer all of its output belongs to the token, under
    any rule; slopes are computed only when the linear operator is needed.
    """

    ff: FeedForward
    y: Tensor  # (b, i, d), the block's real input, behind the norm
    rule: str
    norm: FrozenNorm | None
    linearised: Chain | None = None  # `chain`, where it is there already

    @classmethod
    def at(cls, step: ParallelFeedForward, x: Tensor, rule: str) -> FrozenParallelFeedForward:
        """The block at the layer's input `x` (b, i, d)."""
        norm = None if step.norm is None else FrozenNorm.at(step.norm, x)
        return cls(step.feed_forward, x if norm is None else norm.apply(x), rule, norm)

    @cached_property
    def chain(self) -> Chain:
        """The norm and the block, linearised at its input, whose unowned part is β."""
        if self.rule == SHAPLEY:
            raise InputError(NOT_LINEAR)
        if self.linearised is not None:
            return self.linearised
        if self.norm is None:
            return Chain((frozen_feed_forward(self.ff, self.y, None, self.rule),))
        block = frozen_feed_forward(self.ff, self.y, self.norm.bias_part, self.rule)
        return Chain((self.norm, block))

    def linear(self, v: Tensor) -> Tensor:
        """The norm and the block, linearised, on the layer's input vectors (…, i, d)."""
        return self.chain.linear(v)

    def from_token(self, first: int) -> FrozenParallelFeedForward:
        """The linear face for the tokens from `first` on."""
        return replace(self, y=self.y[:, first:], linearised=self.chain.from_token(first))

    def score(self, g: Tensor) -> Scored:
        """What the block adds to the score of g (…, b, i, d), β included in what no token owns."""
        return self.chain.score(g)

    @property
    def bias_part(self) -> Tensor | None:
        """The block's output of β and of its biases, which no token owns, (b, i, d)."""
        return self.chain.bias_part

    @cached_property
    def output(self) -> Tensor:
        """The block's real output (b, i, d)."""
        return self.ff.down(hidden(self.ff, self.y))

    def on_parts(self, parts: Parts) -> Parts:
        """All of the output belongs to the token itself."""
        return Parts(self.output)

    def pass_on(self, state: State[T], act: Callable[[T], T]) -> None:
        """Read the layer's input, and add to the stream."""
        start: Any = state.start
        state.stream = plus(state.stream, act(start))

    def backward(self, state: State[Tensor]) -> Scored:
        """Hand the gradient to the layer's input; the stream's goes on."""
        scored = self.score(state.stream)
        state.start = plus(scored.arriving, state.start)
        return scored


# FF of a mixture of experts: each token has the blocks that it used, with their weights.
#
#     F ← Σ_e w_ie FF_e(F),    b ← Σ_e w_ie FF_e(b)
#
# The routing is taken as given, as α is: which experts a token used and their weights w are those
# of the run. What is left is a gated block with the neurons of target i's experts, so each expert
# is linearised at the tokens that used it, and tokens are grouped by expert.


@dataclass(frozen=True)
class Used:
    """One expert at the tokens that used it."""

    experts: Experts
    expert: int | None  # None: the shared one
    rows: Tensor  # (t,) the tokens, counted through the batch, on the CPU and in order
    places: Tensor  # the same on the device
    inside: Tensor  # what the expert's input is multiplied by, (t, 1)
    outside: Tensor  # what its output is multiplied by, (t, 1)
    neurons: Linearised  # of (1, t, d) vectors

    @property
    def block(self) -> FrozenFeedForward:
        """The expert, its weights converted now, on the vectors (…, 1, t, d) of its tokens."""
        return FrozenFeedForward(self.experts.member(self.expert), self.neurons)

    def at(self, some: Tensor | slice, rows: Tensor, places: Tensor) -> Used:
        """The expert at some of its tokens, which are counted anew."""
        inside, outside, neurons = self.inside[some], self.outside[some], self.neurons
        given = rows, places, inside, outside, neurons.at_tokens(some)
        return Used(self.experts, self.expert, *given)


@dataclass(frozen=True)
class FrozenExperts(FeedForwardBlock):
    """A mixture of experts with the routing of one run, linearised at its real input."""

    ff: Experts
    shape: tuple[int, int]  # sequences, tokens
    used: tuple[Used, ...]

    @classmethod
    def at(cls, experts: Experts, y: Tensor, bias: Tensor | None, rule: str) -> FrozenExperts:
        """The block at input `y` (b, i, d), of which no token owns `bias`."""
        b, n, d = y.shape
        vectors = y.reshape(b * n, d)
        before = None if bias is None else bias.expand_as(y).reshape(b * n, d)
        used = []
        for expert, rows, weights in _groups(experts, y):
            places, inside, outside = rows.to(y.device), torch.ones_like(weights), weights
            if experts.weighs_input and expert is not None:
                inside, outside = outside, inside
            here = vectors[places][None] * inside
            incoming = None if before is None else before[places][None] * inside
            block = FrozenFeedForward.at(experts.member(expert), here, incoming, rule)
            used.append(Used(experts, expert, rows, places, inside, outside, block.neurons))
        return cls(experts, (b, n), tuple(used))

    def linear(self, v: Tensor) -> Tensor:
        """``Σ_e w_ie Σ_k ((v W^e_k) ⊙ r^ke_i) W^e_down`` of vectors (…, b, i, d)."""
        flat = v.flatten(-3, -2)
        total = torch.zeros_like(flat)
        for used in self.used:
            rows = (flat[..., used.places, :] * used.inside).unsqueeze(-3)
            total.index_add_(-2, used.places, used.block.linear(rows).squeeze(-3) * used.outside)
        return total.unflatten(-2, self.shape)

    def score(self, g: Tensor) -> Scored:
        """What the block adds to the score of g (…, b, i, d)."""
        flat = g.flatten(-3, -2)
        arriving, passed = torch.zeros_like(flat), flat.new_zeros(flat.shape[:-1])
        bias_part: Tensor | None = None
        for used in self.used:
            scored = used.block.score((flat[..., used.places, :] * used.outside).unsqueeze(-3))
            arriving.index_add_(-2, used.places, scored.arriving.squeeze(-3) * used.inside)
            assert scored.passed is not None
            passed.index_add_(-1, used.places, scored.passed.squeeze(-2))
            if scored.bias_part is not None:
                share = scored.bias_part.squeeze(-2)
                bias_part = torch.zeros_like(passed) if bias_part is None else bias_part
                bias_part.index_add_(-1, used.places, share)
        return Scored(
            arriving.unflatten(-2, self.shape),
            passed.unflatten(-1, self.shape),
            None if bias_part is None else bias_part.unflatten(-1, self.shape),
        )

    def from_token(self, first: int) -> FrozenExperts:
        """The linear face for the tokens from `first` on."""
        b, n = self.shape
        some = []
        for used in self.used:
            sequence, token = used.rows // n, used.rows % n
            chosen = (token >= first).nonzero()[:, 0]
            rows = sequence[chosen] * (n - first) + token[chosen] - first
            if len(rows):
                some.append(used.at(chosen.to(used.places), rows, rows.to(used.places)))
        return FrozenExperts(self.ff, (b, n - first), tuple(some))

    @cached_property
    def bias_part(self) -> Tensor | None:
        """What the block adds to the bias it is given, (b, i, d)."""
        return self._sum(lambda block: block.bias_part)

    @cached_property
    def output(self) -> Tensor:
        """The block's real output (b, i, d)."""
        total = self._sum(lambda block: block.output)
        assert total is not None
        return total

    def affine(self, v: Tensor | None) -> Tensor | None:
        """A bias (b, i, d) or (d,) behind the block."""
        return super().affine(None if v is None else v.expand(*self.shape, -1))

    # Parts behind a mixture of experts, for a tile of targets and sources.
    #
    # Each target has its own experts, so no rows of neurons are shared by all targets of a source.
    # Inside a tile the parts themselves are formed, and targets that use the same expert pass it
    # together. For many sources, one matrix is formed per target.

    def tile(
        self, job: Job, index: int, targets: slice, sources: slice, rows: Iterable[Tensor]
    ) -> Tensor:
        """``Σ_e w_ie Σ_k ((F_i(x_j) W^e_k) ⊙ r^ke_i) W^e_down``, (j, i, d)."""
        parts = torch.bmm(*job.factors.tile(index, targets, sources))  # (j, i, d)
        return self._at_targets(index, targets).linear(parts[:, None])[:, 0]

    def matrices(self, index: int, targets: slice) -> Tensor:
        """``M_i = Σ_e w_ie Σ_k W^e_k diag(r^ke_i) W^e_down`` of some targets, (i, d, d)."""
        d = self.ff.members[0].up.weight.shape[0]
        matrices = self.used[0].inside.new_zeros(targets.stop - targets.start, d, d)
        for used in self._at_targets(index, targets).used:
            block, weights = used.block, used.inside * used.outside
            for row, target in enumerate(used.rows.tolist()):
                scaled = torch.zeros_like(block.ff.up.weight)
                for w, slope in block.branches:
                    scaled.addcmul_(w, slope[0, row] * weights[row])
                matrices[target].addmm_(scaled, block.ff.down.weight)
        return matrices

    def _at_targets(self, index: int, targets: slice) -> FrozenExperts:
        """The block of some targets of one sequence."""
        first, last = (index * self.shape[1] + end for end in (targets.start, targets.stop))
        used = []
        for each in self.used:
            start, stop = torch.searchsorted(each.rows, torch.tensor([first, last])).tolist()
            if start < stop:
                some = slice(start, stop)
                used.append(each.at(some, each.rows[some] - first, each.places[some] - first))
        return FrozenExperts(self.ff, (1, last - first), tuple(used))

    def _sum(self, of: Callable[[FrozenFeedForward], Tensor | None]) -> Tensor | None:
        """``Σ_e w_ie v^e_i`` of each expert's vectors (1, t, d), as (b, i, d); None of none."""
        total: Tensor | None = None
        for used in self.used:
            vectors = of(used.block)
            if vectors is not None:
                weighted = vectors.expand(1, len(used.rows), -1)[0] * used.outside
                if total is None:
                    total = weighted.new_zeros(prod(self.shape), weighted.shape[-1])
                total.index_add_(0, used.places, weighted)
        return None if total is None else total.unflatten(0, self.shape)


def _groups(experts: Experts, y: Tensor) -> Iterator[tuple[int | None, Tensor, Tensor]]:
    """Each expert that was used, its tokens in order, and their weights (t, 1)."""
    routing, (b, n, _) = experts.routing, y.shape
    if routing is None:
        raise InputError(
            "a layer of experts is analysed with the routing of a run; take it from a trace"
        )
    count = routing.experts.shape[-1]
    chosen = routing.experts.reshape(b * n * count).cpu()
    weights = routing.weights.to(y.dtype).reshape(b * n * count, 1) * experts.scale
    order = torch.argsort(chosen, stable=True)
    sizes = torch.bincount(chosen, minlength=len(experts.members)).tolist()
    for expert, slots in enumerate(order.split(sizes)):
        if len(slots) and expert < len(experts.members):
            yield expert, slots // count, weights[slots.to(y.device)]
    if experts.shared is not None:
        shared = torch.ones(b, n) if routing.shared is None else routing.shared
        yield None, torch.arange(b * n), shared.to(y).reshape(b * n, 1) * experts.scale
