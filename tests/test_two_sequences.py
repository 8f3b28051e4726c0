"""Maps whose columns are other tokens than their rows: another sequence, then the own tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from one_case import in_one_case
from reference import largest_error, reference
from unlike_examples import ReaderAdapter, _own_registry, reader  # noqa: F401

import normlens
from normlens.errors import InputError, UnsupportedModelError
from normlens.results.axes import TokenAxis
from normlens.trace.run import trace

IDS = [3, 9, 27, 14, 5, 33, 8]
SCOPES = ["ATTN-W", "ATTN-N", "ATTNRES-N", "ATTNRESCROSS-N"]
TARGETS = ["[CLS]", "un", "##known", "[SEP]"]
OTHERS = ["<s>", "in", "##connu", "mot", "</s>"]


def rectangular(own: bool = True) -> normlens.Maps:
    """Two layers, four targets and five other tokens; behind them the targets, if `own`."""
    rng = np.random.default_rng(0)
    n, m = len(TARGETS), len(OTHERS) + (len(TARGETS) if own else 0)
    allowed = np.ones((2, n, m), dtype=bool)
    allowed[:, 0, 1] = False

    def draw(*shape: int) -> np.ndarray:
        return rng.random(shape).astype(np.float32)

    special = [True, False, False, False, True]
    return normlens.Maps(
        arrays={scope: draw(2, n, m) * allowed for scope in SCOPES},
        raw_tokens=TARGETS,
        layers=[1, 3],
        allowed=allowed,
        completeness=1e-7,
        provenance={
            "model": "toy", "model_type": "toy", "components": "ATTN RES CROSS", "dtype": "float32",
            "device": "cpu", "tolerance": 1e-4,
        },
        mixing={scope: draw(2, n) for scope in SCOPES},
        heads={"ATTN-N": draw(2, 3, n, m)},
        standard_error={SCOPES[-1]: draw(2, n, m)},
        token_ids=[1, 4, 5, 2],
        special=[True, False, False, True],
        token_words=[None, 0, 0, None],
        word_labels=["unknown"],
        text=("inconnu mot", "unknown"),
        source_axis=TokenAxis(
            [*OTHERS, *TARGETS] if own else OTHERS,
            [10, 11, 12, 13, 14, *([1, 4, 5, 2] if own else [])],
            [*special, *([True, False, False, True] if own else [])],
            [None, 0, 0, 1, None, *([None, 2, 2, None] if own else [])],
            ["inconnu", "mot", "unknown"],
        ),
        same_token=np.eye(n, m, k=len(OTHERS), dtype=bool) if own else None,
    )  # fmt: skip


@pytest.fixture(params=[True, False], ids=["own tokens too", "other tokens alone"])
def maps(request) -> normlens.Maps:
    return rectangular(request.param)


# Labels -------------------------------------------------------------------------------------------


def test_each_axis_has_its_tokens(maps):
    assert maps.tokens == TARGETS
    assert maps.source_tokens[:5] == OTHERS
    assert maps["ATTN"].shape == (2, 4, len(maps.sources))
    same = np.argwhere(maps.is_same_token).tolist()
    assert same == ([[i, 5 + i] for i in range(4)] if len(maps.sources) == 9 else [])


@in_one_case("group", ["arrays", "mixing", "heads", "standard_error"])
def test_arrays_that_do_not_fit_their_labels_are_refused(group, maps):
    wrong = {name: array[..., 1:] for name, array in maps.groups[group].items()}
    with pytest.raises(InputError, match=rf"'{group}/.*' has shape .* for layer 2, .*target 4"):
        replace(maps, **{group: wrong})


# Choosing and merging -----------------------------------------------------------------------------


def test_words_merge_rows_and_columns_by_their_own_words(maps):
    words = maps.words()
    assert words.tokens == ["[CLS]", "unknown", "[SEP]"]
    assert words.source_tokens[:4] == ["<s>", "inconnu", "mot", "</s>"]
    expected = maps["ATTN"][:, 1:3].mean(1)[:, 1:3].sum(1)
    np.testing.assert_allclose(words["ATTN"][:, 1, 1], expected, rtol=1e-6)
    assert words["ATTN"].shape == (2, 3, 7 if len(maps.sources) == 9 else 4)
    assert words.is_same_token.sum() == (3 if len(maps.sources) == 9 else 0)
    assert words.heads["ATTN-N"].shape[-2:] == words["ATTN"].shape[-2:]


# Taking away --------------------------------------------------------------------------------------


def test_a_file_keeps_both_axes(maps, tmp_path):
    for number, some in enumerate([maps, maps.words(), maps.without_special_tokens()]):
        path = some.save(tmp_path / f"{number}.safetensors")
        again = normlens.open(path)
        assert again == some
        assert again.source_axis == some.source_axis
        np.testing.assert_array_equal(again.is_same_token, some.is_same_token)


# From a model -------------------------------------------------------------------------------------


@pytest.fixture
def lens() -> normlens.Lens:
    return normlens.load(reader())


def traced(lens, rows):
    width = max(map(len, rows))
    inputs = {
        "input_ids": torch.tensor([row + [0] * (width - len(row)) for row in rows]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
    }
    layers: list = []
    trace(lens.adapter, inputs, range(2), layers.append)
    return layers


@in_one_case("rule", ["ig", "gradient"])
def test_maps_of_two_sequences_equal_their_reference(rule, lens):
    maps = lens.maps(input_ids=IDS, nonlinearity=rule, heads=True)
    assert maps.completeness < 1e-12
    assert maps.source_tokens == [*(f"m{k}" for k in range(4)), *map(str, IDS)]
    assert maps.layers_of("ATTNRESLNCROSS") == [1]
    assert maps.layers_of("ATTNRESLNFF") == [0]
    for layer in traced(lens, [IDS]):
        other = torch.zeros(4, 12), torch.zeros(3, 7, 4)
        if layer.sources:
            other = layer.sources["memory"][0], layer.alphas[1][0]
        expected = reference(layer.layer, layer.x[0], layer.alphas[0][0], rule, other)
        for scope in layer.layer.scopes:
            assert largest_error(maps.at(scope, layer.index), expected.maps[scope]) < 1e-9, scope
            ratio = maps.mixing_ratio(scope)[maps.layers_of(scope).index(layer.index)]
            torch.testing.assert_close(torch.from_numpy(ratio), expected.mixing[scope])
    assert maps.heads["ATTN-W"].shape == (2, 3, 7, 11)
    assert not maps.heads["ATTN-W"][..., :4].any()
    assert maps.covered("heads", "CROSS-W") == [1]
    np.testing.assert_array_equal(maps.heads["CROSS-W"][0][..., :4], layer.alphas[1][0])
    assert not maps.heads["CROSS-W"][..., 4:].any()


def test_the_other_sequence_is_allowed_where_a_layer_reads_it(lens):
    maps = lens.maps(input_ids=IDS)
    lower = np.tril(np.ones((7, 7), bool))
    np.testing.assert_array_equal(maps.allowed[:, :, 4:], np.stack([lower, lower]))
    assert not maps.allowed[0, :, :4].any()
    assert maps.allowed[1, :, :4].all()
    np.testing.assert_array_equal(maps.is_same_token, np.eye(7, 11, k=4, dtype=bool))


def test_padding_of_either_sequence_is_left_out(lens):
    batch = [IDS, IDS[:3], IDS[1:6]]
    for together, ids in zip(lens.maps(input_ids=batch, batch_size=3), batch, strict=True):
        alone = lens.maps(input_ids=ids)
        assert together.source_tokens == alone.source_tokens
        np.testing.assert_array_equal(together.allowed, alone.allowed)
        for scope in alone:
            assert largest_error(together[scope], alone[scope]) < 1e-12


def test_an_adapter_has_to_say_what_the_other_tokens_are(lens, monkeypatch):
    monkeypatch.setattr(ReaderAdapter, "source_tokens", normlens.Adapter.source_tokens)
    with pytest.raises(UnsupportedModelError, match=r"'memory'.*`source_tokens`"):
        lens.maps(input_ids=IDS)


def test_scores_of_such_a_model_are_not_explained(lens):
    """Its text's tokens would own only a part of a score."""
    with pytest.raises(UnsupportedModelError, match="whose tokens would own a part"):
        lens.explain(input_ids=IDS, direction=[1.0] * 12, position=0)
