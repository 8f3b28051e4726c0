"""Models whose layers differ: a map of a scope covers the layers that have it."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from one_case import in_one_case
from reference import largest_error, references
from scipy.stats import spearmanr
from unlike_examples import _own_registry, unlike  # noqa: F401

import normlens
from normlens.cli.map import show_maps
from normlens.errors import InputError, UnknownScopeError
from normlens.options import AnalysisOptions
from normlens.results import exports as export
from normlens.viewer import encode
from normlens.viewer.notebook import _words

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


def test_layers_that_are_asked_for(lens, maps):
    some = lens.maps(input_ids=IDS, layers=[1, 2])
    assert some.layers == [1, 2]
    assert some.scopes == [*BARE, *PARALLEL]
    for scope in some:
        for layer in some.layers_of(scope):
            np.testing.assert_array_equal(some.at(scope, layer), maps.at(scope, layer))


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


def test_statistics_are_of_the_layers_with_a_block(lens):
    maps = lens.maps(input_ids=IDS, statistics=True)
    alone = lens.maps(input_ids=IDS, statistics=True, layers=3)
    for name, array in maps.statistics.items():
        assert maps.covered("statistics", name) == [0, 3]
        np.testing.assert_array_equal(array[1], alone.statistics[name][0])


def test_heads_of_layers_without_the_scope(lens):
    maps = lens.maps(input_ids=IDS, scopes="ATTNRESLNFF", heads=True)
    assert maps.layers == [0, 1, 2, 3]
    assert maps.layers_of("ATTNRESLNFF") == [0, 3]
    assert maps.covered("heads", "ATTN-N") == [0, 1, 2, 3]


def test_standard_errors_are_of_the_scopes_behind_a_sampled_block(lens):
    maps = lens.maps(input_ids=IDS[:4], nonlinearity="shapley", samples=3)
    assert set(maps.standard_error) == set(POST)
    assert maps.covered("standard_error", POST[0]) == [0, 3]


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


def test_a_memory_limit_counts_the_scopes_of_each_layer():
    """A limit that suffices for each layer alone suffices for all."""
    lens = normlens.load(unlike("post bare"))
    for layers in ([0], [0, 1]):
        assert lens.maps(input_ids=IDS, layers=layers, memory_limit="1MB").layers == layers


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


def test_words_and_special_tokens_keep_the_layers(maps):
    labelled = replace(
        maps, token_words=[0, 0, 1, 2, 2, 2, None], word_labels=["a", "b", "c"],
        special=[False] * 6 + [True],
    )  # fmt: skip
    for changed in (labelled.words(), labelled.without_special_tokens()):
        assert {scope: changed.layers_of(scope) for scope in changed} == COVERED


# Measuring ----------------------------------------------------------------------------------------


def test_similarity_is_nan_in_layers_that_lack_a_scope(maps):
    found = maps.similarity("ATTNRESLN", "ATTNRESLNFF")
    np.testing.assert_array_equal(np.isnan(found), [False, True, True, False])
    for layer in (0, 3):
        values = [maps.at(scope, layer).ravel() for scope in ("ATTNRESLN", "ATTNRESLNFF")]
        assert found[layer] == pytest.approx(spearmanr(*values).statistic)
    with pytest.raises(InputError, match="no layer of these maps has both"):
        maps.similarity("ATTNRESLNFF", "ATTNFF")


def test_amplification_is_nan_in_layers_that_lack_a_scope(maps):
    found = maps.amplification("ATTNRESLN", "ATTNRESLNFF")
    assert np.isnan(found[[1, 2]]).all()
    for layer in (0, 3):
        alone = maps.choose(layer).amplification("ATTNRESLN", "ATTNRESLNFF")
        np.testing.assert_array_equal(found[layer], alone[0])


def test_top_pairs_name_the_models_layers(maps):
    whole = maps.top_pairs()  # the block beside the attention amplifies nothing
    assert whole["layer"].unique().tolist() == [0, 3]
    only = maps.choose(3).top_pairs()
    assert whole[whole["layer"] == 3].drop(columns="layer").to_numpy().tolist() == (
        only.drop(columns="layer").to_numpy().tolist()
    )
    assert maps.top_pairs("ATTNFFRES")["layer"].unique().tolist() == [2]


def test_top_pairs_of_two_kinds_of_blocks_need_a_choice():
    maps = normlens.load(unlike("post plain")).maps(input_ids=IDS)
    with pytest.raises(
        InputError, match=r"differ \(ATTNRESLN-N → .* and ATTNRES-N → .*choose layers"
    ):
        maps.top_pairs()
    assert maps.choose(1).feed_forward_pair() == ("ATTNRES-N", "ATTNRESFF-N")
    assert set(maps.choose(1).top_pairs()["layer"]) == {1}


# Taking away --------------------------------------------------------------------------------------


def test_to_pandas_has_the_layers_of_each_scope(maps):
    table = maps.to_pandas()
    covered = table.groupby("scope")["layer"].unique().map(list).to_dict()
    assert covered == COVERED
    row = table.query("scope == 'ATTNRESLNFF-N' and layer == 3 and target == 1 and source == 2")
    assert row["value"].item() == maps.at("ATTNRESLNFF-N", 3)[1, 2]


def test_to_xarray_is_nan_in_layers_that_lack_a_scope(maps):
    pytest.importorskip("xarray")
    data = maps.to_xarray()
    assert data.layer.values.tolist() == [0, 1, 2, 3]
    for scope, layers in COVERED.items():
        for layer in maps.layers:
            found = data[scope].sel(layer=layer).values
            if layer in layers:
                np.testing.assert_array_equal(found, maps.at(scope, layer))
            else:
                assert np.isnan(found).all()


def test_a_file_keeps_the_layers_of_each_array(lens, tmp_path):
    maps = lens.maps(input_ids=IDS, heads=True, statistics=True, scopes=["ATTN", "ATTNRESLNFF"])
    maps.save(tmp_path / "maps.safetensors")
    again = normlens.open(tmp_path / "maps.safetensors")
    assert again == maps
    assert again.layers_of("ATTNRESLNFF") == [0, 3]


def test_csv_and_json_have_the_layers_of_each_array(lens, tmp_path):
    maps = lens.maps(input_ids=IDS, heads=True, scopes=["ATTNRESLNFF"])
    table = export.table(maps)
    whole, heads = table[table["head"].isna()], table[table["head"].notna()]
    assert whole["layer"].unique().tolist() == [0, 3]
    assert heads["layer"].unique().tolist() == [0, 1, 2, 3]
    document = json.loads(json.dumps(export.document(maps)))
    assert document["coverage"]["arrays/ATTNRESLNFF-N"] == [0, 3]
    assert len(document["maps"]["ATTNRESLNFF-N"]) == 2


def test_bertviz_gets_the_layers_of_the_scope(maps):
    assert len(maps.to_bertviz("ATTNRESLNFF")) == 2


# Showing ------------------------------------------------------------------------------------------


def test_an_overview_leaves_places_empty(maps):
    figure = maps.plot_overview(scopes=["ATTN", "ATTNRESLNFF", "ATTNFF"])
    drawn = [axes for axes in figure.axes if axes.images]
    assert len(drawn) == 4 + 2 + 1
    titles = [axes.get_title(loc="left") for axes in drawn]
    assert sorted(filter(None, titles)) == ["ATTN-N", "ATTNFF-N", "ATTNRESLNFF-N"]
    values = [axes.images[0].get_array() for axes in drawn if axes.get_title(loc="left")]
    expected = [maps.at("ATTN", 0), maps.at("ATTNRESLNFF", 0), maps.at("ATTNFF", 2)]
    for shown, wanted in zip(values, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(shown), wanted)
    # The lowest map of each column names its sources.
    assert [bool(axes.get_xlabel()) for axes in drawn].count(True) == 3


def test_a_layer_shows_the_scopes_that_it_has(maps):
    figure = maps.plot(2)
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.images]
    assert [title for title in titles if title] == maps.choose(2).scopes


def test_similarity_has_gaps_where_a_layer_lacks_a_component(maps):
    figure = maps.plot_similarity()
    (axes,) = figure.axes
    lines = {line.get_label().split(":")[0]: line for line in axes.lines}
    np.testing.assert_array_equal(
        np.isnan(lines["ATTNRESLNFF"].get_ydata()), [False, True, True, False]
    )
    np.testing.assert_array_equal(lines["ATTNRESLNFF"].get_xdata(), [0, 1, 2, 3])


def test_the_viewer_has_an_item_per_kind_of_layer(maps):
    data = encode(maps, precision=32)
    length = int.from_bytes(data[8:12], "little")
    items = json.loads(data[12 : 12 + length])["items"]
    assert [item["layers"] for item in items] == [[0, 3], [1], [2]]
    for item in items:
        for scope in item["scopes"]:
            assert set(item["layers"]) <= set(COVERED[scope])
            stored = item["maps"].get(scope)
            assert scope in item["derived"] or len(stored) == len(item["layers"])
    assert items[0]["model"].endswith("(layers 0 and 3)")


def test_the_viewer_opens_the_item_that_has_the_layer(maps):
    assert _words(maps, {"layer": 3}) == {"layer": "3", "item": "0"}
    assert _words(maps, {"layer": 2}) == {"layer": "2", "item": "2"}
    assert _words(maps.choose(2), {"layer": 2}) == {"layer": "2"}


def test_the_summary_of_the_command_line(maps, capsys):
    show_maps(maps)
    printed = capsys.readouterr().out
    assert "ATTNRESLN-N → ATTNRESLNFF-N" in printed
    rows = [line.split() for line in io.StringIO(printed) if line.split()[:1] == ["2"]]
    assert rows[0].count("–") == 5  # the similarities that layer 2 has no scopes for
    assert len(rows) == 1  # and no pair that its block amplifies


def test_options_that_name_layers_are_judged_before_anything_runs(lens):
    with pytest.raises(InputError, match="no scope"):
        lens.analyse([], AnalysisOptions(scopes="ATTNFF", layers=0))
