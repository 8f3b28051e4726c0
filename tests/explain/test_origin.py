"""Maps whose sources are the model's input tokens: `lens.maps(text, origin="input")`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from heads import tried_families
from one_case import in_one_case
from reference import largest_error
from whole_examples import everything, frozen_network

import normlens
from normlens.errors import CompletenessError, MemoryLimitError
from normlens.frozen.layer import freeze

IDS = [3, 9, 27, 14, 5, 33, 8]
BATCH = [IDS, [40, 41, 3], [7, 12, 60, 22, 51]]

every_family = pytest.mark.parametrize("family", tried_families())


@every_family
@in_one_case("rule", ["ig", "ig-bias", "gradient"])
def test_maps_are_the_norms_of_the_whole_vectors(family, rule, tiny):
    model = tiny(family)
    lens = normlens.load(model)
    maps = lens.maps(input_ids=IDS, origin="input", nonlinearity=rule)
    assert maps.scopes == [scope for scope in lens.scopes if scope.endswith("-N")]
    with frozen_network(model, [IDS], rule) as network:
        vectors = everything(network).vectors
        scopes = [network.layer(index).layer.scope_of_step for index in range(len(network))]
    for layer, steps in enumerate(scopes):
        for step, scope in steps.items():
            v = vectors[layer, step][:, 0].transpose(0, 1)  # (i, k, d)
            assert largest_error(maps[scope][layer], v.norm(dim=-1)) <= 1e-9
            is_other = ~torch.eye(len(IDS), dtype=torch.bool)
            others = (v * is_other[..., None]).sum(1).norm(dim=-1)
            own = v[range(len(IDS)), range(len(IDS))].norm(dim=-1)
            ratio = others / (others + own)
            assert largest_error(maps.mixing_ratio(scope)[layer], ratio) <= 1e-9


@in_one_case("family", tried_families())
def test_batched_and_padded_is_alone(family, tiny):
    lens = normlens.load(tiny(family))
    together = lens.maps(input_ids=BATCH, origin="input")
    for ids, found in zip(BATCH, together, strict=True):
        alone = lens.maps(input_ids=ids, origin="input")
        np.testing.assert_array_equal(found.allowed, alone.allowed)
        for scope in alone.scopes:
            assert largest_error(found[scope], alone[scope]) <= 1e-6
            np.testing.assert_allclose(found.mixing[scope], alone.mixing[scope], atol=1e-6)
        assert not any(array[~found.allowed].any() for array in found.arrays.values())


def test_a_limit_of_memory_changes_nothing_but_the_chunks(tiny):
    lens = normlens.load(tiny("gpt2"))
    whole = lens.maps(input_ids=IDS, origin="input")
    cut = lens.maps(input_ids=IDS, origin="input", memory_limit="40KB", layers=[1], scopes="FF")
    assert cut.layers == [1]
    assert cut.scopes == ["ATTNRESLNFF-N"]
    assert largest_error(cut["FF"][0], whole["FF"][1]) <= 1e-12
    with pytest.raises(MemoryLimitError):
        lens.maps(input_ids=IDS, origin="input", memory_limit="1KB")


def test_windows_reach_further_with_every_layer(tiny):
    model = tiny("mistral", sliding_window=2, num_hidden_layers=3)
    maps = normlens.load(model).maps(input_ids=IDS, origin="input")
    offsets = np.subtract.outer(np.arange(len(IDS)), np.arange(len(IDS)))
    for layer in range(3):
        expected = (offsets >= 0) & (offsets <= layer + 1)
        np.testing.assert_array_equal(maps.allowed[layer], expected)
        np.testing.assert_array_equal(maps["RES2"][layer] > 0, expected)


def test_a_layer_that_does_not_add_up_is_an_error(tiny, monkeypatch):
    from normlens.explain import network as module

    def wrong(layer, x, alpha, *args, **kwargs):
        return freeze(layer, x, [1.01 * one for one in alpha], *args, **kwargs)

    monkeypatch.setattr(module, "freeze", wrong)
    with pytest.raises(CompletenessError, match=r"layer 0 at its ATTN \(scope ATTN-N\)"):
        normlens.load(tiny("bert")).maps(input_ids=IDS, origin="input")
