"""Options as they are typed: sizes of memory, batches, layers and scopes."""

from __future__ import annotations

import pytest
from one_case import in_one_case

from normlens.errors import InputError
from normlens.options import parse_batch_size, parse_bytes, parse_layers, parse_scopes


@in_one_case(
    ("given", "expected"),
    [
        (None, None),
        (1000, 1000),
        (2e9, 2_000_000_000),
        ("512", 512),
        ("512b", 512),
        ("4k", 4 << 10),
        ("512MB", 512 << 20),
        ("512 mib", 512 << 20),
        ("1.5 GiB", 3 << 29),
        (" 2G ", 2 << 30),
        ("1TB", 1 << 40),
        ("2e9", 2_000_000_000),
        ("1e3 kb", 1000 << 10),
    ],
)
def test_sizes(given, expected):
    assert parse_bytes(given) == expected


@in_one_case(
    "given", ["", "much", "GB", "-1", -1, 0, "0MB", "1.2.3 GB", "5 apples", "1 PB", "nan", "inf"]
)
def test_what_is_not_a_size(given):
    with pytest.raises(InputError):
        parse_bytes(given)


@in_one_case(
    ("typed", "layers"), [("2", [2]), ("0,2-4", [0, 2, 3, 4]), (" 1, 0-1", [0, 1]), ("3-3", [3])]
)
def test_layers(typed, layers):
    assert sorted(set(parse_layers(typed))) == layers
    assert sorted(set(parse_layers(typed))) == layers  # they can be read again
    assert parse_layers(" All ") is None


@in_one_case("typed", ["one", "3-1", "1,,2", "-1", "", "1-", "1.5"])
def test_what_are_no_layers(typed):
    with pytest.raises(InputError):
        parse_layers(typed)


def test_scopes():
    assert parse_scopes(["ATTN-W, LN1", "ff"]) == ["ATTN-W", "LN1", "ff"]
    assert parse_scopes(["all"]) == "all"
    with pytest.raises(InputError):
        parse_scopes([" , "])


def test_batch_sizes():
    assert parse_batch_size("3") == parse_batch_size(3) == 3
    assert parse_batch_size("auto") == "auto"
    for wrong in ("0", "-1", "many", "1.5"):
        with pytest.raises(InputError):
            parse_batch_size(wrong)
