"""What a family's layers are like, in a few words: the norms, the blocks, how far targets see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from normlens.components import (
    Attention,
    Experts,
    FeedForward,
    Layer,
    Norm,
    ParallelFeedForward,
    Step,
)


def traits_of(layers: Sequence[Layer]) -> tuple[str, ...]:
    """The traits of a model's layers; each is named once, whichever layers have it."""
    return tuple(dict.fromkeys(_traits(layers)))


def _traits(layers: Sequence[Layer]) -> Iterable[str]:
    steps = [step for layer in layers for step in layer.steps]
    norms = [step for step in steps if isinstance(step, Norm)]
    norms += [s.norm for s in steps if isinstance(s, ParallelFeedForward) and s.norm is not None]
    for norm in norms:
        yield "no norms" if norm.eps is None else "LayerNorm" if norm.centred else "RMSNorm"
    if any(layer.projections for layer in layers):
        yield "bottlenecks"
    if any(sum(isinstance(step, FeedForward) for step in layer.steps) > 1 for layer in layers):
        yield "several blocks"
    for step in steps:
        if isinstance(step, Attention) and step.groups < step.heads:
            yield "multi-query" if step.groups == 1 else "grouped queries"
    for step in steps:
        if isinstance(step, Attention) and step.latent is not None:
            yield "latent attention"
        if isinstance(step, Attention) and step.sinks:
            yield "attention sinks"
    if any(layer.reach.back is not None for layer in layers):
        yield "windows"
    if any(isinstance(step, ParallelFeedForward) for step in steps):
        yield "parallel"
    for step in steps:
        if isinstance(step, Experts):
            yield "experts" if step.shared is None else "experts with a shared one"
    for block in (block for step in steps for block in _blocks(step)):
        yield f"gated {block.activation}" if block.gate is not None else block.activation
        if block.limit is not None:
            yield "limits"
    maps = [linear for layer in layers for linear in layer.linear_maps]
    yield "biases" if any(linear.bias is not None for linear in maps) else "no biases"
    if any(linear.is_scaled for linear in maps):
        yield "factors"


def _blocks(step: Step) -> tuple[FeedForward, ...]:
    """The feed-forward blocks of a step, of experts one of each kind."""
    if isinstance(step, Experts):
        return step.examples
    if isinstance(step, ParallelFeedForward):
        return (step.feed_forward,)
    return (step,) if isinstance(step, FeedForward) else ()
