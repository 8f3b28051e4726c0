"""Messages on one line."""

from __future__ import annotations

import pytest

from normlens.errors import one_line, reason_of, require, system_reason


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
