"""Texts as people have them: whatever holds several, in its order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from one_case import in_one_case
from test_loading import tiny_tokenizer

import normlens
from normlens.errors import InputError
from normlens.inputs import as_list
from normlens.models.tiny import tiny_model

TEXTS = ["the cat sat", "a mat", "the cats sat on a mat"]

SEVERAL = {
    "list": lambda: list(TEXTS),
    "Series": lambda: pd.Series(TEXTS, index=[7, 3, 5]),
    "Series of strings": lambda: pd.Series(TEXTS, dtype="string"),
    "categories": lambda: pd.Series(TEXTS, dtype="category"),
    "Index": lambda: pd.Index(TEXTS),
    "array": lambda: np.array(TEXTS),
    "array of objects": lambda: np.array(TEXTS, dtype=object),
    "arrow": lambda: pa.array(TEXTS),
    "arrow, in pieces": lambda: pa.chunked_array([TEXTS[:1], TEXTS[1:]]),
    "generator": lambda: (text for text in TEXTS),
    "map": lambda: map(str, TEXTS),
    "values": lambda: dict(enumerate(TEXTS)).values(),
    "keys": lambda: dict.fromkeys(TEXTS).keys(),
}


@pytest.fixture(scope="module")
def lens() -> normlens.Lens:
    return normlens.load(tiny_model("bert"), tiny_tokenizer())


def test_several_texts_give_a_list(lens):
    expected = [lens.maps(text) for text in TEXTS]
    for name, make in SEVERAL.items():
        assert as_list(make()) == TEXTS, name
    for make in (SEVERAL["Series"], SEVERAL["array"], SEVERAL["generator"]):
        maps = lens.maps(make())
        assert isinstance(maps, list)
        for one, other in zip(maps, expected, strict=True):
            assert one.text == other.text
            np.testing.assert_allclose(one["ATTN-N"], other["ATTN-N"], rtol=1e-5, atol=1e-6)


def test_a_column_of_datasets():
    datasets = pytest.importorskip("datasets", reason="columns: pip install datasets")
    rows = datasets.Dataset.from_dict({"text": TEXTS, "label": [0, 1, 0]})
    assert as_list(rows["text"]) == TEXTS
    with pytest.raises(InputError):
        as_list(rows)


@in_one_case("one", ["a mat", ("a mat", "the cat"), np.str_("a mat"), np.array("a mat")])
def test_one_text_stays_one(one, lens):
    assert isinstance(lens.maps(one), normlens.Maps)


@in_one_case(
    "thing",
    [
        pd.DataFrame({"text": TEXTS}),
        {"a": "the cat"},
        set(TEXTS),
        np.ones((2, 2)),
        pd.Series(["a mat", None]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_texts_is_refused(thing: Any, lens):
    with pytest.raises(InputError):
        lens.maps(thing)
