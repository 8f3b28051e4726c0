"""JSON from outside is refused with a ValueError, whatever is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_case import in_one_case

from normlens.errors import parse_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(VALUES, st.sampled_from(["", "\n", "\r\n", "\r", " \n"]))
def test_white_space_may_stand_behind_a_value(value: Any, end: str) -> None:
    assert parse_json(json.dumps(value) + end) == value


@in_one_case("end", ["\x0c\n", "\u00a0", "}", " {}"])
def test_nothing_else_may(end: str) -> None:
    with pytest.raises(ValueError, match="Extra data"):
        parse_json('{"text": "a"}' + end)


def test_what_is_nested_too_deeply_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 200_000 + "]" * 200_000 + "\n")
