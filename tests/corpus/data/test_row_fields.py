"""A row that is one text takes a short way, which comes to what the long one does."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normlens.corpus.data import tables
from normlens.corpus.data.records import ReadOptions
from normlens.errors import InputError

TEXTS = st.text(max_size=3) | st.sampled_from(["", "  ", " a ", "\ud800", "ü", "\u00a0"])
VALUES = TEXTS | st.none() | st.integers(0, 2) | st.lists(TEXTS, max_size=3)
NAMES = st.sampled_from(["sentence", "text", "words", "tokens", "other", "other.text", "label"])
CHOSEN = st.none() | NAMES


def outcome(row: dict[str, Any], options: ReadOptions, structured: bool) -> Any:
    try:
        return tables.row_fields("data.jsonl", "line 3", row, options, structured)
    except InputError as error:
        return str(error)


@given(
    st.dictionaries(NAMES, VALUES | st.dictionaries(NAMES, VALUES, max_size=1), max_size=3),
    st.builds(
        ReadOptions, column=CHOSEN, pair_column=CHOSEN, extra=st.sampled_from([(), ("label",)])
    ),
    st.booleans(),
)
def test_both_ways_agree(row: dict[str, Any], options: ReadOptions, structured: bool) -> None:
    given = outcome(row, options, structured)
    with mock.patch.object(tables, "_usual_text", return_value=None):
        assert outcome(row, options, structured) == given


@pytest.mark.parametrize(
    ("row", "options", "taken"),
    [
        ({"text": " a "}, ReadOptions(), "a"),
        ({"sentence": "b", "text": "a"}, ReadOptions(), "b"),
        ({"text": "a", "other": "c"}, ReadOptions(column="other"), "c"),
        ({"text": " "}, ReadOptions(), ""),
        ({"text": "\ud800"}, ReadOptions(), None),
        ({"text": "a", "words": ["b"]}, ReadOptions(), None),
        ({"text": "a", "label": "b"}, ReadOptions(extra=("label",)), None),
        ({"text": ["a", "b"]}, ReadOptions(), None),
        ({"other": {"text": "a"}}, ReadOptions(column="other.text"), None),
    ],
)
def test_which_rows_take_it(row: dict[str, Any], options: ReadOptions, taken: str | None) -> None:
    assert tables._usual_text(row, options, structured=True) == taken
