"""What a target may see is what the model does: the configuration says it, the weights show it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from one_case import in_one_case
from reference import assert_maps_match, observe, references

import normlens
from normlens.errors import UnsupportedModelError
from normlens.families.bert import Bert
from normlens.families.llama import Llama, Mistral
from normlens.models import adapt, base
from normlens.models.tiny import tiny_families, tiny_model

IDS = [3, 9, 27, 14, 5, 33, 8]
LONG = [3 + k for k in range(20)]

#: Families whose code needs a mask.
CAUSAL_ALONE = ("llama4_text", "modernbert-decoder", "mpt")


def assert_allowed_is_what_has_weight(model: torch.nn.Module, ids: list[int]) -> normlens.Maps:
    adapter = adapt(model)
    maps = normlens.load(model).maps(input_ids=ids)
    alpha = observe(adapter.model, list(adapter.blocks()), ids).alpha
    for allowed, weights in zip(maps.allowed, alpha, strict=True):
        np.testing.assert_array_equal(allowed, (weights > 0).any(0).numpy())
    looks_ahead = any(bool(weights.triu(1).any()) for weights in alpha)
    assert maps.provenance["causal"] == normlens.load(model).causal == (not looks_ahead)
    return maps


# What the configuration says ----------------------------------------------------------------------


@in_one_case("family", sorted({*tiny_families()} - {*CAUSAL_ALONE}))
def test_a_configuration_that_asks_to_look_both_ways(family):
    model = tiny_model(family, is_causal=False).double()
    maps = assert_allowed_is_what_has_weight(model, LONG)
    assert_maps_match(maps, references(model, LONG), 1e-9)


@in_one_case("family", CAUSAL_ALONE)
def test_what_cannot_look_both_ways(family):
    """transformers makes no mask for it then, and stumbles over that."""
    model = tiny_model(family)
    lens = normlens.load(model)
    model.config.is_causal = False
    with pytest.raises(UnsupportedModelError, match="with a causal mask alone; set is_causal"):
        lens.maps(input_ids=IDS)


@in_one_case(("family", "causal"), [("gemma", True), ("gemma2", True), ("gemma3_text", False)])
def test_only_gemma_3_reads_its_setting(family, causal):
    """Gemma 1 and 2 have it too, and mask as ever."""
    assert normlens.load(tiny_model(family, use_bidirectional_attention=True)).causal == causal


@in_one_case("family", ["llama", "mistral", "qwen2", "gemma2", "gemma3_text"])
def test_a_configuration_that_is_changed_after_loading(family):
    """Masks are made from the configuration whenever the model runs."""
    model = tiny_model(family).double()
    lens = normlens.load(model)
    assert lens.causal
    model.config.is_causal = False
    assert not lens.causal
    assert_allowed_is_what_has_weight(model, LONG)
    model.config.is_causal, model.config.sliding_window = True, 5
    assert_allowed_is_what_has_weight(model, LONG)


# What the weights show ----------------------------------------------------------------------------


@pytest.fixture
def adapter_for(monkeypatch):
    """Use another adapter for a family, in this test alone."""
    monkeypatch.setattr(base, "_ADAPTERS", dict(base._ADAPTERS))

    def use(family: str, adapter: type[normlens.Adapter]) -> None:
        base._ADAPTERS[family] = adapter

    return use


class Forgetful(Llama):
    """Does not say that it is causal."""

    causal = False


class TooStrict(Bert):
    """Says that it is causal, and is not."""

    causal = True


class NoWindow(Mistral):
    def window(self, block):
        return None


class NarrowWindow(Mistral):
    def window(self, block):
        return 2


@in_one_case("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@in_one_case("scopes", ["all", "ATTN-W", "ATTN"])
@in_one_case(
    ("family", "adapter", "words"),
    [
        ("llama", Forgetful, "no token of layer 0 looks ahead, .*`causal = True`"),
        ("mistral", NoWindow, "no token of layer 0 looks further back than 2 .*`window`"),
        ("mistral", NarrowWindow, "layer 0 attends to tokens that the adapter NarrowWindow says"),
        ("bert", TooStrict, "layer 0 attends to tokens that the adapter TooStrict says"),
    ],
)
def test_an_adapter_that_is_wrong_about_what_a_target_sees(
    family, adapter, words, scopes, dtype, adapter_for
):
    adapter_for(family, adapter)
    lens = normlens.load(tiny_model(family).to(dtype))
    with pytest.raises(UnsupportedModelError, match=words):
        lens.maps(input_ids=LONG, scopes=scopes)


@in_one_case("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@in_one_case("scale", [10, 100])
@in_one_case("family", ["bert", "mpnet", "modernbert"])
def test_sharp_attention_is_no_reason_to_refuse(family, scale, dtype):
    """Queries so large that most weights are exactly zero, in encoders that look both ways."""
    model = tiny_model(family)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query" in name or "attn.q" in name or "Wqkv" in name:
                parameter[: 16 if "Wqkv" in name else None] *= scale
    lens = normlens.load(model.to(dtype))
    for n in (1, 2, 3, 7, 20):
        lens.maps(input_ids=LONG[:n], scopes="ATTN-W")
