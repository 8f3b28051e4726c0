"""``normlens cosine``: what it prints and writes, and that every mistake is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from shell import Shell
from test_loading import save_tiny

import normlens

A, B = "the cats sat on a mat", "a cat sat"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("cosine") / "tiny")


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_it_prints_what_lens_cosine_says(model: Path, shell: Shell) -> None:
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


def test_files_hold_the_cosine(model: Path, shell: Shell, tmp_path: Path) -> None:
    pair: Any = normlens.load(model).cosine(A, B)
    for ending in ("safetensors", "csv", "json"):
        out = tmp_path / f"pair.{ending}"
        assert shell("cosine", A, B, "-m", model, "--out", out).startswith(f"wrote {out}: Cosine(")
    assert normlens.open(tmp_path / "pair.safetensors") == pair
    assert normlens.Cosine.load(tmp_path / "pair.safetensors") == pair
    table = pd.read_csv(tmp_path / "pair.csv")
    assert table.value.sum() == pytest.approx(pair.value, abs=1e-6)
    rows, columns = pair.matrix.shape
    assert len(table) == (rows + 1) * (columns + 1)
    owned = table.dropna(subset=["a", "b"])
    np.testing.assert_allclose(owned.value, pair.matrix.ravel())
    document = json.loads((tmp_path / "pair.json").read_text("utf-8"))
    np.testing.assert_allclose(document["matrix"], pair.matrix)
    np.testing.assert_allclose(document["margins"]["a"], pair.margins.a)
    assert document["value"] == pair.value
    assert sum(document["remainder"].values()) + pair.matrix.sum() == pytest.approx(pair.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((A,), "cosine compares two texts"),
        ((A, "cat " * 300), "tokens"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_file(
    words: tuple[str, ...], message: str, model: Path, shell: Shell, tmp_path: Path
) -> None:
    assert message in shell.error("cosine", *words, "-m", model, "--out", tmp_path / "pair.csv")
    assert list(tmp_path.iterdir()) == []


def test_files_are_judged_before_a_model_is_loaded(shell: Shell, tmp_path: Path) -> None:
    for name, message in (("pair.xlsx", "the ending chooses"), ("no/pair.csv", "does not exist")):
        asked = ("cosine", A, B, "-m", tmp_path / "no-model", "--out", tmp_path / name)
        assert message in shell.error(*asked)
    (tmp_path / "pair.csv").write_text("precious")
    asked = ("cosine", A, B, "-m", tmp_path / "no-model", "--out", tmp_path / "pair.csv")
    assert "exists already" in shell.error(*asked)
    assert (tmp_path / "pair.csv").read_text() == "precious"
