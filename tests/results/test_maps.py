"""The labelled maps that a lens gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import normlens
from normlens.errors import InputError, UnknownScopeError

SCOPES = ["ATTN-W", "ATTNRES-W", "ATTN-N", "ATTNRES-N", "ATTNRESLN-N", "ATTNRESLNFF-N"]
IDS = [3, 9, 27, 14, 5, 33, 8]


def make(n: int = 6, layers: int = 2, heads: int = 3, causal: bool = False) -> normlens.Maps:
    """Random maps of ``[CLS] un ##aff ##able dog [SEP]`` with everything that maps can hold."""
    rng = np.random.default_rng(0)
    allowed = np.ones((layers, n, n), bool)
    allowed = np.tril(allowed) if causal else allowed

    def draw(*shape: int) -> np.ndarray:
        return rng.random(shape).astype(np.float32)

    return normlens.Maps(
        arrays={scope: draw(layers, n, n) * allowed for scope in SCOPES},
        raw_tokens=["[CLS]", "un", "##aff", "##able", "dog", "[SEP]"][:n],
        layers=list(range(layers)),
        allowed=allowed,
        completeness=1e-7,
        provenance={"model": "toy"},
        mixing={scope: draw(layers, n) for scope in SCOPES},
        heads={scope: draw(layers, heads, n, n) for scope in ("ATTN-W", "ATTN-N")},
        standard_error={SCOPES[-1]: draw(layers, n, n)},
        token_ids=[2, 4, 5, 6, 8, 3][:n],
        special=[True, False, False, False, False, True][:n],
        token_words=[None, 0, 0, 0, 1, None][:n],
        word_labels=["unaffable", "dog"],
        text="unaffable dog",
    )


@pytest.fixture
def maps() -> normlens.Maps:
    return make()


# Looking ------------------------------------------------------------------------------------------


def test_scopes_by_any_name(maps):
    assert maps.scopes == SCOPES
    assert maps["FF"] is maps["ATTNRESLNFF-N"] is maps["attnreslnff"]
    assert "LN" in maps
    assert "LN2" not in maps
    with pytest.raises(UnknownScopeError):
        maps["LN2"]


# Measuring ----------------------------------------------------------------------------------------


def test_amplification(maps):
    found = maps.amplification("LN", "FF")
    after = maps["FF"] / maps["FF"].sum(axis=1, keepdims=True)
    before = maps["LN"] / maps["LN"].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, after - before, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(maps.amplification("LN", "FF", "target").sum(axis=2), 0, atol=1e-6)
    with pytest.raises(InputError):
        maps.amplification("LN", "FF", "both")


# Choosing and merging -----------------------------------------------------------------------------


def test_choose(maps):
    some = maps.choose(layers=1, scopes=["FF", "ATTN"])
    assert some.scopes == ["ATTN-N", "ATTNRESLNFF-N"]
    assert some.layers == [1]
    assert some.tokens == maps.tokens
    for scope in some.scopes:
        np.testing.assert_array_equal(some[scope], maps[scope][1:])
        np.testing.assert_array_equal(some.mixing_ratio(scope), maps.mixing_ratio(scope)[1:])
    np.testing.assert_array_equal(some.heads["ATTN-N"], maps.heads["ATTN-N"][1:])
    assert set(some.heads) == {"ATTN-N"}
    assert set(some.standard_error) == {"ATTNRESLNFF-N"}
    assert some.allowed.shape == (1, 6, 6)


def test_choose_everything_or_nothing(maps):
    same = maps.choose()
    assert (same.scopes, same.layers) == (maps.scopes, maps.layers)
    for asked in ({"layers": []}, {"scopes": []}, {"scopes": "LN9"}):
        with pytest.raises(InputError):
            maps.choose(**asked)


def test_without_special_tokens(maps):
    plain = maps.without_special_tokens()
    inner = slice(1, 5)
    assert plain.tokens == ["un", "##aff", "##able", "dog"]
    assert plain.token_ids == [4, 5, 6, 8]
    assert plain.special == [False] * 4
    assert plain.token_words == [0, 0, 0, 1]
    for scope in SCOPES:
        np.testing.assert_array_equal(plain[scope], maps[scope][:, inner, inner])
        np.testing.assert_array_equal(plain.mixing_ratio(scope), maps.mixing_ratio(scope)[:, inner])
    np.testing.assert_array_equal(plain.heads["ATTN-N"], maps.heads["ATTN-N"][..., inner, inner])
    np.testing.assert_array_equal(
        plain.standard_error[SCOPES[-1]], maps.standard_error[SCOPES[-1]][:, inner, inner]
    )
    assert plain.allowed.shape == (2, 4, 4)


def test_words(maps):
    words = maps.words()
    assert words.tokens == ["[CLS]", "unaffable", "dog", "[SEP]"]
    assert words.special == [True, False, False, True]
    for scope in SCOPES:
        whole, merged = maps[scope], words[scope]
        assert merged.shape == (2, 4, 4)
        np.testing.assert_allclose(merged[:, 0, 1], whole[:, 0, 1:4].sum(-1), rtol=1e-6)
        np.testing.assert_allclose(merged[:, 1, 0], whole[:, 1:4, 0].mean(-1), rtol=1e-6)
        np.testing.assert_allclose(merged[:, 1, 1], whole[:, 1:4, 1:4].sum(-1).mean(-1), rtol=1e-6)
        np.testing.assert_allclose(merged[:, 2, 3], whole[:, 4, 5], rtol=1e-6)
    assert words.heads["ATTN-N"].shape == (2, 3, 4, 4)
    np.testing.assert_allclose(
        words.heads["ATTN-N"][:, :, 0, 1], maps.heads["ATTN-N"][:, :, 0, 1:4].sum(-1), rtol=1e-6
    )


def test_words_of_ids_are_not_known(tiny):
    maps = normlens.load(tiny("bert")).maps(input_ids=IDS)
    with pytest.raises(InputError):
        maps.words()


# Taking away --------------------------------------------------------------------------------------


def test_to_pandas(maps):
    frame = maps.to_pandas()
    assert len(frame) == len(SCOPES) * 2 * 6 * 6
    place = ["scope", "layer", "target", "target_token", "source", "source_token"]
    assert list(frame.columns) == [*place, "value"]
    row = frame.set_index(place).loc["ATTNRESLN-N", 1, 4, "dog", 2, "##aff"]
    assert row.value == maps["LN"][1, 4, 2]


def test_to_xarray(maps):
    xarray = pytest.importorskip("xarray")
    data = maps.to_xarray()
    assert isinstance(data, xarray.Dataset)
    assert data["ATTN-N"].dims == ("layer", "target", "source")
    assert data["heads/ATTN-N"].dims == ("layer", "head", "target", "source")
    assert data["mixing/ATTN-N"].dims == ("layer", "target")
    np.testing.assert_array_equal(data["ATTN-N"].sel(layer=1), maps["ATTN-N"][1])
    dog = data["ATTNRESLNFF-N"].isel(source=data.source_token.values.tolist().index("dog"))
    np.testing.assert_array_equal(dog, maps["FF"][:, :, 4])


# Comparing ----------------------------------------------------------------------------------------


def test_equal_maps_hold_the_same_numbers_and_labels(maps, tmp_path):
    assert maps == make()
    assert maps != make(causal=True)
    assert maps != maps.choose(layers=0)
    assert maps != maps.words()
    assert maps != "maps"
    assert maps == normlens.Maps.load(maps.save(tmp_path / "maps.safetensors"))
    one = maps["FF"].copy()
    one[1, 2, 3] = np.nextafter(one[1, 2, 3], np.float32(1))
    assert maps != replace(maps, arrays={**maps.arrays, SCOPES[-1]: one})
    undefined = replace(maps, arrays={**maps.arrays, SCOPES[-1]: one * np.nan})
    assert undefined == replace(undefined)


# Strongest pairs ----------------------------------------------------------------------------------


def test_top_pairs_of_a_scope(maps):
    table = maps.top_pairs("FF", count=2)
    assert list(table.columns) == [
        "layer", "source", "source_token", "target", "target_token", "value"
    ]  # fmt: skip
    assert table.layer.tolist() == [0, 0, 1, 1]
    off = maps["FF"][0] * (1 - np.eye(6))
    target, source = np.unravel_index(off.argmax(), off.shape)
    best = table.iloc[0]
    assert (best.target, best.source, best.value) == (target, source, off.max())
    assert best.source_token == maps.tokens[source]
