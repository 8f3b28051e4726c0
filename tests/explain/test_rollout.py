"""The product of layers itself, and the maps that hold one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_case import in_one_case
from rollout_examples import IDS, slow_rollout

import normlens
from normlens.errors import InputError
from normlens.measures.maps import reachable, rollout
from normlens.results.rolled import ROLLOUT


@pytest.fixture
def maps(tiny):
    return normlens.load(tiny("bert", torch.float32)).maps(input_ids=IDS)


# The formula --------------------------------------------------------------------------------------


@given(
    layers=st.integers(1, 4),
    n=st.integers(1, 5),
    residual=st.sampled_from([0.0, 0.5, 0.9]),
    normalise=st.booleans(),
    seed=st.integers(0, 100),
)
def test_every_path_is_counted(layers, n, residual, normalise, seed):
    maps = np.random.default_rng(seed).random((layers, n, n))
    found = rollout(maps, residual=residual, normalise=normalise)
    np.testing.assert_allclose(found, slow_rollout(maps, residual, normalise), rtol=1e-12)
    if normalise:
        np.testing.assert_allclose(found.sum(-1), 1)


def test_what_windows_reach_grows_with_the_layers():
    n = 5
    window = np.tri(n, dtype=bool) & ~np.tri(n, k=-2, dtype=bool)  # itself and the token before
    found = reachable(np.stack([window] * 3))
    for layer in range(3):
        expected = np.tri(n, dtype=bool) & ~np.tri(n, k=-2 - layer, dtype=bool)
        np.testing.assert_array_equal(found[layer], expected)


def test_what_is_reached_through_many_layers_is_no_overflow():
    apart = np.kron(np.eye(2), np.ones((40, 40))) > 0
    np.testing.assert_array_equal(reachable(np.stack([apart] * 250))[-1], apart)


# Maps ---------------------------------------------------------------------------------------------


def test_maps_keep_their_labels_and_say_what_they_are(maps):
    rolled = maps.rollout("ln1")
    assert rolled.scopes == ["ATTNRESLN-N"]
    assert rolled.tokens == maps.tokens
    assert rolled.layers == maps.layers
    assert rolled.completeness == maps.completeness
    assert rolled.provenance["origin"] == ROLLOUT
    expected = {"method": "ATTNRESLN-N", "residual": 0.0, "normalise": True}
    assert rolled.provenance["rollout"] == expected
    assert maps.provenance["origin"] == "layer"
    single = slow_rollout(maps["LN1"].astype(np.float64), 0.0, True)
    np.testing.assert_allclose(rolled["LN1"], single, rtol=1e-6)


@in_one_case("layers", [[1], [0, 2]])
def test_some_layers_only_are_refused(layers, tiny):
    maps = normlens.load(tiny("albert", torch.float32)).maps(input_ids=IDS, layers=layers)
    with pytest.raises(InputError):
        maps.rollout("LN1")
