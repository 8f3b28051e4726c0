"""Who computes the feed-forward stage, and that the result says in which precision."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch
from one_case import in_one_case

import normlens
from normlens.gpu import sizes as memory
from normlens.models.tiny import tiny_model
from normlens.options import PRECISIONS

IDS = [3, 9, 27, 14]


@in_one_case("precision", PRECISIONS)
@in_one_case("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_on_a_cpu_tiles_run_in_the_precision_of_the_weights(dtype, precision):
    lens = normlens.load(tiny_model("bert").to(dtype), device="cpu")
    maps = lens.maps(input_ids=IDS, precision=precision)
    assert maps.provenance["precision"] == str(dtype).removeprefix("torch.")


@pytest.fixture
def no_triton(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "triton" else find(name)
    )
    memory.has_triton.cache_clear()
    yield
    memory.has_triton.cache_clear()


def test_a_missing_triton_is_mentioned_once(no_triton):
    with pytest.warns(RuntimeWarning, match="pip install triton"):
        assert not memory.has_triton()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not memory.has_triton()


@in_one_case(
    ("device", "dtype", "expected"),
    [
        ("cuda", torch.float32, True),
        ("cuda:1", torch.float32, True),
        ("cuda", torch.float64, False),
        ("cpu", torch.float32, False),
        ("mps", torch.float32, False),
    ],
)
def test_a_gpu_that_is_not_here_is_taken_for_one_that_runs_kernels(
    device, dtype, expected, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert memory.kernels_run_on(torch.device(device), dtype) == expected


@in_one_case(("capability", "expected"), [((7, 5), False), ((8, 0), True)])
def test_a_gpu_that_is_here_is_asked(capability, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(memory, "has_triton", lambda: True)
    assert memory.kernels_run_on(torch.device("cuda"), torch.float32) == expected
    monkeypatch.setattr(memory, "has_triton", lambda: False)
    assert not memory.kernels_run_on(torch.device("cuda"), torch.float32)
