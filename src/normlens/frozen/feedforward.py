"""FF: the feed-forward block with a slope for each neuron in place of its activation.

    F ← Σ_k ((F W_k) ⊙ r^k_i) W_down,    b ← (Σ_k (b W_k + b_k) ⊙ r^k_i + c_i) W_down + b_down

where k runs over the input projections (up; gate and up in a gated block). `activations` says where
the slopes r and the constant c come from. Behind the block parts no longer factor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
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
    plus,
)
from normlens.frozen.tiles import FeedForwardBlock, Job
from normlens.gpu.matmul import times
from normlens.layers import FeedForward, ParallelFeedForward
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
        z, start = [linear(y) for linear in ff.inputs], list[Tensor]()
        if rule == IG_BIAS:
            before = torch.zeros_like(y) if bias is None else bias.expand_as(y)
            start = [linear(before) for linear in ff.inputs]
        return cls(ff, nonlinearity(ff).linearised(rule, z, start))

    def linear(self, v: Tensor) -> Tensor:
        """``Σ_k ((v W_k) ⊙ r^k_i) W_down`` of vectors (…, i, d)."""
        return times(self._neurons(v), self.ff.down.weight)

    @property
    def branches(self) -> list[tuple[Tensor, Tensor]]:
        """W_k and r^k of each input projection."""
        return list(zip(self.ff.projections, self.neurons.slopes, strict=True))

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
        for k, w in enumerate(self.ff.projections):
            out = job.buffers.take(f"rows {k}", w, u.shape[0] * u.shape[1], w.shape[1])
            rows.append(torch.mm(u.flatten(0, 1), w, out=out).view(*u.shape[:2], -1))
        return rows

    def tile(
        self, job: Job, index: int, targets: slice, sources: slice, rows: list[Tensor]
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
            return Chain((FrozenFeedForward.at(self.ff, self.y, None, self.rule),))
        block = FrozenFeedForward.at(self.ff, self.y, self.norm.bias_part, self.rule)
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
