"""What a user asks of a lens, and how it answers a wrong question."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from one_case import in_one_case
from reference import assert_same_maps, largest_error, references

import normlens
from normlens.errors import (
    InputError,
    MemoryLimitError,
    ModelLoadError,
)
from normlens.models.tiny import tiny_model
from normlens.options import AnalysisOptions
from normlens.pipeline import call

IDS = [3, 9, 27, 14, 5, 33, 8]


@pytest.fixture
def lens(tiny):
    return normlens.load(tiny("bert", torch.float32))


# What the model is --------------------------------------------------------------------------------


def test_properties(lens):
    assert lens.model_type == "bert"
    assert lens.n_layers == 2
    assert not lens.causal
    assert lens.scopes[:3] == ["ATTN-W", "ATTNRES-W", "ATTN-N"]
    assert lens.component_sequence == "ATTN RES LN FF RES LN"
    assert (lens.dtype, lens.compute_dtype) == (torch.float32, torch.float32)
    assert lens.device == torch.device("cpu")
    assert lens.max_tokens == 48
    assert "bert, 2 layers of ATTN RES LN FF RES LN, float32 on cpu" in repr(lens)


@in_one_case(("family", "longest"), [("bert", 48), ("roberta", 46), ("mpnet", 46), ("gpt2", 48)])
def test_the_longest_sequence_is_one_that_runs(family, longest, tiny):
    lens = normlens.load(tiny(family, torch.float32))
    assert lens.max_tokens == longest
    assert len(lens.maps(input_ids=[5] * longest, scopes="ATTN-N", layers=0).tokens) == longest
    with pytest.raises(InputError, match=f"{longest + 1} tokens.*at most {longest}"):
        lens.maps(input_ids=[5] * (longest + 1))


@in_one_case("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(value):
    model = tiny_model("bert")
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight[0, 0] = value
    with pytest.raises(ModelLoadError, match=r"not finite.*encoder\.layer\.1\.output\.dense"):
        normlens.load(model)


# What it shows ------------------------------------------------------------------------------------


def test_maps_of_one_sequence(lens):
    maps = lens.maps(input_ids=IDS)
    assert isinstance(maps, normlens.Maps)
    assert maps.scopes == lens.scopes
    assert all(maps[scope].shape == (2, 7, 7) for scope in maps.scopes)
    assert all(maps.mixing_ratio(scope).shape == (2, 7) for scope in maps.scopes)
    assert maps.allowed.shape == (2, 7, 7)
    assert maps.token_ids == IDS
    assert maps.tokens == [str(i) for i in IDS]
    assert maps.layers == [0, 1]
    assert maps.text is None
    assert not maps.heads
    assert not maps.standard_error


@in_one_case("batch_size", [1, 2, 3, 100, "auto"])
def test_the_order_of_a_list_is_kept(batch_size, lens):
    batch = [IDS, IDS[:2], IDS[1:], IDS[:4], IDS[3:4]]
    found = lens.maps(input_ids=batch, batch_size=batch_size)
    assert [maps.token_ids for maps in found] == batch
    for maps, ids in zip(found, batch, strict=True):
        assert_same_maps(maps, lens.maps(input_ids=ids))


# Choosing -----------------------------------------------------------------------------------------


@in_one_case(
    ("layers", "expected"),
    [
        (None, [0, 1, 2]),
        ("all", [0, 1, 2]),
        (0, [0]),
        (-1, [2]),
        ([2, 0], [0, 2]),
        (range(1, 3), [1, 2]),
        ([1, -2, 1], [1]),
        (np.array([0, 2]), [0, 2]),
        (np.int64(1), [1]),
    ],
)
def test_layers(layers, expected, tiny):
    lens = normlens.load(tiny("albert", torch.float32))
    maps = lens.maps(input_ids=IDS, layers=layers)
    assert maps.layers == expected
    assert all(type(layer) is int for layer in maps.layers)
    assert len(maps["FF"]) == len(maps.allowed) == len(expected)


@in_one_case("layers", [2, -3, [0, 5], "first", 1.5, [0.0]])
def test_layers_that_are_not_there(layers, lens):
    with pytest.raises(InputError, match=r"has layers 0 to 1 \(layers are counted from 0\)$"):
        lens.maps(input_ids=IDS, layers=layers)


@in_one_case("options", [{}, {"origin": "input"}])
def test_no_scope(options, lens):
    with pytest.raises(InputError, match=r"^no scope is chosen; leave `scopes` out to take all$"):
        lens.maps(input_ids=IDS, scopes=[], **options)


# Statistics of the feed-forward block -------------------------------------------------------------


BEHIND = {  # scope just behind the block, and the one that is bypassed
    "bert": ("ATTNRESLNFF-N", "ATTNRESLN-N"),
    "gpt2": ("ATTNRESLNFF-N", "ATTNRES-N"),
    "llama": ("ATTNRESLNFF-N", "ATTNRES-N"),
    "gemma2": ("ATTNLNRESLNFF-N", "ATTNLNRES-N"),
}


@in_one_case("family", BEHIND)
def test_statistics_are_of_the_real_vectors(family, tiny):
    model = tiny(family)
    lens = normlens.load(model)
    found = lens.maps(input_ids=IDS, statistics=True).statistics
    output_scope, bypassed_scope = BEHIND[family]
    input_scope = lens.scopes[lens.scopes.index(output_scope) - 1]
    for layer, expected in enumerate(references(model, IDS)):
        output = expected.parts[output_scope].total
        entry = expected.parts[input_scope].total
        bypassed = expected.parts[bypassed_scope].total
        for name, values in {
            "ff_output_norm": output.norm(dim=-1),
            "bypassed_norm": bypassed.norm(dim=-1),
            "ff_output_mean_abs": output.abs().mean(0),
            "ff_input_mean_abs": entry.abs().mean(0),
        }.items():
            assert largest_error(found[name][layer], values) < 1e-9, name


@in_one_case("rule", ["ig", "shapley"])
@in_one_case("family", ["bert", "gemma2"])
def test_the_map_without_special_dimensions(family, rule, tiny):
    """They are the 1 % (here one) with the lowest γ in the norm behind the block."""
    model = tiny(family)
    lens = normlens.load(model)
    options = {"nonlinearity": rule, "samples": 3}
    maps = lens.maps(input_ids=IDS, statistics=True, **options)
    found = maps.statistics
    for layer, block in enumerate(lens.adapter.blocks()):
        norm = lens.adapter.layer(block).steps[-1 if family == "bert" else -2]
        np.testing.assert_array_equal(found["gamma"][layer], norm.gamma.detach())
        special = found["special_dimensions"][layer]
        assert special.tolist() == [int(norm.gamma.argmin())]
        without = found["ff_without_special"][layer]
        assert (without <= maps["FF"][layer] + 1e-12).all()
        if rule == "ig":
            parts = references(model, IDS)[layer].parts[BEHIND[family][0]].owned
            kept = [k for k in range(parts.shape[-1]) if k not in special]
            assert largest_error(without, parts[..., kept].norm(dim=-1)) < 1e-9
    assert_same_maps(maps, lens.maps(input_ids=IDS, **options), 1e-12)


# Running out of memory ----------------------------------------------------------------------------


def fail_above(monkeypatch, largest: int, error=torch.OutOfMemoryError) -> list[int]:
    """Batches of more than `largest` sequences do not fit; returns the sizes that were tried."""
    tried = []
    real = call.freeze

    def guarded(layer, x, *rest, **options):
        tried.append(len(x))
        if len(x) > largest:
            raise error("out of memory")
        return real(layer, x, *rest, **options)

    monkeypatch.setattr(call, "freeze", guarded)
    return tried


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, RuntimeError])
def test_a_batch_that_does_not_fit_is_halved(error, lens, monkeypatch):
    batch = [IDS, IDS[:2], IDS[1:], IDS[:4], IDS[3:4]]
    expected = [lens.maps(input_ids=ids) for ids in batch]
    tried = fail_above(monkeypatch, 2, error)
    found = lens.maps(input_ids=batch, batch_size=5)
    for maps, alone in zip(found, expected, strict=True):
        assert maps.token_ids == alone.token_ids
        assert_same_maps(maps, alone)
    assert max(tried) == 5


def test_a_single_sequence_that_does_not_fit(lens, monkeypatch):
    fail_above(monkeypatch, 0)
    with pytest.raises(MemoryLimitError, match="7 tokens do not fit into the memory of cpu"):
        lens.maps(input_ids=[IDS, IDS], batch_size=2)
    assert not any(module._forward_hooks for module in lens.model.modules())


# What surrounds the call --------------------------------------------------------------------------


def assert_close(found: normlens.Maps, expected: normlens.Maps) -> None:
    for scope in expected.scopes:
        np.testing.assert_allclose(found[scope], expected[scope], rtol=1e-5, atol=1e-6)


@in_one_case("dtype", [torch.bfloat16, torch.float16])
@in_one_case("family", ["bert", "llama"])
def test_autocast_around_the_call_changes_nothing(family, dtype, tiny):
    lens = normlens.load(tiny(family, torch.float32))
    expected = lens.maps(input_ids=IDS, statistics=True)
    with torch.autocast("cpu", dtype=dtype):
        found = lens.maps(input_ids=IDS, statistics=True)
        assert torch.is_autocast_enabled("cpu")
    assert_close(found, expected)
    assert found.provenance == expected.provenance | {"completeness": found.completeness}
    assert found.completeness < 1e-5


@in_one_case("family", ["bert", "llama"])
def test_a_model_made_under_inference_mode(family):
    expected = normlens.load(tiny_model(family)).maps(input_ids=IDS)
    with torch.inference_mode():
        model = tiny_model(family)
        lens = normlens.load(model)
        assert_close(lens.maps(input_ids=IDS), expected)
    assert_close(lens.maps(input_ids=IDS), expected)
    with torch.inference_mode():  # such weights change without a sign
        for weight in model.parameters():
            weight.mul_(1.25)
    assert_close(lens.maps(input_ids=IDS), normlens.load(model).maps(input_ids=IDS))


# Options and sequences of one's own ---------------------------------------------------------------


def test_analysing_encoded_sequences_is_what_maps_does(lens):
    options = AnalysisOptions(scopes="FF", layers=-1, statistics=True)
    (found,) = lens.analyse(lens.encode(input_ids=IDS), options)
    assert found == lens.maps(input_ids=IDS, scopes="FF", layers=-1, statistics=True)
    assert len(lens.encode(input_ids=[IDS, IDS[:3]])) == 2


@in_one_case(
    ("wrong", "message"),
    [
        ({"nonlinearity": "lrp"}, "ig-bias"),
        ({"precision": "float8"}, "bfloat16"),
        ({"samples": 2.5}, "samples must be a whole number"),
        ({"seed": True}, "seed must be a whole number"),
        ({"batch_size": "big"}, "a number from 1 or 'auto'"),
        ({"memory_limit": "much"}, "not a size"),
    ],
)
def test_options_are_judged_when_they_are_made(wrong, message):
    with pytest.raises(InputError, match=message):
        AnalysisOptions(**wrong)
