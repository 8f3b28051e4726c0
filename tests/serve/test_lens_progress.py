"""A lens says how far it is, and can be stopped behind a layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_loading import save_tiny

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


def test_explanations_and_cosines_are_reported_and_can_be_stopped(tmp_path):
    lens = normlens.load(save_tiny(tmp_path))  # two layers
    vector = np.ones(lens.layers[-1].attention.output.weight.shape[1])

    def explain(progress=None):
        return lens.explain("the cat", direction=vector, position=1, progress=progress)

    def cosine(progress=None):
        return lens.cosine("the cat", "a mat", batch_size=2, progress=progress)

    for ask in (explain, cosine):
        expected, seen = ask(), []
        assert ask(lambda *step, seen=seen: seen.append(step)) == expected
        assert seen == [(1, 2), (2, 2)]

        def stop(done, _):
            raise Stop(done)

        with pytest.raises(Stop, match="1"):
            ask(stop)
        assert ask() == expected
