"""Models that lie in memory in a way that they cannot be read, or run, as they are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from one_case import in_one_case
from reference import largest_error

import normlens
from normlens.errors import InputError, UnsupportedModelError
from normlens.models.tiny import tiny_model
from normlens.pipeline.batches import padding_spoils
from normlens.trace.checks import check_weights

IDS = [3, 9, 27, 14, 5, 33, 8]
LONG = [3 + k for k in range(20)]


def refusal(model: torch.nn.Module) -> str:
    with pytest.raises(UnsupportedModelError) as raised:
        normlens.load(model).maps(input_ids=IDS)
    message = str(raised.value)
    assert "\n" not in message
    return message


# Where the weights are ----------------------------------------------------------------------------


@in_one_case("family", ["llama", "bert"])
@in_one_case("place", ["cpu", "disk"])
def test_offloaded_weights(place, family, tmp_path):
    """A module's weights are in memory while they are read, and away again afterwards."""
    accelerate = pytest.importorskip("accelerate", reason="offloading: pip install accelerate")
    expected = normlens.load(tiny_model(family)).prepare().maps(input_ids=IDS)
    model = tiny_model(family)
    if place == "cpu":
        accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    else:
        accelerate.disk_offload(model, tmp_path, execution_device=torch.device("cpu"))
    lens = normlens.load(model)
    assert lens.device == torch.device("cpu")
    maps = lens.prepare().maps(input_ids=IDS)
    for scope in expected.scopes:
        assert largest_error(maps[scope], expected[scope]) < 1e-7, scope
    assert all(parameter.is_meta for parameter in model.parameters())
    with pytest.raises(InputError, match=r"(Llama|Bert)Model cannot be moved"):
        normlens.load(model, device="cpu")


def test_weights_that_were_never_loaded():
    with torch.device("meta"):
        model = tiny_model("llama")
    assert "not in memory, and no hook of accelerate" in refusal(model)


class Spread(torch.nn.Module):
    def parameters(self, recurse=True):
        places = (torch.device("cuda", index) for index in (0, 1))
        return iter([SimpleNamespace(device=place) for place in places])


def test_weights_on_several_devices():
    with pytest.raises(
        UnsupportedModelError, match=r"Spread are spread over cuda:0, cuda:1; only maps"
    ):
        check_weights(Spread(), [])


# How it runs --------------------------------------------------------------------------------------


WINDOWED = ["mistral", "qwen2", "gemma2", "gemma3_text", "phi3", "modernbert", "gpt_neo"]


@in_one_case("both_ways", [False, True])
@in_one_case("dtype", [torch.float64, torch.float16], ids=str)
@in_one_case("family", WINDOWED)
def test_padding_that_no_window_reaches_over(family, dtype, both_ways):
    """The model's own mask would give NaN on real tokens; the numbers are those of each alone."""
    lens = normlens.load(tiny_model(family, is_causal=not both_ways).to(dtype))
    batch = [LONG, IDS[:3], [5], IDS]
    together = lens.maps(input_ids=batch, batch_size=4)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    for found, ids in zip(together, batch, strict=True):
        alone = lens.maps(input_ids=ids)
        assert found.token_ids == ids
        for scope in alone.scopes:
            assert largest_error(found[scope], alone[scope]) < tolerance, scope


def test_batches_that_padding_does_not_spoil_stay_whole():
    windowed, whole = (normlens.load(tiny_model(family)) for family in ("mistral", "llama"))
    double, single = torch.float64, torch.float32
    assert padding_spoils(windowed.layers, double, [9, 3])  # a window of 3 sees 2 back
    assert not padding_spoils(windowed.layers, double, [9, 7])
    assert not padding_spoils(windowed.layers, single, [9, 3])
    assert not padding_spoils(whole.layers, double, [9, 3])
