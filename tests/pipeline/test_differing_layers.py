"""Models whose layers differ: a map of a scope covers the layers that have it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from one_case import in_one_case
from reference import largest_error, references
from scipy.stats import spearmanr
from unlike_examples import _own_registry, unlike  # noqa: F401

import normlens
from normlens.errors import InputError, UnknownScopeError

IDS = [3, 9, 27, 14, 5, 33, 8]
POST = ["ATTNRESLNFF-N", "ATTNRESLNFFRES-N", "ATTNRESLNFFRESLN-N"]
BARE = ["ATTN-W", "ATTNRES-W", "ATTN-N", "ATTNRES-N", "ATTNRESLN-N"]
PARALLEL = ["ATTNFF-N", "ATTNFFRES-N"]
#: The layers post, bare, parallel, post.
COVERED = {
    **{scope: [0, 1, 2, 3] for scope in ("ATTN-W", "ATTNRES-W", "ATTN-N")},
    **{scope: [0, 1, 3] for scope in ("ATTNRES-N", "ATTNRESLN-N")},
    **{scope: [0, 3] for scope in POST},
    **{scope: [2] for scope in PARALLEL},
}


@pytest.fixture
def lens() -> normlens.Lens:
    return normlens.load(unlike())


@pytest.fixture
def maps(lens) -> normlens.Maps:
    return lens.maps(input_ids=IDS)


# The lens -----------------------------------------------------------------------------------------


def test_scopes_are_those_of_any_layer(lens):
    assert lens.scopes == [*BARE, *POST, *PARALLEL]
    assert lens.component_sequence == (
        "ATTN RES LN FF RES LN (layers 0 and 3); ATTN RES LN (layer 1); "
        "(LN) ATTN ∥ (LN) FF RES (layer 2)"
    )


@in_one_case("rule", ["ig", "gradient"])
def test_every_layer_equals_its_reference(rule, lens):
    maps = lens.maps(input_ids=IDS, nonlinearity=rule, heads=True)
    expected = references(lens.model, IDS, rule)
    assert maps.completeness < 1e-12
    assert maps.layers == [0, 1, 2, 3]
    for layer, reference in enumerate(expected):
        here = [scope for scope in maps.scopes if layer in maps.layers_of(scope)]
        assert here == [scope for scope in lens.scopes if scope in reference.maps]
        for scope in here:
            assert largest_error(maps.at(scope, layer), reference.maps[scope]) < 1e-9
            place = maps.layers_of(scope).index(layer)
            ratio = torch.from_numpy(maps.mixing_ratio(scope)[place])
            torch.testing.assert_close(ratio, reference.mixing[scope])
        for scope, heads in reference.head_maps.items():
            assert largest_error(maps.heads[scope][layer], heads) < 1e-9


def test_arrays_say_which_layers_they_cover(maps):
    assert {scope: maps.layers_of(scope) for scope in maps} == COVERED
    for scope in maps:
        assert len(maps[scope]) == len(maps.mixing[scope]) == len(COVERED[scope])
    assert maps.layers_of("ATTNRESLN-N", "ATTNRESLNFF-N") == [0, 3]


def test_a_batch_is_what_each_is_alone(lens):
    batch = [IDS, IDS[:3], IDS[2:6]]
    for together, ids in zip(lens.maps(input_ids=batch, batch_size=3), batch, strict=True):
        alone = lens.maps(input_ids=ids)
        assert together.coverage == alone.coverage
        for scope in alone.scopes:
            assert largest_error(together[scope], alone[scope]) < 1e-12


def test_a_scope_that_is_asked_for_covers_the_layers_that_have_it(lens, maps):
    some = lens.maps(input_ids=IDS, scopes="ATTNRESLNFF")
    assert some.layers == some.layers_of("FF") == [0, 3]
    np.testing.assert_array_equal(some["FF"], maps["ATTNRESLNFF-N"])
    assert len(some.allowed) == 2


def test_a_scope_that_no_layer_of_them_has_is_one_line(lens):
    with pytest.raises(InputError, match=r"no scope ATTNRESLNFF-N in layers 1–2.*: 0, 3$"):
        lens.maps(input_ids=IDS, scopes="ATTNRESLNFF", layers=[1, 2])
    with pytest.raises(UnknownScopeError, match=r"unknown scope 'LN9'.*ATTNFFRES-N"):
        lens.maps(input_ids=IDS, scopes="LN9", layers=[1])


def test_a_short_name_of_several_scopes_is_refused(lens, maps):
    with pytest.raises(UnknownScopeError, match="'FF' could be ATTNRESLNFF-N or ATTNFF-N"):
        maps["FF"]
    with pytest.raises(UnknownScopeError, match="'FF' could be"):
        lens.maps(input_ids=IDS, scopes="FF")
    assert lens.maps(input_ids=IDS, scopes="FF", layers=2).scopes == ["ATTNFF-N"]


def test_correlations_are_nan_where_a_layer_lacks_a_scope(lens):
    (maps,) = lens.analyse(lens.encode(input_ids=IDS), correlations=True)
    found = maps.correlations
    assert found.scopes == lens.scopes
    for layer in maps.layers:
        for a, first in enumerate(found.scopes):
            for b, second in enumerate(found.scopes):
                if layer in maps.layers_of(first, second):
                    values = [maps.at(scope, layer).ravel() for scope in (first, second)]
                    assert found.rho[layer, a, b] == pytest.approx(spearmanr(*values).statistic)
                else:
                    assert np.isnan(found.rho[layer, a, b])


# Choosing -----------------------------------------------------------------------------------------


def test_choosing_a_layer_leaves_the_scopes_that_it_has(maps):
    only = maps.choose(2)
    assert only.scopes == ["ATTN-W", "ATTNRES-W", "ATTN-N", *PARALLEL]
    assert only.layers == [2]
    assert not only.coverage
    np.testing.assert_array_equal(only["FF"][0], maps.at("ATTNFF-N", 2))
    assert maps.choose(-1).scopes == [*BARE, *POST]


def test_choosing_scopes_leaves_the_layers_that_have_them(maps):
    some = maps.choose(scopes=["ATTNRESLN", "ATTNFFRES"])
    assert some.layers == [0, 1, 2, 3]
    assert some.coverage == {
        **{f"{group}/ATTNRESLN-N": [0, 1, 3] for group in ("arrays", "mixing")},
        **{f"{group}/ATTNFFRES-N": [2] for group in ("arrays", "mixing")},
    }
    assert maps.choose([1, 2, 3], "ATTNRESLN").layers == [1, 3]


def test_a_layer_that_a_scope_lacks_is_one_line(maps):
    message = r"no map of ATTNRESLNFF-N in layer 1; these maps have that scope in layers 0 and 3"
    for ask in (
        lambda: maps.choose(1, "ATTNRESLNFF"),
        lambda: maps.at("ATTNRESLNFF", 1),
        lambda: maps.plot(1, "ATTNRESLNFF"),
        lambda: maps.plot_amplification("ATTNRESLN", "ATTNRESLNFF", 1),
    ):
        with pytest.raises(InputError, match=message):
            ask()
    with pytest.raises(InputError, match="layer 7 is not among"):
        maps.at("ATTN-N", 7)


# Measuring ----------------------------------------------------------------------------------------


def test_similarity_is_nan_in_layers_that_lack_a_scope(maps):
    found = maps.similarity("ATTNRESLN", "ATTNRESLNFF")
    np.testing.assert_array_equal(np.isnan(found), [False, True, True, False])
    for layer in (0, 3):
        values = [maps.at(scope, layer).ravel() for scope in ("ATTNRESLN", "ATTNRESLNFF")]
        assert found[layer] == pytest.approx(spearmanr(*values).statistic)
    with pytest.raises(InputError, match="no layer of these maps has both"):
        maps.similarity("ATTNRESLNFF", "ATTNFF")
