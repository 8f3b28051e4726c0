"""What a recording may rely on: that a model has not changed, and that nobody listens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from one_case import in_one_case
from torch import nn

from normlens.gpu.graphs import ModelState
from normlens.models.tiny import tiny_model


@pytest.fixture
def model() -> Any:
    return tiny_model("bert")


def test_an_untouched_model_is_as_it_was(model: Any) -> None:
    state = ModelState.of(model)
    assert state is not None
    assert state.holds()
    model(input_ids=torch.tensor([[1, 2, 3]]))
    assert state.holds()


def _swap(model: Any) -> None:
    weight = model.encoder.layer[0].output.dense.weight
    weight.data = weight.data.clone()


def _replace(model: Any) -> None:
    dense = model.encoder.layer[1].output.dense
    model.encoder.layer[1].output.dense = nn.Linear(dense.in_features, dense.out_features)


def _hook(model: Any) -> None:
    model.encoder.layer[0].register_forward_hook(lambda *_: None)


def _forward(model: Any) -> None:
    model.encoder.layer[0].forward = model.encoder.layer[0].forward


def _scale(model: Any) -> None:
    model.encoder.layer[0].attention.self.scaling = 0.123


def _configure(model: Any) -> None:
    model.config.hidden_act = "relu"


@pytest.mark.parametrize("change", [_swap, _replace, _hook, _forward, _scale, _configure])
def test_changes_are_noticed(model: Any, change: Any) -> None:
    state = ModelState.of(model)
    assert state is not None
    change(model)
    assert not state.holds()


@in_one_case("change", [_hook, _forward])
def test_a_model_that_may_do_more_has_no_state(model: Any, change: Any) -> None:
    change(model)
    assert ModelState.of(model) is None


def test_modules_of_others_have_no_state(model: Any) -> None:
    class Own(nn.Linear):
        pass

    model.encoder.layer[0].output.dense = Own(4, 4)
    assert ModelState.of(model) is None


def test_hooks_on_all_modules_are_noticed(model: Any) -> None:
    state = ModelState.of(model)
    assert state is not None
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not state.holds()
        assert ModelState.of(model) is None
    finally:
        handle.remove()
    assert state.holds()
