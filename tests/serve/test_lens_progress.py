"""A lens says how far it is, and can be stopped behind a layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import normlens

IDS = [3, 9, 27, 14, 5, 33, 8]


class Stop(Exception):
    pass


@pytest.fixture
def lens(tiny):
    return normlens.load(tiny("albert", torch.float32))  # three layers, one block


@pytest.mark.parametrize(
    ("layers", "steps"),
    [(None, [(1, 3), (2, 3), (3, 3)]), ([0, 2], [(1, 2), (2, 2)]), (1, [(1, 1)])],
)
def test_every_layer_is_reported_once(layers, steps, lens):
    seen = []
    lens.maps(input_ids=IDS, layers=layers, progress=lambda *step: seen.append(step))
    assert seen == steps


def test_every_batch_is_reported(lens):
    seen = []
    lens.maps(
        input_ids=[IDS, IDS[:3]],
        batch_size=1,
        layers=[0, 1],
        progress=lambda *step: seen.append(step),
    )
    assert seen == [(1, 2), (2, 2)] * 2


@pytest.mark.parametrize("error", [Stop, RuntimeError])
def test_what_it_raises_ends_the_analysis_and_leaves_no_trace(error, lens):
    expected = lens.maps(input_ids=IDS)
    seen = []

    def stop(done, _):
        seen.append(done)
        if done == 2:
            raise error("enough")

    with pytest.raises(error, match="enough"):
        lens.maps(input_ids=IDS, progress=stop)
    assert seen == [1, 2]
    hooks = [
        hook
        for module in lens.model.modules()
        for hook in (*module._forward_hooks, *module._forward_pre_hooks)
    ]
    assert hooks == []
    again = lens.maps(input_ids=IDS)
    for scope in expected.scopes:
        np.testing.assert_array_equal(again[scope], expected[scope])
