"""What every method promises: one contract, and numbers that depend on the text alone."""

from __future__ import annotations

import numpy as np
import pytest
from largest_tensor import LargestTensor
from one_case import in_one_case
from reference import largest_error
from rollout_examples import BATCH, IDS

import normlens
from normlens.errors import InputError, MemoryLimitError
from normlens.explain import rollouts
from normlens.explain.rollouts import RolloutOptions, alti
from normlens.models.tiny import tiny_model

NAMES = [*rollouts.METHODS, "rollout-attn"]
FAMILIES = ["bert", "gpt2", "llama", "gemma2", "phi3", "modernbert"]
N, D, M = 64, 16, 40


def tried(family: str, name: str) -> bool:
    return name != "globenc" or family == "bert"


CASES = [(family, name) for family in FAMILIES for name in NAMES if tried(family, name)]
each_case = in_one_case(("family", "name"), CASES)


def assert_equal(found: normlens.Maps, expected: normlens.Maps, tolerance: float = 1e-6) -> None:
    assert found.scopes == expected.scopes
    assert found.tokens == expected.tokens
    np.testing.assert_array_equal(found.allowed, expected.allowed)
    for scope in expected.scopes:
        assert largest_error(found[scope], expected[scope]) <= tolerance


@each_case
def test_padded_equals_alone(family, name, tiny):
    lens, method = normlens.load(tiny(family)), rollouts.method(name)
    together = method(lens, lens.encode(input_ids=BATCH), RolloutOptions(batch_size=3))
    for ids, maps in zip(BATCH, together, strict=True):
        (alone,) = method(lens, lens.encode(input_ids=ids))
        assert_equal(maps, alone)


@in_one_case("name", ["alti", "value-zeroing"])
@in_one_case("family", FAMILIES)
def test_chunked_equals_whole(family, name, tiny):
    lens, method = normlens.load(tiny(family)), rollouts.method(name)
    encoded = lens.encode(input_ids=BATCH)
    whole = method(lens, encoded, RolloutOptions(batch_size=3))
    for limit in ("20KB", "100KB"):
        options = RolloutOptions(batch_size=3, memory_limit=limit)
        for part, maps in zip(method(lens, encoded, options), whole, strict=True):
            assert_equal(part, maps)


@each_case
def test_causal_models_look_back_alone(family, name, tiny):
    lens = normlens.load(tiny(family))
    (maps,) = rollouts.method(name)(lens, lens.encode(input_ids=IDS))
    (array,) = maps.arrays.values()
    assert not array[~maps.allowed].any()
    if lens.causal:
        assert not np.triu(array, 1).any()
    assert array[maps.allowed].max() > 0


# Refusals -----------------------------------------------------------------------------------------


@in_one_case("family", ["gpt2", "llama", "gptj", "modernbert", "olmo2"])
def test_globenc_needs_two_norms_behind_residuals(family, tiny):
    lens = normlens.load(tiny(family))
    with pytest.raises(InputError):
        rollouts.globenc(lens, lens.encode(input_ids=IDS))


def test_alti_refuses_what_has_no_vectors(tiny):
    lens = normlens.load(tiny("bert"))
    encoded = lens.encode(input_ids=IDS)
    for asked in (
        {"scope": "ATTN-W"}, {"nonlinearity": "shapley"}, {"nonlinearity": "integral"}
    ):  # fmt: skip
        with pytest.raises(InputError):
            alti(lens, encoded, **asked)
    with pytest.raises(MemoryLimitError):
        alti(lens, encoded, RolloutOptions(memory_limit=100))
    with pytest.raises(InputError):
        RolloutOptions(memory_limit="much")


# Memory -------------------------------------------------------------------------------------------


@in_one_case("name", ["alti", "globenc"])
def test_no_vector_for_every_pair(name):
    model = tiny_model("bert", max_position_embeddings=N, intermediate_size=M)
    lens = normlens.load(model)
    encoded = lens.encode(input_ids=[3 + k % 60 for k in range(N)])
    with LargestTensor() as watcher:
        rollouts.method(name)(lens, encoded, RolloutOptions(memory_limit="200KB"))
    assert N * N <= watcher.largest < N * N * D
