"""The frozen layer: the one object that every analysis of a layer stands on.

For one input, α, the deviation of every norm and the slopes of every activation are taken as given.
What is left is affine, and each component says in its own module how it acts on vectors (`linear`),
on the gradient of a scalar (`adjoint`), what no token owns (`unowned`), and how parts pass it
(`on_parts`). Norm maps take a frozen layer's parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from normlens.errors import InputError
from normlens.frozen.attention import FrozenAttention
from normlens.frozen.experts import FrozenExperts
from normlens.frozen.feedforward import (
    FrozenFeedForward,
    FrozenParallelFeedForward,
    SampledFeedForward,
)
from normlens.frozen.norm import FrozenBranch, FrozenNorm, FrozenProjection, FrozenResidual
from normlens.frozen.parts import Bias
from normlens.frozen.step import FrozenBlock, FrozenStep, State
from normlens.layers import (
    Attention,
    Branch,
    Experts,
    FeedForward,
    Layer,
    Norm,
    ParallelFeedForward,
    Projection,
    Reach,
    Residual,
)
from normlens.options import NOT_BY_SOURCE, NOT_FOR_EXPERTS, SHAPLEY

#: Is shown the index of a step and the vectors (…, b, i, d) behind it.
Observer = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class FrozenLayer:
    """A layer's components in order, frozen at the vectors that the model computed."""

    layer: Layer
    x: Tensor  # (b, i, d), the layer's input
    steps: tuple[FrozenStep, ...]  # of `layer.steps`, as far as anybody asked for them
    lengths: tuple[int, ...]  # real tokens of each sequence

    def forward(
        self,
        v: Tensor,
        sources: Mapping[str, Tensor] | None = None,
        observe: Observer | None = None,
    ) -> Tensor:
        """The linear face: what the layer makes of vectors (…, b, i, d), without any bias.

        `sources` are vectors of another sequence that an attention reads; none is zero. `observe`
        is shown what is made of them behind every step.
        """
        return self._walk(v, sources or {}, biases=False, observe=observe)

    def adjoint(self, g: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The transpose of `forward`: g (…, b, i, d) behind the layer as it arrives at its input.

        Also what arrives at each other sequence that the layer reads.
        """
        state = State(g)
        for step in reversed(self.steps):
            step.backward(state, step.gradient)
        return state.arrived, state.others

    def unowned(
        self,
        bias: Tensor | None = None,
        observe: Observer | None = None,
        sources: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """What no token owns behind the layer, (b, i, d); before it that was `bias`, or nothing.

        `sources` is what no token owns of another sequence that an attention reads. `observe` is
        shown what no token owns behind every step.
        """
        before = self.x.new_zeros(self.x.shape) if bias is None else bias
        return self._walk(before, sources or {}, biases=True, observe=observe)

    def _walk(
        self,
        v: Tensor,
        sources: Mapping[str, Tensor],
        biases: bool,
        observe: Observer | None,
    ) -> Tensor:
        """Vectors through every step, with or without what the step adds and no token owns."""
        state = State(v, start=v, others=dict(sources))
        for index, step in enumerate(self.steps):
            step.forward(state, biases)
            if observe is not None:
                observe(index, state.stream)
        return state.stream

    @cached_property
    def beside_blocks(self) -> dict[int, Tensor | None]:
        """The layer's input (b, i, d) as it arrives at each block by ways that pass no other.

        It passes norms, projections and residual connections, without their biases; None is
        nothing. Behind the last step (the key `len(steps)`) it is what passes no block at all.
        """
        arriving: dict[int, Tensor | None] = {}
        state = State[Tensor | None].at_input(self.x)
        for index, step in enumerate(self.steps):

            def pass_by(v: Tensor | None, index: int = index, step: FrozenStep = step) -> Any:
                if isinstance(step, FrozenBlock):
                    arriving[index] = v
                    return None
                return None if v is None else step.linear(v)

            step.pass_on(state, pass_by)
        arriving[len(self.steps)] = state.stream
        return arriving

    def from_token(self, first: int) -> FrozenLayer:
        """The linear face for the tokens from `first` on, if earlier ones hold nothing."""
        if first == 0:
            return self
        steps = tuple(step.from_token(first) for step in self.steps)
        lengths = tuple(max(0, length - first) for length in self.lengths)
        return FrozenLayer(self.layer, self.x[:, first:], steps, lengths)


def freeze(
    layer: Layer,
    x: Tensor,
    alpha: Tensor | Sequence[Tensor],
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
    weights = iter([alpha] if isinstance(alpha, Tensor) else alpha)
    steps: list[FrozenStep] = []
    vectors, biases = State.at_input(x), State[Bias | None](None)
    for index, step in enumerate(layer.steps[: None if until is None else until + 1]):
        y = vectors.stream
        bias = Bias.none(y) if biases.stream is None else biases.stream
        frozen: FrozenStep
        if isinstance(step, Branch):
            frozen = FrozenBranch.at(step, y)
        elif isinstance(step, Residual):
            frozen = FrozenResidual()
        elif isinstance(step, Norm):
            frozen = FrozenNorm.at(step, y)
        elif isinstance(step, Projection):
            frozen = FrozenProjection(step)
        elif isinstance(step, Attention):
            read, reach, real_sources = y, layer.reach, None
            if step.source is not None:
                read, reach = (sources or {})[step.source], Reach()
                real_sources = (source_lengths or {}).get(step.source)
            frozen = FrozenAttention.at(step, read, next(weights), reach, parts, real_sources)
        elif isinstance(step, ParallelFeedForward):
            frozen = FrozenParallelFeedForward.at(step, x, rule)
        elif rule == SHAPLEY:
            if layer.by_source or isinstance(step, Experts):
                raise InputError(NOT_BY_SOURCE if layer.by_source else NOT_FOR_EXPERTS)
            frozen = SampledFeedForward(step, y)
        elif isinstance(step, Experts):
            frozen = FrozenExperts.at(step, y, bias, rule)
        else:
            frozen = FrozenFeedForward.at(step, y, bias, rule)
        steps.append(frozen)
        # Without parts, nothing behind the only feed-forward block reads a bias.
        if parts or layer.by_source or not isinstance(step, (FeedForward, Experts)):
            frozen.pass_on(biases, frozen.on_bias)
        known = taken.get(index)
        if known is None or not isinstance(frozen, FrozenBlock):
            frozen.pass_on(vectors, frozen.apply)
            if observe is not None:
                observe(index, vectors.stream)
        if known is not None:
            vectors.stream = known.to(x.dtype)
    return FrozenLayer(layer, x, tuple(steps), tuple(lengths))
