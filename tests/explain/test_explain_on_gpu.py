"""Explanations on a CUDA device; run alone with ``pytest -m gpu``."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from heads import every_head, headed
from one_case import in_one_case
from pair_models import FAMILIES, TARGET, generating, source_of

import normlens
from normlens.layers import ANY
from normlens.models.base import read_head
from normlens.pipeline.recordings import BEFORE

pytestmark = pytest.mark.gpu

IDS = [5, 17, 31, 8, 44, 23, 12]


def explained(model, **asked):
    lens = normlens.load(model, tokenizer=False)
    head = read_head(lens.adapter)
    if head.reads == ANY and head.task != "causal language model":
        asked.setdefault("position", 3)
    return lens.explain(input_ids=IDS, target=2, contrast=1, heads=True, **asked)


@in_one_case(("family", "task"), every_head())
def test_float32_on_cuda_is_close_to_float64(family, task):
    model = headed(family, task)
    exact = explained(model)
    found = explained(copy.deepcopy(model).float().cuda())
    scale = np.abs(exact.nodes).max() + abs(exact.value)
    for name in ("contributions", "components", "heads", "flow", "head_flow"):
        error = np.abs(getattr(found, name) - getattr(exact, name)).max()
        assert error < 1e-4 * scale, name
    assert found.completeness < 1e-5


@in_one_case("family", FAMILIES)
def test_encoder_decoders_on_cuda_are_close_to_float64(family):
    model = generating(family)
    asked = dict(source_of(family), decoder_input_ids=TARGET, token=3, contrast=1, heads=True)
    exact = normlens.load(model, tokenizer=False).explain(**asked)
    on_cuda = copy.deepcopy(model).float().cuda()
    found = normlens.load(on_cuda, tokenizer=False).explain(**asked)
    scale = np.abs(exact.nodes).max() + abs(exact.value)
    for name in ("nodes", "components", "heads", "cross_heads", "flow", "head_flow"):
        error = np.nanmax(np.abs(getattr(found, name) - getattr(exact, name)))
        assert error < 1e-4 * scale, name
    assert found.completeness < 1e-5


# Recorded passes ----------------------------------------------------------------------------------

OTHERS = [9, 2, 40, 11, 7, 30, 28]
ARRAYS = ("contributions", "nodes", "components", "heads", "flow", "head_flow")


def assert_same(found, expected):
    assert found.value == expected.value
    assert found.completeness == expected.completeness
    for name in ARRAYS:
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert np.array_equal(ours, theirs, equal_nan=True), name
    assert found.biases == expected.biases


@in_one_case(("family", "task"), every_head())
def test_replayed_passes_have_the_same_bits(family, task):
    lens = normlens.load(headed(family, task).float().cuda(), tokenizer=False)
    head = read_head(lens.adapter)
    asked = {"target": 2, "contrast": 1, "heads": True}
    if head.reads == ANY and head.task != "causal language model":
        asked["position"] = 3
    first = [lens.explain(input_ids=ids, **asked) for ids in (IDS, OTHERS)]
    for _ in range(BEFORE + 2):
        for ids, expected in zip((IDS, OTHERS), first, strict=True):
            assert_same(lens.explain(input_ids=ids, **asked), expected)
