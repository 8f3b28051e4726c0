"""A cosine's parts as tables, by words and on disk."""

from __future__ import annotations

import json

import numpy as np
import pytest
from crafted_files import save_crafted
from one_case import in_one_case
from safetensors import safe_open
from safetensors.numpy import load_file

import normlens
from normlens.errors import InputError, MapsFileError, OutputError
from normlens.results.axes import TokenAxis
from normlens.results.explanation import Cosine


@pytest.fixture
def pair() -> Cosine:
    generator = np.random.default_rng(0)
    matrix = generator.normal(size=(4, 3))
    a_with_bias, b_with_bias = generator.normal(size=4), generator.normal(size=3)
    return Cosine(
        value=float(matrix.sum() + a_with_bias.sum() + b_with_bias.sum() + 0.25),
        matrix=matrix,
        a_with_bias=a_with_bias,
        b_with_bias=b_with_bias,
        bias=0.25,
        a=TokenAxis(
            ["[CLS]", "fl", "##ute", "."],
            [1, 2, 3, 4],
            [True, False, False, False],
            [None, 0, 0, 1],
            ["flute", "."],
        ),
        b=TokenAxis(["[CLS]", "drum", "!"], [1, 5, 6], [True, False, False], [None, 0, 1],
                    ["drum", "!"]),
        completeness=1e-8,
        provenance={"model": "m", "note": "a note"},
        text_a="flute.",
        text_b="drum!",
    )  # fmt: skip


def test_margins_with_and_without_the_other_texts_bias(pair):
    margins = pair.margins
    np.testing.assert_allclose(margins.a_without_bias, pair.matrix.sum(1))
    np.testing.assert_allclose(margins.b_without_bias, pair.matrix.sum(0))
    unowned_by_a = pair.b_with_bias.sum() + pair.bias
    assert margins.a.sum() + unowned_by_a == pytest.approx(pair.value)
    unowned_by_b = pair.a_with_bias.sum() + pair.bias
    assert margins.b.sum() + unowned_by_b == pytest.approx(pair.value)


def test_the_remainder_is_named(pair):
    assert list(pair.remainder) == [
        "tokens of A × bias of B",
        "bias of A × tokens of B",
        "bias of A × bias of B",
    ]
    assert pair.matrix.sum() + sum(pair.remainder.values()) == pytest.approx(pair.value)


def test_words_keep_every_sum(pair):
    merged = pair.words()
    assert merged.tokens_a == ["[CLS]", "flute", "."]
    assert merged.tokens_b == ["[CLS]", "drum", "!"]
    np.testing.assert_allclose(merged.matrix[1], pair.matrix[1] + pair.matrix[2])
    assert merged.matrix.sum() == pytest.approx(pair.matrix.sum())
    assert merged.remainder == pytest.approx(pair.remainder)
    assert merged.words() == merged
    with pytest.raises(InputError, match="fast tokenizer"):
        Cosine(**{**vars(pair), "a": TokenAxis(["x", "y", "z", "w"])}).words()


def test_tables(pair):
    frame = pair.to_pandas()
    assert list(frame.columns) == ["a", "a_token", "b", "b_token", "value"]
    assert len(frame) == 12
    row = frame[(frame.a == 2) & (frame.b == 1)].iloc[0]
    assert (row.a_token, row.b_token, row.value) == ("##ute", "drum", pair.matrix[2, 1])
    best = pair.top(3)
    assert len(best) == 3
    assert abs(best.value[0]) == np.abs(pair.matrix).max()


def test_labelled_arrays(pair):
    pytest.importorskip("xarray")
    data = pair.to_xarray()
    assert data.matrix.dims == ("a", "b")
    assert float(data.matrix.sum() + data.a_with_bias.sum()) == pytest.approx(
        pair.matrix.sum() + pair.a_with_bias.sum()
    )
    assert data.b_token.values.tolist() == pair.tokens_b


def test_a_representation_says_what_it_consists_of(pair):
    assert "4 × 3 pairs of tokens" in repr(pair)
    assert "a note" in repr(pair)


def test_files_hold_everything(pair, tmp_path):
    path = pair.save(tmp_path / "pair.safetensors")
    with safe_open(path, framework="numpy") as file:
        assert file.metadata()["format"] == "normlens-cosine"
    again = normlens.open(path)
    assert again == pair
    assert again.provenance == pair.provenance
    assert again.words() == pair.words()
    with pytest.raises(OutputError, match="exists already"):
        pair.save(path, overwrite=False)
    pair.save(path)  # it is a file of NormLens
    with pytest.raises(MapsFileError, match="holds Cosine and not Maps"):
        normlens.Maps.load(path)


@in_one_case(
    "change",
    [
        lambda meta: meta.pop("value"),
        lambda meta: meta.update(value="much"),
        lambda meta: meta.update(other=1),
        lambda meta: meta["a"].update(raw_tokens=["x"]),
        lambda meta: meta["b"].update(token_words=[0, 1, 9]),
        lambda meta: meta["b"].pop("special"),
        lambda meta: meta.update(a=[]),
        lambda meta: meta.update(text_a=5),
    ],
)
def test_altered_files_are_one_line(change, pair, tmp_path):
    path = pair.save(tmp_path / "pair.safetensors")
    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    meta = json.loads(header["cosine"])
    change(meta)
    save_crafted(load_file(path), path, metadata={**header, "cosine": json.dumps(meta)})
    with pytest.raises(MapsFileError, match="is damaged"):
        normlens.open(path)


def test_files_of_another_version_are_refused(pair, tmp_path):
    path = pair.save(tmp_path / "pair.safetensors")
    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    save_crafted(load_file(path), path, metadata={**header, "version": "2"})
    with pytest.raises(MapsFileError, match="make it again"):
        normlens.open(path)
