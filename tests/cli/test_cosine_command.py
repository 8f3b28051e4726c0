"""``normlens cosine``: what it prints and writes, and that every mistake is one line."""

from __future__ import annotations

from typing import Any

import pytest
from test_loading import save_tiny

import normlens

A, B = "the cats sat on a mat", "a cat sat"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("cosine") / "tiny")


def test_it_prints_what_lens_cosine_says(model, shell):
    out = shell("cosine", A, B, "-m", model)
    pair: Any = normlens.load(model).cosine(A, B)
    assert f"cosine {pair.value:+.3f}".replace("-", "−") in out
    assert f"completeness: {pair.completeness:.1e}" in out
    assert pair.note is not None
    assert pair.note in out
    first = pair.top(1).iloc[0]
    number = f"{first.value:+.3f}".replace("-", "−")
    assert [first.a_token, first.b_token, number] in [line.split() for line in out.splitlines()]
    assert out.count("no token (biases)") == 2
    for name, value in pair.remainder.items():
        assert f"{name} {value:+.3f}".replace("-", "−") in out


@pytest.mark.parametrize(
    ("words", "message"), [((A,), "cosine compares two texts"), ((A, "cat " * 300), "tokens")]
)
def test_a_mistake_is_one_line_and_leaves_no_file(words, message, model, shell, tmp_path):
    assert message in shell.error("cosine", *words, "-m", model, "--out", tmp_path / "pair.csv")
    assert list(tmp_path.iterdir()) == []
