"""``normlens explain`` with an encoder–decoder: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from pair_examples import fast_tokenizer, with_head
from shell import Shell

import normlens
from normlens.loading.hub import quiet_transformers
from normlens.models.tiny import tiny_model

SOURCE, TARGET = "the house is small", "la maison est petite"
GIVEN = ("explain", SOURCE, "--target-text", TARGET, "--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bart")
    with quiet_transformers():
        with_head("bart").save_pretrained(path)
        fast_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def lens(folder):
    return normlens.load(folder, device="cpu")


@pytest.fixture
def shell(capsys):
    return Shell(capsys)


def test_one_token_is_explained_by_both_sequences(folder, lens, shell):
    out = shell(*GIVEN, "--model", folder, "--position", "2", "--contrast", "the")
    why = lens.explain(SOURCE, target=TARGET, token=2, contrast="the")
    assert f"why '{why.target}' and not 'the'" in out
    assert f"target (given): {TARGET}" in out
    lines = [line.strip().split() for line in out.splitlines()]
    assert ["source"] in lines
    assert ["prefix"] in lines
    assert "the source supplies" in out
    strongest = out[out.index("Strongest components") :]
    sums = np.nansum(np.concatenate([why.heads, why.cross_heads], axis=1), axis=-1)
    layer, head = np.unravel_index(np.abs(sums).argmax(), sums.shape)
    attention = "ATTN" if head < why.heads.shape[1] else "CROSS"
    name = f"{attention} head {head % why.heads.shape[1]}"
    assert f"{why.layer_names[layer]}   {name}" in strongest
    assert "RES" not in strongest


def test_each_token_in_turn_with_shares(folder, lens, shell):
    out = shell(*GIVEN, "--model", folder, "--position", "all")
    every = lens.explain(SOURCE, target=TARGET, token="all")
    assert "What the source (█) and the prefix (░) supply" in out
    for share in every.shares()["source_share"]:
        assert f"{100 * share:.0f} %" in out
    assert "(prefix)" in out


def test_files(folder, lens, shell, tmp_path):
    every = lens.explain(SOURCE, target=TARGET, token="all")
    where = ("--model", folder, "--position", "all", "--out")
    shell(*GIVEN, *where, tmp_path / "all.csv")
    table = pd.read_csv(tmp_path / "all.csv", keep_default_na=False)
    assert set(table["sequence"]) == {"source", "prefix", ""}
    assert len(table) == sum(len(each.source) + len(each.prefix) + 1 for each in every)
    shell(*GIVEN, *where, tmp_path / "all.json")
    document = json.loads((tmp_path / "all.json").read_text())
    assert document["sequences"].count("source") == len(every[0].source)
    assert document["layer_names"] == every[0].layer_names
    shares = [each["shares"]["source_share"] for each in document["explanations"]]
    assert shares == pytest.approx(every.shares()["source_share"].tolist(), rel=1e-4)
    shell(*GIVEN, *where, tmp_path / "all.safetensors")
    assert len(normlens.open(tmp_path / "all.safetensors")) == len(every)
    shell(*GIVEN, *where, tmp_path / "all.html")
    pytest.importorskip("matplotlib")
    shell(*GIVEN, *where, tmp_path / "shares.png", "--picture", "shares")
    shell(*GIVEN, *where, tmp_path / "all.pdf")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--target", "maison"), "give the decoder's text as --target-text"),
        (("--position", "nowhere"), "the target has no token 'nowhere'"),
        (
            ("--out", "why.png", "--picture", "flow", "--position", "all"),
            "choose one of: matrix, shares",
        ),
    ],
)
def test_mistakes_are_one_line(folder, shell, words, message):
    assert message in shell.error(*GIVEN, "--model", folder, *words)


def test_words_of_encoder_decoders_are_refused_elsewhere(shell, tmp_path):
    with quiet_transformers():
        tiny_model("gpt2").save_pretrained(tmp_path)
        fast_tokenizer().save_pretrained(tmp_path)
    common = ("explain", SOURCE, "--device", "cpu", "--model", tmp_path)
    assert "--target-text is for encoder–decoders" in shell.error(*common, "--target-text", TARGET)
    assert "is a number or 'all'" in shell.error(*common, "--position", "maison")
