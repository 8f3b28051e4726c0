"""An ablation equals the same model with other weights, in every family."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from ablation_examples import FAMILIES, MaskTokenizer, lens_on, questions, texts

from normlens.layers import Attention, Experts, FeedForward, Norm, ParallelFeedForward
from normlens.lens import Lens
from normlens.studies.ablation.losses import choose_loss
from normlens.studies.ablation.measure import Runner
from normlens.studies.ablation.options import Ablation
from normlens.studies.ablation.plan import NormPlace, Plan


def losses(lens: Lens, ablations: list[Ablation]) -> list[np.ndarray]:
    loss = choose_loss(lens)
    outcomes = Runner(lens, loss, ablations).run(questions(loss, texts(lens)))
    return [np.array([o.loss for o in row]) for row in outcomes]


def edited(lens: Lens, edit: Callable[[Lens], None]) -> np.ndarray:
    """The losses of a copy of the model whose weights were changed."""
    other = Lens(copy.deepcopy(lens.adapter.whole), MaskTokenizer())
    with torch.no_grad():
        edit(other)
    return losses(Lens(other.adapter.whole, MaskTokenizer()), [])[0]


def zeroed(linear: Any) -> None:
    linear.module.weight.zero_()
    if linear.module.bias is not None:
        linear.module.bias.zero_()


def blocks_of(lens: Lens, kinds: Any) -> list[Any]:
    return [step for layer in lens.layers for step in layer.steps if isinstance(step, kinds)]


def without_experts(experts: Experts) -> None:
    for block in [*experts.members, *experts.examples[1:]]:
        block.down.weight.zero_()
        if block.down.bias is not None:
            block.down.bias.zero_()


def without_feed_forward(lens: Lens) -> None:
    for experts in blocks_of(lens, Experts):
        without_experts(experts)
    for step in blocks_of(lens, (FeedForward, ParallelFeedForward)):
        zeroed((step.feed_forward if isinstance(step, ParallelFeedForward) else step).down)


def without_attention(lens: Lens) -> None:
    for step in blocks_of(lens, Attention):
        zeroed(step.output)


def norm_weights(norm: Norm, values: torch.Tensor) -> None:
    """Give a norm these values of γ; some families hold γ − 1."""
    module: Any = norm.module
    offset = (norm.gamma - module.weight).mean().round()
    module.weight.copy_(values - offset)


def without_affine(component: str) -> Callable[[Lens], None]:
    def edit(lens: Lens) -> None:
        for place in norm_places(lens, component):
            norm_weights(place.norm, torch.ones_like(place.norm.gamma))
            if place.norm.beta is not None:
                place.norm.beta.zero_()

    return edit


def left_out(component: str) -> Callable[[Lens], None]:
    def edit(lens: Lens) -> None:
        for place in norm_places(lens, component):
            place.module.forward = lambda x: x

    return edit


def norm_places(lens: Lens, component: str) -> list[NormPlace]:
    plan = Plan(lens.layers, "tiny")
    return [plan.place(layer, component) for layer in plan.components()[component]]  # type: ignore[misc]


@pytest.mark.parametrize(("family", "task"), FAMILIES)
def test_ablations_of_all_layers_equal_edited_weights(family, task):
    lens = lens_on(family, task)
    plan = Plan(lens.layers, "tiny")
    components = plan.components()
    edits: dict[Ablation, Callable[[Lens], None]] = {
        Ablation("FF", "zero", components["FF"]): without_feed_forward,
        Ablation("ATTN", "zero", components["ATTN"]): without_attention,
    }
    for name, layers in components.items():
        if "LN" in name:
            if "no-affine" in plan.kinds(name):  # OLMo's norms have neither γ nor β
                edits[Ablation(name, "no-affine", layers)] = without_affine(name)
            edits[Ablation(name, "left-out", layers)] = left_out(name)
    intact, *ablated = losses(lens, list(edits))
    for (ablation, edit), found in zip(edits.items(), ablated, strict=True):
        expected = edited(lens, edit)
        np.testing.assert_allclose(found, expected, rtol=2e-5, err_msg=str(ablation))
        assert not np.allclose(intact, expected, rtol=2e-5), ablation
