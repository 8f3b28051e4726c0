"""The parts of some sources as vectors: F_i(x_j) of a few tokens j and every target i.

Norms need no such vectors (`parts`, `tiles`). What is not a norm does, a few sources at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from normlens.components import Experts, Layer
from normlens.decomposition.attention import FrozenAttention
from normlens.decomposition.experts import FrozenExperts
from normlens.decomposition.feedforward import (
    FrozenFeedForward,
    FrozenParallelFeedForward,
    SampledFeedForward,
)
from normlens.decomposition.frozen import FrozenLayer
from normlens.decomposition.norm import FrozenNorm
from normlens.decomposition.residual import FrozenBranch, FrozenResidual
from normlens.errors import InputError
from normlens.nonlinearities import NOT_LINEAR


def source_parts(frozen: FrozenLayer, first: int, last: int) -> Tensor:
    """``F_i(x_j)`` behind the frozen steps, of the sources from `first` to before `last`.

    Shape (j, b, i, d). Biases belong to tokens as in norm maps: value biases, and the β of a norm
    before the attention, to their source.
    """
    tokens = frozen.x  # (b, i, d), as long as nothing is mixed
    parts: Tensor | None = None
    saved: list[Tensor] = []
    for step in frozen.steps:
        if isinstance(step, FrozenBranch):
            saved.append(tokens if parts is None else parts)
        elif isinstance(step, FrozenAttention):
            parts = _attended(step, first, last)
        elif parts is None:
            assert isinstance(step, FrozenNorm)
            tokens = step.apply(tokens)
        elif isinstance(step, FrozenResidual):
            before = saved.pop()
            mixed = before.dim() == parts.dim()
            parts = parts + before if mixed else _plus_own(parts, before, first, last)
        elif isinstance(step, FrozenParallelFeedForward):
            parts = _plus_own(parts, step.output, first, last)
        else:
            parts = _slopes(step).linear(parts)
    assert parts is not None
    return parts


def unowned_bias(frozen: FrozenLayer) -> Tensor:
    """``b_i`` behind the frozen steps, what `source_parts` of all sources leaves, (b, i, d)."""
    bias = torch.zeros_like(frozen.x)
    saved: list[Tensor] = []
    mixed = False
    for step in frozen.steps:
        if isinstance(step, FrozenBranch):
            saved.append(bias)
        elif isinstance(step, FrozenResidual):
            bias = step.linear(bias, saved.pop())
        elif isinstance(step, FrozenAttention):
            output, mixed = step.attention.output.bias, True
            bias = torch.zeros_like(bias) if output is None else output.expand_as(bias)
        elif isinstance(step, FrozenNorm) and mixed:
            bias = step.apply(bias)
        elif isinstance(step, (FrozenFeedForward, FrozenExperts, SampledFeedForward)):
            block = _slopes(step)
            assert not isinstance(block, FrozenNorm)
            bias = block.outgoing.vectors
    return bias


def source_memory(layer: Layer, b: int, n: int, itemsize: int) -> int:
    """Bytes that the parts of one source of b sequences of n tokens take on their way.

    Six vectors and, of a feed-forward block, its projections with two products of theirs.
    """
    output = layer.attention.output.weight
    numbers = 6 * max(output.shape)
    ff = layer.feed_forward
    if isinstance(ff, Experts):  # vectors and neurons of one expert, and the sum of all
        numbers += 4 * output.shape[1] + 4 * ff.widest
    elif ff is not None:
        numbers += (3 if ff.gate is None else 4) * ff.down.weight.shape[0]
    return b * n * numbers * itemsize


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
    step: FrozenNorm | FrozenFeedForward | FrozenExperts | SampledFeedForward | FrozenResidual,
) -> FrozenNorm | FrozenFeedForward | FrozenExperts:
    if isinstance(step, SampledFeedForward):
        raise InputError(NOT_LINEAR)
    assert isinstance(step, (FrozenNorm, FrozenFeedForward, FrozenExperts))
    return step
