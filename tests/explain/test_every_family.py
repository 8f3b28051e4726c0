"""Explanations of every family with every head: complete, and what autograd finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from frozen_copies import frozen_scores, times_input
from heads import assert_every_layer_makes_the_score, every_head, headed, in_float64, tried_families

import normlens
from normlens.layers import (
    ANY,
    MEAN,
    Attention,
    Experts,
    FeedForward,
    Norm,
    ParallelFeedForward,
    Step,
)
from normlens.models import adapt
from normlens.models.base import read_head
from normlens.models.tiny import tiny_families, tiny_model

IDS = [5, 17, 31, 8, 44, 23, 12]


HEADS = every_head()


FAMILIES = list(dict.fromkeys(family for family, _ in HEADS))


#: The columns of the score: its target's and its contrast's.
TARGET, CONTRAST = 2, 1


def test_there_are_many_heads():
    assert len(HEADS) > 60


@pytest.mark.parametrize("family", FAMILIES)
def test_explanations(family):
    """With every head; with every rule where the family stands for its kind of layer."""
    for task in [task for name, task in HEADS if name == family]:
        model = headed(family, task)
        with in_float64():
            assert_explained(model, task, "ig")
    if family in tried_families():
        for rule in ("ig-bias", "gradient"):
            with in_float64():
                assert_explained(model, task, rule)


def assert_explained(model: Any, task: str, rule: str) -> None:
    lens = normlens.load(model, tokenizer=False)
    head = read_head(lens.adapter)
    position = {"first": 0, "last": len(IDS) - 1}.get(head.reads)
    asked = {}
    if head.reads == ANY and head.task != "causal language model":
        position = asked["position"] = 3
    why = lens.explain(input_ids=IDS, target=TARGET, contrast=CONTRAST, nonlinearity=rule, **asked)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([IDS])).logits[0]
    if logits.dim() == 2:
        logits = logits[-1 if task == "CausalLM" else 3]
    value = float(logits[TARGET] - logits[CONTRAST])
    assert why.value == pytest.approx(value, rel=1e-12, abs=1e-12)
    assert why.target_value == pytest.approx(float(logits[TARGET]))
    assert why.probability == pytest.approx(float(logits.softmax(-1)[TARGET]))
    total = float(why.contributions.sum()) + why.remainder
    assert abs(total - value) < 1e-10 * max(1, abs(value))
    assert why.completeness < 1e-10
    assert_every_layer_makes_the_score(why)
    position = len(IDS) - 1 if position is None else position
    read = (lambda x: x.mean(0)) if head.reads == MEAN else (lambda x: x[position])
    tokens, _, followed = frozen_scores(model, IDS, head, rule, read)
    expected = times_input(followed[TARGET] - followed[CONTRAST], tokens)
    np.testing.assert_allclose(why.contributions, expected, rtol=0, atol=1e-9)


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
