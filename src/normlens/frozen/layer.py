"""The frozen layer: the one object that every analysis of a layer stands on.

For one input, α, the deviation of every norm and the slopes of every activation are taken as given.
What is left is affine, and each component says in its own module how it acts on vectors (`linear`),
on the score of a gradient (`score`), what no token owns (`bias_part`), and how parts pass it
(`on_parts`). Norm maps take a frozen layer's parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normlens import layers as components
from normlens.errors import InputError
from normlens.frozen import feedforward
from normlens.frozen.attention import Alpha, FrozenAttention
from normlens.frozen.parts import (
    FrozenBlock,
    FrozenBranch,
    FrozenResidual,
    FrozenStep,
    State,
    frozen_at,
)
from normlens.frozen.tiles import FeedForwardBlock
from normlens.options import NOT_BY_SOURCE, NOT_FOR_EXPERTS, SHAPLEY

#: Is shown the index of a step and the vectors (…, b, i, d) behind it.
Observer = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class FrozenLayer:
    """A layer's components in order, frozen at the vectors that the model computed."""

    layer: components.Layer
    x: Tensor  # (b, i, d), the layer's input
    steps: tuple[FrozenStep, ...]  # of `layer.steps`, as far as anybody asked for them
    lengths: tuple[int, ...]  # real tokens of each sequence
    #: what no token owns behind each step, as norm maps see it: the bias of whatever happens to
    #: a token alone before tokens are mixed is the token's; None: nothing
    biases: tuple[Tensor | None, ...] = ()

    def forward(
        self,
        v: Tensor,
        sources: Mapping[str, Tensor] | None = None,
        observe: Observer | None = None,
        biases: bool = False,
    ) -> Tensor:
        """The linear face: what the layer makes of vectors (…, b, i, d), without any bias.

        `sources` are vectors of another sequence that an attention reads; none is zero. `observe`
        is shown what is made of them behind every step. With `biases`, each step adds its own.
        """
        state = State(v, start=v, others=dict(sources or {}))
        for index, step in enumerate(self.steps):
            step.forward(state, biases)
            if observe is not None:
                observe(index, state.stream)
        return state.stream

    def bias_part(
        self,
        bias: Tensor | None = None,
        observe: Observer | None = None,
        sources: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """What no token owns behind the layer, (b, i, d); before it that was `bias`, or nothing.

        `sources` is what no token owns of another sequence that an attention reads. `observe` is
        shown what no token owns behind every step.
        """
        before = torch.zeros_like(self.x) if bias is None else bias
        return self.forward(before, sources, observe, biases=True)

    def beside_blocks(self) -> dict[int, Tensor | None]:
        """The layer's input (b, i, d) as it arrives at each step by ways that pass no block.

        It passes norms, projections and residual connections, without their biases; None is
        nothing. The last is what is left of it behind all steps.
        """
        state = State[Tensor | None](self.x, start=self.x)
        arriving: dict[int, Tensor | None] = {}
        for index, step in enumerate(self.steps):

            def act(v: Tensor | None, index: int = index, step: FrozenStep = step) -> Tensor | None:
                arriving[index] = v
                return None if v is None or isinstance(step, FrozenBlock) else step.linear(v)

            step.pass_on(state, act)
        return {**arriving, len(self.steps): state.stream}

    def keeping(self, kept: Sequence[int]) -> tuple[FrozenLayer, Tensor]:
        """The layer with some of its steps alone, and what these make (b, i, d) of its input.

        Steps before the attention stay. A residual connection around nothing that is kept is left
        out, too: vectors pass there as they are.
        """
        chosen, branches = list[int](), list[int]()
        for index, described in enumerate(self.layer.steps[: max(kept) + 1]):
            if isinstance(described, components.Branch):
                branches.append(index)
            elif isinstance(described, components.Residual):
                first = branches.pop()
                if index in kept and any(place > first for place in chosen):
                    chosen += [first, index]
            elif index in kept or index not in self.layer.scope_of_step:
                chosen.append(index)
        chosen.sort()
        layer = components.Layer([self.layer.steps[k] for k in chosen], self.layer.reach)
        steps = tuple(self.steps[k] for k in chosen)
        biases, mixed = list[Tensor | None](), False
        vectors, bias = State(self.x, start=self.x), State[Tensor | None](None)
        for step in steps:
            mixed = _pass_bias(step, bias, mixed)
            biases.append(bias.stream)
            # What a block reads here may not be what it reads in the whole layer.
            is_affine = isinstance(step, FeedForwardBlock)
            step.pass_on(vectors, step.affine if is_affine else step.apply)  # type: ignore[arg-type]
        frozen = FrozenLayer(layer, self.x, steps, self.lengths, tuple(biases))
        return frozen, vectors.stream

    def from_token(self, first: int) -> FrozenLayer:
        """The linear face for the tokens from `first` on, if earlier ones hold nothing."""
        if first == 0:
            return self
        steps = tuple(step.from_token(first) for step in self.steps)
        lengths = tuple(max(0, length - first) for length in self.lengths)
        return replace(self, x=self.x[:, first:], steps=steps, lengths=lengths)


def _pass_bias(step: FrozenStep, bias: State[Tensor | None], mixed: bool) -> bool:
    """Pass on what no token owns, as norm maps see it; returns whether tokens are mixed then.

    What was a bias before the first attention is the part of a token behind it, and the output of a
    block beside the attention is the token's. Sampled shares include the bias.
    """
    if isinstance(step, FrozenAttention):
        bias.stream = step.attention.output.bias
        bias.saved = bias.saved if mixed else [None] * len(bias.saved)
        return True
    beside = feedforward.FrozenParallelFeedForward, feedforward.SampledFeedForward
    if not isinstance(step, beside):
        step.pass_on(bias, step.affine)
    return mixed


def freeze(
    layer: components.Layer,
    x: Tensor,
    alpha: Tensor | Alpha | Sequence[Tensor | Alpha],
    lengths: Sequence[int],
    rule: str = "ig",
    sources: Mapping[str, Tensor] | None = None,
    until: int | None = None,
    parts: bool = True,
    real: Mapping[int, Tensor] | None = None,
    observe: Observer | None = None,
    source_lengths: Mapping[str, Sequence[int]] | None = None,
) -> FrozenLayer:
    """Freeze `layer` at its input `x` (b, i, d) and the weights `alpha` (b, h, i, j) it gave.

    A layer with several attentions has one α for each, in order; `sources` are the vectors
    (b, j, d) of other sequences that it attends to, by name, and `source_lengths` how many of them
    are no padding (all, if not given). Steps behind `until` are left out.
    Without `parts` only the linear faces will be asked for; then `real`, the vectors (b, i, d) that
    the model computed behind some steps, save the last products of blocks. `observe` is shown the
    vector (b, i, d) behind every step that was computed here.
    """
    taken = {} if parts or real is None else real
    weights = iter([alpha] if isinstance(alpha, (Tensor, Alpha)) else alpha)
    steps: list[FrozenStep] = []
    biases: list[Tensor | None] = []
    vectors, bias = State(x, start=x), State[Tensor | None](None)
    mixed = False
    for index, step in enumerate(layer.steps[: None if until is None else until + 1]):
        y = vectors.stream
        frozen: FrozenStep
        if isinstance(step, components.Branch):
            frozen = FrozenBranch.at(step, y)
        elif isinstance(step, components.Residual):
            frozen = FrozenResidual()
        elif isinstance(step, (components.Norm, components.Projection)):
            frozen = frozen_at(step, y)
        elif isinstance(step, components.Attention):
            read = y if step.source is None else (sources or {})[step.source]
            real_sources = (source_lengths or {}).get(step.source or "")
            a = next(weights)
            frozen = FrozenAttention.at(
                step, read, a, layer.reach, bias.stream, parts, real_sources
            )
        elif isinstance(step, components.ParallelFeedForward):
            frozen = feedforward.FrozenParallelFeedForward.at(step, x, rule)
        elif rule == SHAPLEY:
            if layer.by_source or isinstance(step, components.Experts):
                raise InputError(NOT_BY_SOURCE if layer.by_source else NOT_FOR_EXPERTS)
            frozen = feedforward.SampledFeedForward(step, y)
        elif isinstance(step, components.Experts):
            frozen = feedforward.FrozenExperts.at(step, y, bias.stream, rule)
        else:
            frozen = feedforward.frozen_feed_forward(step, y, bias.stream, rule, parts)
        steps.append(frozen)
        # Without parts, nothing behind the only feed-forward block reads a bias.
        blocks = FeedForwardBlock, feedforward.ChunkedFeedForward
        if parts or layer.by_source or not isinstance(frozen, blocks):
            mixed = _pass_bias(frozen, bias, mixed)
        biases.append(bias.stream)
        known = taken.get(index)
        if known is None or not isinstance(frozen, FrozenBlock):
            frozen.pass_on(vectors, frozen.apply)
            if observe is not None:
                observe(index, vectors.stream)
        if known is not None:
            vectors.stream = known.to(x.dtype)
    return FrozenLayer(layer, x, tuple(steps), tuple(lengths), tuple(biases))
