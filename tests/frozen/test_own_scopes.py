"""Scopes of users' own: some of a layer's components, complete like the prefixes of the papers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from one_case import in_one_case
from reference import assert_same_maps, kept_parts, largest_error, observe

import normlens
from normlens.errors import InputError
from normlens.scopes import OWN_SCOPES

IDS = [2, 5, 6, 8, 3, 7]


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(OWN_SCOPES):
        monkeypatch.delitem(OWN_SCOPES, name)


@in_one_case(
    "family, components",
    [
        ("bert", "ATTN RES1 LN1 LN2"),  # GlobEnc's
        ("bert", "ATTN RES1 LN1 RES2 LN2"),  # the same: there is nothing around which RES2 stands
        ("bert", "ATTN RES1 LN1 FF LN2"),
        ("bert", "ATTN LN1"),
        ("gpt2", "ATTN LN"),
        ("llama", "ATTN1 LN"),
        ("gptj", "ATTN RES"),
    ],
)
def test_maps_of_kept_components_are_those_of_a_slow_reference(family, components, tiny):
    normlens.register_scope("kept", components)
    model = tiny(family)
    lens = normlens.load(model)
    maps = lens.maps(input_ids=IDS, scopes=[*lens.scopes, "kept"])
    assert maps.scopes[:-1] == lens.scopes
    assert maps.completeness < 1e-6  # many norms and softmaxes run in float32
    seen = observe(model, list(lens.adapter.blocks()), IDS)
    for index, (layer, x, alpha) in enumerate(zip(lens.layers, seen.x, seen.alpha, strict=True)):
        expected = kept_parts(layer, x, alpha, layer.kept_steps(maps.scopes[-1]))
        assert largest_error(maps["kept"][index], expected.map) < 1e-6
        ratio = torch.from_numpy(maps.mixing_ratio("kept")[index])
        assert largest_error(ratio, expected.mixing) < 1e-6


@in_one_case("family", ["bert", "gpt2", "gptj", "mixtral", "mobilebert", "bart"])
def test_all_components_are_the_whole_layer(family, tiny):
    lens = normlens.load(tiny(family))
    layer = lens.layers[-1]
    names = [name for step, name in layer.step_names.items() if step in layer.scope_of_step]
    normlens.register_scope("all_of_it", names)
    given = {"input_ids": IDS, **({"decoder_input_ids": [2, 5, 7]} if lens.two_stacks else {})}
    for rule in ("ig", "gradient"):
        asked = [lens.scopes[-1], "all_of_it"]
        maps = lens.maps(**given, scopes=asked, nonlinearity=rule)
        np.testing.assert_allclose(maps["all_of_it"], maps[lens.scopes[-1]], rtol=1e-9, atol=1e-12)


def test_a_result_holds_them_like_any_scope(tiny, tmp_path):
    normlens.register_scope(" GlobEnc", ["attn", "res1", "ln1", "ln2"])
    lens = normlens.load(tiny("bert"))
    maps = lens.maps(input_ids=IDS, scopes=["LN1", "globenc", "LN2"])
    name = "GLOBENC=ATTN+RES1+LN1+LN2-N"
    assert maps.scopes == ["ATTNRESLN-N", "ATTNRESLNFFRESLN-N", name]
    assert lens.scopes == normlens.load(tiny("bert")).scopes
    maps.save(tmp_path / "maps.safetensors")
    OWN_SCOPES.clear()  # as in another process
    back = normlens.open(tmp_path / "maps.safetensors")
    assert back == maps
    assert np.array_equal(back["globenc"], maps[name])
    rho = back.similarity("LN1", "GLOBENC")
    assert ((rho > -1) & (rho < 1)).all()
    assert set(back.to_pandas()["scope"]) == set(maps.scopes)


def test_padded_texts_are_as_alone(tiny):
    normlens.register_scope("kept", "ATTN RES1 LN1 LN2")
    lens, batch = normlens.load(tiny("bert")), [IDS, IDS[:3], IDS[2:]]
    for found, ids in zip(lens.maps(input_ids=batch, scopes="kept"), batch, strict=True):
        assert_same_maps(found, lens.maps(input_ids=ids, scopes="kept"), 1e-9)


@in_one_case(
    "name, components",
    [
        ("LN2", "ATTN RES1"),
        ("ATTNRESLN", "ATTN RES1"),
        ("all", "ATTN"),
        ("a name", "ATTN"),
        ("mine", "ATTN RES1 FOO"),
        ("mine", "ATTN LN2 LN1"),
        ("mine", "ATTN RES1 RES1"),
        ("mine", "RES1 LN1"),
        ("mine", ""),
    ],
)
def test_what_cannot_be_meant_is_refused(name, components):
    with pytest.raises(InputError):
        normlens.register_scope(name, components)
    assert not OWN_SCOPES


@in_one_case(
    "components, options",
    [
        ("ATTN RES LN", {}),  # the layers have RES1 and RES2
        ("ATTN RES1 FF LN1", {}),  # LN1 stands before FF
        ("ATTN RES1 LN3", {}),
        ("ATTN RES1", {"origin": "input"}),
        ("ATTN RES1 LN1 FF", {"nonlinearity": "shapley"}),
    ],
)
def test_what_a_model_does_not_have_is_refused(components, options, tiny):
    normlens.register_scope("mine", components)
    with pytest.raises(InputError):
        normlens.load(tiny("bert")).maps(input_ids=IDS, scopes="mine", **options)


def test_a_residual_around_a_norm_alone_is_refused(tiny):
    normlens.register_scope("mine", "ATTN RES1 LN RES2")
    with pytest.raises(InputError):
        normlens.load(tiny("gpt2")).maps(input_ids=IDS, scopes="mine")
