"""Small values: messages on one line, strict JSON, layers in words."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_case import in_one_case

from normlens.errors import one_line, parse_json, reason_of, require, system_reason
from normlens.results.axes import plain
from normlens.scopes import layers_in_words, thinned


def test_one_line_keeps_the_spaces_of_names() -> None:
    assert one_line("there is no\n   'a  b.txt' \n\n here\n") == "there is no 'a  b.txt' here"


def test_reasons_are_short_and_never_empty() -> None:
    assert reason_of(ValueError()) == "ValueError"
    assert reason_of(ValueError(" \n")) == "ValueError"
    long = reason_of(ValueError("word\n" * 1000))
    assert long.startswith("word word")
    assert len(long) == 240
    assert long.endswith("…")


def test_the_system_repeats_no_path() -> None:
    assert system_reason(PermissionError(13, "Permission denied", "/a")) == "Permission denied"
    assert system_reason(OSError("no\nspace")) == "no space"


def test_no_test_meets_an_error_of_several_lines() -> None:
    """`conftest.py` looks at every error that is made while tests run."""
    for message in ("two\nlines", ""):
        with pytest.raises(AssertionError):
            require(False, message)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(VALUES, st.sampled_from(["", "\n", "\r\n", "\r", " \n"]))
def test_white_space_may_stand_behind_a_value(value: Any, end: str) -> None:
    assert parse_json(json.dumps(value) + end) == value


def test_what_is_nested_too_deeply_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="too deeply"):
        parse_json("[" * 200_000 + "]" * 200_000 + "\n")


def test_numpy_and_what_is_not_finite() -> None:
    given = {
        1: (np.float32(0.5), np.int64(3), np.bool_(True), float("nan"), -np.float64("inf")),
        "array": np.array([[1.0, np.nan], [np.inf, 2.0]]),
        "flags": np.array([True, False]),
        "objects": np.array([np.float64("nan"), "a", None], dtype=object),
        "text": "ρ",
        "path": PurePosixPath("a/b"),
    }
    found = plain(given)
    assert found == {
        "1": [0.5, 3, True, None, None],
        "array": [[1.0, None], [None, 2.0]],
        "flags": [True, False],
        "objects": [None, "a", None],
        "text": "ρ",
        "path": "a/b",
    }
    assert type(found["1"][1]) is int
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@in_one_case("most", [2, 6, 12])
@in_one_case("count", [2, 6, 12, 13, 96])
def test_thinning_keeps_first_and_last(count: int, most: int) -> None:
    kept = thinned(range(5, 5 + count), most)
    assert (kept[0], kept[-1]) == (5, 4 + count)
    assert len(kept) == min(count, most)
    gaps = {after - before for before, after in pairwise(kept)}
    assert max(gaps) - min(gaps) <= 1  # evenly spread, and none twice
    assert min(gaps) >= 1


@in_one_case(
    ("layers", "words"),
    [
        ([4], "layer 4"),
        (range(3), "layers 0–2"),
        ([0, 2], "layers 0 and 2"),
        ([3, 4, 5, 6, 7, 9, 10, 11], "layers 3–7 and 9–11"),
        ([6, 1, 3], "layers 1, 3 and 6"),
    ],
)
def test_layers_in_words(layers: list[int], words: str) -> None:
    assert layers_in_words(layers) == words
