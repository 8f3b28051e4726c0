"""The same numbers on a CUDA device; run alone with ``pytest -m gpu``."""

from __future__ import annotations

import copy

import pytest
import torch
from one_case import in_one_case
from reference import assert_maps_match, largest_error, references

import normlens
from normlens.models.tiny import tiny_families, tiny_model

pytestmark = pytest.mark.gpu

IDS = [3, 9, 27, 14, 5, 33, 8]


@in_one_case("family", tiny_families())
def test_float32_on_cuda_is_close_to_the_float64_reference(family):
    model = tiny_model(family)
    expected = references(copy.deepcopy(model).double(), IDS)
    maps = normlens.load(model, device="cuda").maps(input_ids=IDS, precision="float32")
    assert maps.provenance["device"].startswith("cuda")
    assert_maps_match(maps, expected, 1e-4)
    assert maps.completeness <= 1e-4


@in_one_case("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@in_one_case("family", ["bert", "gpt2", "llama"])
def test_half_precision_on_cuda(family, dtype):
    model = tiny_model(family)
    expected = normlens.load(copy.deepcopy(model)).maps(input_ids=IDS)
    maps = normlens.load(model, device="cuda", dtype=dtype).maps(input_ids=IDS)
    tolerance = 1e-2 if dtype == torch.float16 else 8e-2
    for scope in expected.scopes:
        assert largest_error(maps[scope], expected[scope]) < tolerance, scope


@in_one_case("family", ["bert", "llama"])
def test_the_big_tensors_never_reach_the_device(family):
    """Peak memory stays below one float32 tensor of n × n × d elements."""
    n, d = 512, 128
    model = tiny_model(family, hidden_size=d, intermediate_size=256, max_position_embeddings=n + 8)
    lens = normlens.load(model, device="cuda")
    ids = [3 + index % 60 for index in range(n)]
    lens.maps(input_ids=ids)  # libraries take their workspaces on the first call
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    lens.maps(input_ids=ids)
    assert torch.cuda.max_memory_allocated() - before < 4 * n * n * d
