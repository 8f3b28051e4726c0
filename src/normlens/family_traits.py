"""What a family's layers are like, in a few words: the norms, the blocks, how far targets see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from normlens.components import Attention, FeedForward, Layer, Norm, ParallelFeedForward


def traits_of(layers: Sequence[Layer]) -> tuple[str, ...]:
    """The traits of a model's layers; each is named once, whichever layers have it."""
    return tuple(dict.fromkeys(_traits(layers)))


def _traits(layers: Sequence[Layer]) -> Iterable[str]:
    steps = [step for layer in layers for step in layer.steps]
    norms = [step for step in steps if isinstance(step, Norm)]
    norms += [s.norm for s in steps if isinstance(s, ParallelFeedForward) and s.norm is not None]
    for norm in norms:
        yield "LayerNorm" if norm.centred else "RMSNorm"
    for step in steps:
        if isinstance(step, Attention) and step.groups < step.heads:
            yield "multi-query" if step.groups == 1 else "grouped queries"
    if any(layer.reach.back is not None for layer in layers):
        yield "windows"
    if any(isinstance(step, ParallelFeedForward) for step in steps):
        yield "parallel"
    blocks = [s.feed_forward if isinstance(s, ParallelFeedForward) else s for s in steps]
    for block in blocks:
        if isinstance(block, FeedForward):
            yield f"gated {block.activation}" if block.gate is not None else block.activation
    maps = [linear for layer in layers for linear in layer.linear_maps]
    yield "biases" if any(linear.bias is not None for linear in maps) else "no biases"
    if any(linear.is_scaled for linear in maps):
        yield "factors"
