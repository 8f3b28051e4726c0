"""Where a layer's weights and vectors can be read while the model runs: modules and events."""

from __future__ import annotations

from torch import Tensor, nn

from normlens.components import (
    Attention,
    Branch,
    Experts,
    FeedForward,
    Layer,
    Norm,
    ParallelFeedForward,
    Residual,
    Step,
)
from normlens.errors import UnsupportedModelError


def weights_module(attention: Attention) -> nn.Module:
    if attention.weights is None:
        raise UnsupportedModelError("the adapter does not say which module returns the weights")
    return attention.weights


def value_module(attention: Attention) -> nn.Module:
    if attention.value.module is None:
        raise UnsupportedModelError(
            "the adapter does not say which module projects the values of "
            f"{attention.source!r}, where its vectors can be read"
        )
    return attention.value.module


def weights_event(attention: Attention) -> str:
    """What to read at the module of the weights: its only output, or one of several."""
    return f"weights {attention.weights_at}"


def checkpoints(layer: Layer) -> dict[int, tuple[nn.Module | None, str]]:
    """Where the model's own vector behind each step can be read; module None: the block's output.

    Behind a residual it is the input of the norm that follows, or the block's output at the end.
    """
    places: dict[int, tuple[nn.Module | None, str]] = {}
    steps = [(i, step) for i, step in enumerate(layer.steps) if not isinstance(step, Branch)]
    for position, (index, step) in enumerate(steps):
        following = steps[position + 1][1] if position + 1 < len(steps) else None
        if index not in layer.scope_of_step:
            continue
        if following is None:
            places[index] = (None, "output")
        elif isinstance(step, Residual):
            if isinstance(following, Norm) and following.module is not None:
                places[index] = (following.module, "input")
        elif not isinstance(step, (Branch, ParallelFeedForward)) and step.module is not None:
            places[index] = (step.module, "output")
    return places


def factor_behind(step: Step) -> float | Tensor:
    """What the model multiplies the vector by that a component's module returns."""
    if isinstance(step, Experts):
        return step.scale
    if isinstance(step, Attention):
        last = step.output
    elif isinstance(step, FeedForward):
        last = step.down
    else:
        return 1.0
    return last.scale if step.module is last.module else 1.0


def probes(layer: Layer) -> list[tuple[nn.Module, str]]:
    """Every module to hook for this layer, and what to read there."""
    reads = [(module, event) for module, event in checkpoints(layer).values() if module is not None]
    for attention in layer.attentions:
        reads.append((weights_module(attention), weights_event(attention)))
        if attention.source is not None:
            reads.append((value_module(attention), "input"))
    return list(dict.fromkeys(reads))  # what is hooked twice would be read twice


def linear_modules(layer: Layer) -> list[nn.Module]:
    return [linear.module for linear in layer.linear_maps if linear.module is not None]
