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
from normlens.options import NOT_BY_SOURCE, NOT_FOR_EXPERTS, NOT_LINEAR, SHAPLEY

FrozenStep = (
    FrozenBranch
    | FrozenResidual
    | FrozenNorm
    | FrozenProjection
    | FrozenAttention
    | FrozenFeedForward
    | FrozenExperts
    | FrozenParallelFeedForward
    | SampledFeedForward
)
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
        saved: list[Tensor] = []
        others: dict[str, Tensor] = {}
        at_start: Tensor | None = None
        for step in reversed(self.steps):
            if isinstance(step, FrozenBranch):
                g = g + step.adjoint(saved.pop())
            elif isinstance(step, FrozenResidual):
                saved.append(g)
            elif isinstance(step, FrozenParallelFeedForward):
                beside = step.adjoint(g)
                at_start = beside if at_start is None else at_start + beside
            elif isinstance(step, FrozenAttention) and step.attention.source is not None:
                name, arrived = step.attention.source, step.adjoint(g)
                others[name] = others[name] + arrived if name in others else arrived
                g = g.new_zeros(g.shape)
            else:
                g = _linear(step).adjoint(g)
        return (g if at_start is None else g + at_start), others

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
        saved: list[Tensor] = []
        start = v
        for index, step in enumerate(self.steps):
            if isinstance(step, FrozenBranch):
                saved.append(step.apply(v) if biases else step.linear(v))
                continue
            if isinstance(step, FrozenResidual):
                v = step.linear(v, saved.pop())
            elif isinstance(step, FrozenParallelFeedForward):
                v = v + step.linear(start)
            elif isinstance(step, FrozenAttention) and step.attention.source is not None:
                other = sources.get(step.attention.source)
                v = v.new_zeros(v.shape) if other is None else step.linear(other)
            else:
                v = _linear(step).linear(v)
            if biases and not isinstance(step, SampledFeedForward) and step.unowned is not None:
                v = v + step.unowned
            if observe is not None:
                observe(index, v)
        return v

    @cached_property
    def beside_blocks(self) -> dict[int, Tensor | None]:
        """The layer's input (b, i, d) as it arrives at each block by ways that pass no other.

        It passes norms, projections and residual connections, without their biases; None is
        nothing. Behind the last step (the key `len(steps)`) it is what passes no block at all.
        """
        arriving: dict[int, Tensor | None] = {}
        saved: list[Tensor | None] = []
        v: Tensor | None = self.x
        for index, step in enumerate(self.steps):
            if isinstance(step, FrozenBranch):
                saved.append(None if v is None else step.linear(v))
            elif isinstance(step, FrozenResidual):
                before = saved.pop()
                v = v if before is None else before if v is None else v + before
            elif isinstance(step, (FrozenNorm, FrozenProjection)):
                v = None if v is None else step.linear(v)
            elif isinstance(step, FrozenParallelFeedForward):
                arriving[index] = self.x
            else:
                arriving[index], v = v, None
        arriving[len(self.steps)] = v
        return arriving

    def from_token(self, first: int) -> FrozenLayer:
        """The linear face for the tokens from `first` on, if earlier ones hold nothing."""
        if first == 0:
            return self
        steps = tuple(
            step
            if isinstance(step, FrozenResidual)
            else step.from_token(first)
            if isinstance(step, FrozenBranch)
            else _linear_or_beside(step).from_token(first)
            for step in self.steps
        )
        lengths = tuple(max(0, length - first) for length in self.lengths)
        return FrozenLayer(self.layer, self.x[:, first:], steps, lengths)


#: The components that are linear operators on the vectors that reach them.
Operator = FrozenNorm | FrozenProjection | FrozenAttention | FrozenFeedForward | FrozenExperts


def _linear(step: FrozenStep) -> Operator:
    if isinstance(step, SampledFeedForward):
        raise InputError(NOT_LINEAR)
    assert isinstance(step, Operator)
    return step


def _linear_or_beside(step: FrozenStep) -> Operator | FrozenParallelFeedForward:
    return step if isinstance(step, FrozenParallelFeedForward) else _linear(step)


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
    saved: list[tuple[Tensor, Bias]] = []
    y, bias, mixed = x, Bias.none(x), False
    for index, step in enumerate(layer.steps[: None if until is None else until + 1]):
        frozen: FrozenStep
        if isinstance(step, Branch):
            frozen = FrozenBranch.at(step, y)
            kept = frozen.apply(y)
            saved.append((kept, Bias.none(kept) if step.through else bias))
        elif isinstance(step, Residual):
            frozen = FrozenResidual()
            before, bias_before = saved.pop()
            y, bias = frozen.linear(y, before), bias.add(bias_before)
        elif isinstance(step, Norm):
            frozen = FrozenNorm.at(step, y)
            y = frozen.apply(y)
            if mixed:  # before that, β belongs to the token
                bias = frozen.on_bias(bias)
        elif isinstance(step, Projection):
            frozen = FrozenProjection(step)
            y = frozen.apply(y)
            bias = frozen.on_bias(bias) if mixed else Bias.none(y)
        elif isinstance(step, Attention):
            read, reach, real_sources = y, layer.reach, None
            if step.source is not None:
                read, reach = (sources or {})[step.source], Reach()
                real_sources = (source_lengths or {}).get(step.source)
            frozen = FrozenAttention.at(step, read, next(weights), reach, parts, real_sources)
            width = step.output.weight.shape[1]
            bias, mixed = Bias.none(x, width).plus(step.output.bias), True
        elif isinstance(step, FeedForward):
            if rule == SHAPLEY and layer.by_source:
                raise InputError(NOT_BY_SOURCE)
            if rule == SHAPLEY:
                frozen = SampledFeedForward.at(step, y)
            else:
                frozen = FrozenFeedForward.at(step, y, bias, rule)
                # Otherwise nothing behind the block's norm reads the bias.
                if parts or layer.by_source:
                    bias = frozen.outgoing
        elif isinstance(step, Experts):
            if rule == SHAPLEY:
                raise InputError(NOT_FOR_EXPERTS)
            frozen = FrozenExperts.at(step, y, bias, rule)
            if parts:
                bias = frozen.outgoing
        elif isinstance(step, ParallelFeedForward):
            frozen = FrozenParallelFeedForward.at(step, x, rule)
            y = y + frozen.output
        steps.append(frozen)
        if isinstance(
            frozen, (FrozenAttention, FrozenFeedForward, FrozenExperts, SampledFeedForward)
        ):
            if index in taken:
                y = taken[index].to(x.dtype)
                continue
            y = frozen.output
        if observe is not None:
            observe(index, y)
        y = taken[index].to(x.dtype) if index in taken else y
    return FrozenLayer(layer, x, tuple(steps), tuple(lengths))
