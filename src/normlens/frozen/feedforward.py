"""FF: the feed-forward block with a slope for each neuron in place of its activation.

    F ← Σ_k ((F W_k) ⊙ r^k_i) W_down,    b ← h^b_i W_down + b_down

where k runs over the input projections (up; gate and up in a gated block). `rules` says where the
slopes r and the bias's share h^b of the neurons come from. Behind the block parts no longer factor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from normlens.errors import InputError
from normlens.frozen.activations import activation
from normlens.frozen.norm import FrozenNorm
from normlens.frozen.parts import Bias, Parts
from normlens.frozen.rules import Linearised, hidden, linearise, projections
from normlens.frozen.step import FrozenBlock, Scored, State, T
from normlens.gpu.matmul import times
from normlens.layers import FeedForward, Linear, ParallelFeedForward
from normlens.options import NOT_LINEAR, SHAPLEY


@dataclass(frozen=True)
class FrozenFeedForward(FrozenBlock):
    """A feed-forward block linearised at its real input."""

    ff: FeedForward
    neurons: Linearised
    incoming: Bias  # the part of the block's input that no token owns

    @classmethod
    def at(cls, ff: FeedForward, y: Tensor, bias: Bias, rule: str) -> FrozenFeedForward:
        """The block at input `y` (b, i, d), of which no token owns `bias`."""
        return cls(ff, linearise(ff, y, bias, rule), bias)

    def linear(self, v: Tensor) -> Tensor:
        """``Σ_k ((v W_k) ⊙ r^k_i) W_down`` of vectors (…, i, d)."""
        weights, slopes = projections(self.ff), self.neurons.slopes
        # In place: with many sources side by side the neurons are the largest tensor of all.
        neurons = times(v, weights[0]).mul_(slopes[0])
        for w, slope in zip(weights[1:], slopes[1:], strict=True):
            neurons.addcmul_(times(v, w), slope)
        return times(neurons, self.ff.down.weight)

    def from_token(self, first: int) -> FrozenFeedForward:
        """The linear face for the tokens from `first` on."""
        neurons = self.neurons
        rest = Linearised(
            tuple(slope[:, first:] for slope in neurons.slopes),
            lambda: neurons.bias[:, first:],
            neurons.hidden[:, first:],
            neurons.from_zero,
        )
        return FrozenFeedForward(self.ff, rest, self.incoming.from_token(first))

    def adjoint(self, g: Tensor) -> Tensor:
        """``Σ_k W_k ((W_down g) ⊙ r^k_i)``."""
        return self._inputs_adjoint(times(g, self.ff.down.weight.T))

    def score(self, g: Tensor) -> Scored:
        """What the block adds to the score of g (…, b, i, d)."""
        at_neurons = times(g, self.ff.down.weight.T)
        if self._all_owned:
            passed = _inner(at_neurons, self.neurons.hidden)
            return Scored(self._inputs_adjoint(at_neurons), passed)
        unowned = _inner(at_neurons, self._unowned_neurons)
        passed = _inner(at_neurons, self.neurons.hidden) - unowned
        if self.ff.down.bias is not None:
            unowned = unowned + g @ self.ff.down.bias
        return Scored(self._inputs_adjoint(at_neurons), passed, unowned)

    def _inputs_adjoint(self, at_neurons: Tensor) -> Tensor:
        weights, slopes = projections(self.ff), self.neurons.slopes
        total = times(at_neurons, weights[0].T, slopes[0])
        for w, slope in zip(weights[1:], slopes[1:], strict=True):
            total = total + times(at_neurons, w.T, slope)
        return total

    @property
    def unowned(self) -> Tensor:
        """What the block adds to the bias it is given, (b, i, d)."""
        return self.ff.down(self._unowned_neurons)

    @cached_property
    def output(self) -> Tensor:
        """The block's real output (b, i, d)."""
        return self.ff.down(self.neurons.hidden)

    @cached_property
    def outgoing(self) -> Bias:
        """The bias behind the block: the incoming one passed through it, and the block's."""
        if self._all_owned and self.incoming.is_none:
            return Bias.none(self.neurons.hidden, self.ff.down.weight.shape[1])
        return Bias.dense(self.ff.down(self.neurons.bias))

    def on_bias(self, bias: Bias | None) -> Bias:
        """The block is frozen at its bias, too."""
        return self.outgoing

    @property
    def _all_owned(self) -> bool:
        """Whether the block adds nothing of its own: no bias, and a path that starts at 0."""
        linears = (self.ff.gate, self.ff.up, self.ff.down)
        biased = any(linear is not None and linear.bias is not None for linear in linears)
        at_zero = activation(self.ff.activation).at_zero if self.ff.gate is None else 0.0
        return self.neurons.from_zero and not biased and at_zero == 0

    @cached_property
    def _unowned_neurons(self) -> Tensor:
        """The neurons' share (b, i, m) of what the block adds to the bias it is given."""
        passed = self._scaled([self.incoming.through(Linear(w)) for w in projections(self.ff)])
        return self.neurons.bias - passed

    def _scaled(self, inputs: list[Tensor]) -> Tensor:
        """``Σ_k z^k ⊙ r^k``."""
        total = inputs[0] * self.neurons.slopes[0]
        for z, slope in zip(inputs[1:], self.neurons.slopes[1:], strict=True):
            total = torch.addcmul(total, z, slope)
        return total


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """``a_i · b_i`` of neurons (…, b, i, m), without the products in memory."""
    return (a[..., None, :] @ b[..., None])[..., 0, 0]


@dataclass(frozen=True)
class SampledFeedForward(FrozenBlock):
    """A block under the rule of sampled Shapley values, which is not a linear operator."""

    ff: FeedForward
    y: Tensor  # (b, i, d), the block's real input

    @cached_property
    def output(self) -> Tensor:
        """The block's real output (b, i, d)."""
        return self.ff.down(hidden(self.ff, self.y))

    def on_bias(self, bias: Bias | None) -> Bias | None:
        """Nobody reads it behind the block: its share is sampled with the parts'."""
        return bias


@dataclass(frozen=True)
class FrozenParallelFeedForward(FrozenBlock):
    """A block beside the attention, which reads the layer's input token by token.

    Its input is the token alone, so inside the layer all of its output belongs to the token, under
    any rule; slopes are computed only when the linear operator is needed.
    """

    ff: FeedForward
    norm: FrozenNorm | None
    x: Tensor  # (b, i, d), the layer's input
    rule: str
    linearised: FrozenFeedForward | None = None  # `block`, where it is there already

    @classmethod
    def at(cls, step: ParallelFeedForward, x: Tensor, rule: str) -> FrozenParallelFeedForward:
        """The block at the layer's input `x` (b, i, d)."""
        norm = None if step.norm is None else FrozenNorm.at(step.norm, x)
        return cls(step.feed_forward, norm, x, rule)

    @cached_property
    def block(self) -> FrozenFeedForward:
        """The block linearised at its input, whose unowned part is β."""
        if self.rule == SHAPLEY:
            raise InputError(NOT_LINEAR)
        if self.linearised is not None:
            return self.linearised
        bias = Bias.none(self.x).plus(None if self.norm is None else self.norm.unowned)
        return FrozenFeedForward.at(self.ff, self._input, bias, self.rule)

    def linear(self, v: Tensor) -> Tensor:
        """The norm and the block, linearised, on the layer's input vectors (…, i, d)."""
        return self.block.linear(v if self.norm is None else self.norm.linear(v))

    def from_token(self, first: int) -> FrozenParallelFeedForward:
        """The linear face for the tokens from `first` on."""
        norm = None if self.norm is None else self.norm.from_token(first)
        block = self.block.from_token(first)
        return FrozenParallelFeedForward(self.ff, norm, self.x[:, first:], self.rule, block)

    def adjoint(self, g: Tensor) -> Tensor:
        """The gradient at the layer's input."""
        g = self.block.adjoint(g)
        return g if self.norm is None else self.norm.adjoint(g)

    def score(self, g: Tensor) -> Scored:
        """What the block adds to the score of g (…, b, i, d), β included in what no token owns."""
        block = self.block.score(g)
        if self.norm is None:
            return block
        norm = self.norm.score(block.arriving)
        if norm.unowned is None:
            return Scored(norm.arriving, block.passed, block.unowned)
        assert block.passed is not None
        # β is part of what enters the block, but no token's.
        unowned = norm.unowned if block.unowned is None else block.unowned + norm.unowned
        return Scored(norm.arriving, block.passed - norm.unowned, unowned)

    @property
    def unowned(self) -> Tensor:
        """The block's output of β and of its biases, which no token owns, (b, i, d)."""
        return self.block.outgoing.vectors

    @cached_property
    def output(self) -> Tensor:
        """The block's real output (b, i, d)."""
        return self.ff.down(hidden(self.ff, self._input))

    def on_parts(self, parts: Parts) -> Parts:
        """All of the output belongs to the token itself."""
        return Parts.of_tokens(self.output)

    def on_bias(self, bias: Bias | None) -> None:
        """Nothing of it is a bias, therefore."""

    def pass_on(self, state: State[T], act: Callable[[T], T]) -> None:
        """Read the layer's input, and add to the stream."""
        start: Any = state.start
        state.add(act(start))

    def backward(self, state: State[Tensor], act: Callable[[Tensor], Scored]) -> Scored:
        """Hand the gradient to the layer's input; the stream's goes on."""
        scored = act(state.stream)
        state.start = scored.arriving if state.start is None else state.start + scored.arriving
        return scored

    @property
    def _input(self) -> Tensor:
        return self.x if self.norm is None else self.norm.apply(self.x)
