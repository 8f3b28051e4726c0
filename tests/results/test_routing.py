"""The routing of experts as maps have it: labelled, cut, saved and written."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import observe

import normlens
from normlens.errors import InputError
from normlens.models import adapt
from normlens.results.axes import Routing

IDS = [3, 9, 27, 14, 5, 33, 8]


@pytest.fixture
def maps(tiny):
    """Of a model whose first layer has no experts, and whose shared expert has a gate."""
    return normlens.load(tiny("qwen2_moe", torch.float32)).maps(input_ids=IDS)


def test_it_is_what_the_model_did(maps, tiny):
    adapter = adapt(tiny("qwen2_moe", torch.float32))
    (_, routed) = observe(adapter.model, list(adapter.blocks()), IDS).routed
    routing = maps.routing
    assert routing.layers == [1]
    assert routing.count == 5
    np.testing.assert_array_equal(routing.experts[0], routed.experts)
    np.testing.assert_array_equal(routing.weights[0], routed.weights)
    np.testing.assert_array_equal(routing.shared[0], routed.shared)
    assert repr(routing) == "Routing(7 tokens, layer 1: 2 of 5 experts and a shared one)"


def test_models_without_experts_have_none(tiny):
    assert normlens.load(tiny("llama", torch.float32)).maps(input_ids=IDS).routing is None


def test_a_table_has_a_row_for_every_expert_that_was_used(maps):
    table = maps.routing.to_pandas()
    assert list(table) == ["layer", "position", "token", "expert", "weight"]
    assert len(table) == len(IDS) * 3
    assert (table["layer"] == 1).all()
    first = table[table["position"] == 0]
    assert list(first["token"]) == ["3"] * 3
    assert list(first["expert"]) == [*maps.routing.experts[0, 0], "shared"]
    np.testing.assert_array_equal(first["weight"][:2], maps.routing.weights[0, 0])


def test_it_follows_the_choice_of_layers_and_tokens(maps):
    assert maps.choose(layers=[0]).routing is None
    assert maps.choose(layers=[1]).routing == maps.routing
    some = maps.routing.of_tokens([4, 0])
    assert some.tokens == ["5", "3"]
    np.testing.assert_array_equal(some.experts, maps.routing.experts[:, [4, 0]])
    np.testing.assert_array_equal(some.shared, maps.routing.shared[:, [4, 0]])


def test_arrays_that_do_not_fit_are_refused():
    with pytest.raises(InputError):
        Routing([1], np.zeros((1, 2, 2), int), np.zeros((1, 2, 2)), 4, ["a", "b", "c"])
