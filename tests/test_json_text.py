"""A line of JSON is accepted and refused as any JSON text is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normlens.errors import parse_json, parse_json_line

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def outcome(parse: Any, text: str) -> tuple[str, str]:
    try:
        return "value", repr(parse(text))
    except ValueError as error:
        return type(error).__name__, str(error)


@given(VALUES, st.sampled_from(["", "\n", "\r\n", "\r", " \n", "\x0c\n", "\u00a0", "}", " {}"]))
def test_what_stands_behind_a_value(value: Any, end: str) -> None:
    text = json.dumps(value) + end
    assert outcome(parse_json_line, text) == outcome(parse_json, text)


@given(st.text('{}[]",:\\u0123456789eEntrfalsi- \n\t\ufeff', max_size=12))
def test_any_characters(text: str) -> None:
    assert outcome(parse_json_line, text) == outcome(parse_json, text)


@pytest.mark.parametrize("parse", [parse_json, parse_json_line])
def test_what_is_nested_too_deeply_is_a_value_error(parse: Any) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse("[" * 200_000 + "]" * 200_000 + "\n")
