"""Parts as vectors, a few sources at a time, and their norms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from normlens.errors import InputError
from normlens.frozen.attention import FrozenAttention
from normlens.frozen.experts import FrozenExperts
from normlens.frozen.feedforward import (
    FrozenFeedForward,
    FrozenParallelFeedForward,
    SampledFeedForward,
)
from normlens.frozen.layer import FrozenLayer, FrozenStep, Observer
from normlens.frozen.network import Sources, WholeNorms
from normlens.frozen.norm import FrozenBranch, FrozenNorm, FrozenProjection, FrozenResidual
from normlens.frozen.parts import Bias, Parts
from normlens.layers import Experts, FeedForward, Layer, Step
from normlens.options import NOT_LINEAR
from normlens.plan.memory import DEFAULT_LIMIT

# The parts of some sources as vectors: F_i(x_j) of a few tokens j and every target i.
#
# Norms need no such vectors (`parts`, `tiles`), unless more stands behind a feed-forward block
# than its tiles know. What is not a norm does, too, a few sources at a time.


def source_parts(
    frozen: FrozenLayer, first: int, last: int, observe: Observer | None = None
) -> Tensor:
    """``F_i(x_j)`` behind the frozen steps, of the sources from `first` to before `last`.

    Shape (j, b, i, d). Biases belong to tokens as in norm maps: value biases, and the β of a norm
    before the attention, to their source. `observe` is shown the parts behind each step from the
    attention on.
    """
    tokens = frozen.x  # (b, i, d), as long as nothing is mixed
    parts: Tensor | None = None
    saved: list[Tensor] = []
    for index, step in enumerate(frozen.steps):
        if isinstance(step, FrozenBranch):
            saved.append(step.apply(tokens) if parts is None else parts)
            continue
        if isinstance(step, FrozenAttention):
            parts = _attended(step, first, last)
        elif parts is None:
            assert isinstance(step, (FrozenNorm, FrozenProjection))
            tokens = step.apply(tokens)
        elif isinstance(step, FrozenResidual):
            before = saved.pop()
            mixed = before.dim() == parts.dim()
            parts = parts + before if mixed else _plus_own(parts, before, first, last)
        elif isinstance(step, FrozenParallelFeedForward):
            parts = _plus_own(parts, step.output, first, last)
        else:
            parts = _slopes(step).linear(parts)
        if observe is not None and parts is not None:
            observe(index, parts)
    assert parts is not None
    return parts


def unowned_bias(frozen: FrozenLayer, observe: Observer | None = None) -> Tensor:
    """``b_i`` behind the frozen steps, what `source_parts` of all sources leaves, (b, i, d).

    `observe` is shown it behind each step from the attention on.
    """
    bias = torch.zeros_like(frozen.x)
    saved: list[Tensor] = []
    mixed = False
    for index, step in enumerate(frozen.steps):
        if isinstance(step, FrozenBranch):
            saved.append(step.linear(bias))  # with steps of its own, where there is none yet
            continue
        if isinstance(step, FrozenResidual):
            bias = step.linear(bias, saved.pop())
        elif isinstance(step, FrozenAttention):
            output, mixed = step.attention.output, True
            bias = bias.new_zeros(*bias.shape[:-1], output.weight.shape[1])
            bias = bias if output.bias is None else output.bias.expand_as(bias)
        elif isinstance(step, (FrozenNorm, FrozenProjection)):
            bias = step.apply(bias) if mixed else step.linear(bias)
        elif isinstance(step, (FrozenFeedForward, FrozenExperts, SampledFeedForward)):
            block = _slopes(step)
            assert isinstance(block, (FrozenFeedForward, FrozenExperts))
            bias = block.outgoing.vectors
        if observe is not None and mixed:
            observe(index, bias)
    return bias


def source_memory(layer: Layer, b: int, n: int, itemsize: int) -> int:
    """Bytes that the parts of one source of b sequences of n tokens take on their way.

    Six vectors and, of the largest feed-forward block, its projections with two products of theirs;
    or four of the wider vectors outside a bottleneck.
    """
    inside = 6 * max(layer.attention.output.weight.shape) + max(map(_neurons, layer.steps))
    return b * n * max(inside, 4 * layer.width) * itemsize


def _neurons(step: Step) -> int:
    """Numbers that one part takes inside a feed-forward block."""
    if isinstance(step, Experts):  # vectors and neurons of one expert, and the sum of all
        return 4 * step.members[0].down.weight.shape[1] + 4 * step.widest
    if isinstance(step, FeedForward):
        return (3 if step.gate is None else 4) * step.down.weight.shape[0]
    return 0


def _attended(step: FrozenAttention, first: int, last: int) -> Tensor:
    """``Σ_h α^h_ij v^h_j W_O^h``, (j, b, i, d)."""
    alpha = step.alpha[..., first:last].permute(3, 0, 2, 1)  # (j, b, i, h)
    values = step.values[:, first:last].transpose(0, 1)[:, :, None]  # (j, b, 1, h, d_head)
    return (alpha[..., None] * values).flatten(-2) @ step.attention.output.weight


def _plus_own(parts: Tensor, own: Tensor, first: int, last: int) -> Tensor:
    """The parts (j, b, i, d) with what each token itself adds, (b, i, d), where i = j."""
    parts = parts.clone()
    places = torch.arange(last - first, device=parts.device)
    parts[places, :, first + places] += own[:, first:last].transpose(0, 1)
    return parts


def _slopes(
    step: FrozenStep,
) -> FrozenNorm | FrozenProjection | FrozenFeedForward | FrozenExperts:
    if isinstance(step, SampledFeedForward):
        raise InputError(NOT_LINEAR)
    assert isinstance(step, (FrozenNorm, FrozenProjection, FrozenFeedForward, FrozenExperts))
    return step


# Norms behind steps that tiles and kernels do not know: parts as vectors, some sources at a time.
#
# Several feed-forward blocks, or a projection behind one, are passed by every part F_i(x_j) itself
# (`Layer.by_source`): n² · d numbers, of which a memory limit holds those of a few sources.


def norms_by_source(
    frozen: FrozenLayer, since: int, last: int, limit: int | None
) -> Iterator[tuple[int, Parts, Tensor]]:
    """Sums of the parts, and their norms (b, i, j), behind each component from `since` to `last`.

    Sums are those of the vectors whose norms were taken; there are no factors.
    """
    frozen = replace(frozen, steps=frozen.steps[: last + 1])
    taken: dict[int, WholeNorms] = {}
    b, n, _ = frozen.x.shape
    at_once = sources_at_once(source_memory(frozen.layer, b, n, frozen.x.itemsize), n, limit)
    for first in range(0, n, at_once):

        def take(step: int, parts: Tensor, first: int = first) -> None:
            if step < since:
                return
            if step not in taken:
                taken[step] = WholeNorms.empty(frozen.x, width=parts.shape[-1])
            taken[step].add(Sources(first, 0, parts))

        source_parts(frozen, first, min(first + at_once, n), take)
    biases: dict[int, Tensor] = {}
    unowned_bias(frozen, biases.__setitem__)
    for step, whole in taken.items():
        sums = Parts(whole.own, Bias.dense(biases[step]), whole.total - whole.own)
        yield step, sums, whole.norms


def sources_at_once(one: int, n: int, limit: int | None) -> int:
    """How many of n sources pass together, where each takes `one` byte count on its way."""
    return max(1, min(n, (DEFAULT_LIMIT if limit is None else limit) // one))
