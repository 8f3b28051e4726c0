"""The families that stand for all others have every kind of layer that there is."""

from __future__ import annotations

from typing import Any

from heads import tried_families

from normlens.layers import Attention, Experts, FeedForward, Norm, ParallelFeedForward, Step
from normlens.models import adapt
from normlens.models.tiny import tiny_families, tiny_model


def form(step: Step) -> Any:
    """What the algebra of a step depends on beside numbers."""
    if isinstance(step, Norm):
        return "LN", step.centred, step.gamma is not None, step.beta is not None
    if isinstance(step, Attention):
        biases = step.value.bias is not None, step.output.bias is not None
        others = step.latent is not None, step.sinks is not None, step.source
        return "ATTN", step.groups < step.heads, step.output.is_scaled, *biases, *others
    if isinstance(step, Experts):
        return "FF", form(step.members[0]), step.shared is not None, step.weighs_input
    if isinstance(step, FeedForward):
        biases = step.up.bias is not None, step.down.bias is not None
        return "FF", step.gate is not None, step.down.is_scaled, *biases
    if isinstance(step, ParallelFeedForward):
        return "∥ FF", form(step.feed_forward), step.norm is not None
    return step.symbol


def forms(family: str) -> set[Any]:
    """The orders of components that a family has, and the forms of its steps."""
    adapter = adapt(tiny_model(family))
    layers = [adapter.layer(block) for block in adapter.blocks()]
    steps = {form(step) for layer in layers for step in layer.steps}
    return steps | {layer.component_sequence for layer in layers}


def test_every_kind_of_layer_is_tried() -> None:
    tried = set[Any]().union(*map(forms, tried_families()))
    lacking = {family for family in tiny_families() if not forms(family) <= tried}
    assert not lacking
