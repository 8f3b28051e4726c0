"""Maps in half precision: the same maps, rounded, and never a number that float16 cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from one_case import in_one_case

import normlens
from normlens import Maps
from normlens.errors import InputError
from normlens.measures import maps as measures
from normlens.models.tiny import tiny_model
from normlens.pipeline.batches import HALF_RANGE

IDS = [3, 9, 27, 14, 5, 33, 8]


def rounded(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16)


@pytest.fixture(scope="module")
def lens() -> normlens.Lens:
    return normlens.load(tiny_model("bert"))


@pytest.fixture(scope="module")
def whole(lens: normlens.Lens) -> Maps:
    return lens.maps(input_ids=IDS, heads=True, statistics=True)


@pytest.fixture(scope="module")
def half(lens: normlens.Lens) -> Maps:
    return lens.maps(input_ids=IDS, heads=True, statistics=True, map_dtype="float16")


def test_maps_are_rounded_and_nothing_else_is(whole: Maps, half: Maps) -> None:
    for group in ("arrays", "heads"):
        for name, array in whole.groups[group].items():
            assert array.dtype == np.float32
            assert half.groups[group][name].dtype == np.float16
            assert np.array_equal(half.groups[group][name], rounded(array))
    for group in ("mixing", "statistics"):
        assert half.groups[group].keys() == whole.groups[group].keys()
        for name, array in whole.groups[group].items():
            assert half.groups[group][name].dtype == array.dtype
            assert np.array_equal(half.groups[group][name], array)
    assert half.completeness == whole.completeness
    assert half.provenance["map_dtype"] == "float16"
    assert "map_dtype" not in whole.provenance


@in_one_case("model_type", ["gpt2", "t5", "mixtral"])
def test_every_kind_of_model(model_type: str) -> None:
    lens = normlens.load(tiny_model(model_type))
    ids: dict[str, Any] = {"input_ids": [IDS, IDS[:3]]}
    if lens.two_stacks:
        ids["decoder_input_ids"] = [[2, 5, 7], [4, 1]]
    found = lens.maps(**ids, heads=True, map_dtype="float16")
    for half, whole in zip(found, lens.maps(**ids, heads=True), strict=True):
        both = [(half, whole)]
        if whole.encoder is not None:
            assert half.encoder is not None
            both.append((half.encoder, whole.encoder))
        for ours, theirs in both:
            for group in ("arrays", "heads"):
                for name, array in theirs.groups[group].items():
                    assert np.array_equal(ours.groups[group][name], rounded(array))


# What float16 cannot hold -----------------------------------------------------------------------


def with_output(scale: float) -> normlens.Lens:
    """A GPT-2 whose first feed-forward block gives vectors of another size."""
    model = tiny_model("gpt2")
    with torch.no_grad():
        model.h[0].mlp.c_proj.weight.mul_(scale)
        model.h[0].mlp.c_proj.bias.mul_(scale)
    return normlens.load(model)


def test_a_map_beyond_the_range_is_refused_by_its_name() -> None:
    lens = with_output(1e7)
    peak = max(lens.maps(input_ids=IDS, layers=0)[scope].max() for scope in ("FF", "RES2"))
    assert HALF_RANGE[1] < peak < np.inf
    with pytest.raises(InputError, match=r"ATTNRESLNFF-N in layer 0.*65,504.*leave `map_dtype`"):
        lens.maps(input_ids=IDS, map_dtype="float16")
    assert lens.maps(input_ids=IDS, scopes="LN1", layers=0, map_dtype="float16")


def test_a_map_that_would_lose_its_digits_is_refused() -> None:
    lens = with_output(1e-9)
    with pytest.raises(InputError, match=r"ATTNRESLNFF-N in layer 0.*too small"):
        lens.maps(input_ids=IDS, map_dtype="float16")


# What becomes of them ---------------------------------------------------------------------------


def test_sums_do_not_stand_still() -> None:
    """2,048 + 1 is 2,048 in float16."""
    tall = np.ones((1, 4096, 1), dtype=np.float16)
    assert np.allclose(measures.normalise(tall).sum(), 1, atol=1e-6)
    words = measures.merge_words(np.ones((1, 1, 4096), np.float16), [[0]], [range(4096)])
    assert words.item() == 4096
