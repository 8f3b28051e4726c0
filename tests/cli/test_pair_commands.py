"""``normlens map`` and ``normlens explain`` with an encoder–decoder."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pair_examples import fast_tokenizer, with_head

import normlens
from normlens.loading.hub import quiet_transformers
from normlens.models.tiny import tiny_model

SOURCE, TARGET = "the house is small", "la maison est petite"
GIVEN = ("map", SOURCE, "--target-text", TARGET, "--device", "cpu")
EXPLAIN = ("explain", SOURCE, "--target-text", TARGET, "--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bart")
    with quiet_transformers():
        with_head("bart").save_pretrained(path)
        fast_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def maps(folder):
    return normlens.load(folder, device="cpu").maps(SOURCE, TARGET)


# Printed ------------------------------------------------------------------------------------------


def test_both_stacks_are_summed_up(folder, maps, shell):
    out = shell(*GIVEN, "--model", folder)
    lines = out.splitlines()
    tokens = maps.encoder.tokens
    assert (
        f"encoder: layers 0–1 of {maps.encoder.provenance['components']}; "
        f"source, {len(tokens)} tokens: {' '.join(tokens)}"
    ) in lines
    assert (
        f"decoder: layers 0–2 of {maps.provenance['components']}; "
        f"target (given), {len(maps.tokens)} tokens: {' '.join(maps.tokens)}"
    ) in lines
    assert f"completeness: {maps.completeness:.1e}" in out
    assert "Encoder: similarity of each scope" in out
    assert "Decoder: similarity of each scope" in out
    assert "CROSS-W → CROSS-N" in out
    assert f"{maps.similarity('CROSS-W', 'CROSS-N')[1]:.2f}" in out
    best = maps.top_pairs(count=1).iloc[0]
    assert (
        f"{best['source_token']} ({best['source_sequence']}) → {best['target_token']} "
        f"{best['value']:+.3f}"
    ) in out


# Written ------------------------------------------------------------------------------------------


# Mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((SOURCE, "--pair", TARGET), "give the decoder's text as --target-text"),
        (("the " * 60, "--target-text", TARGET), "the source has"),
        ((SOURCE, "--target-text", TARGET, "--layers", "7"), "layer 7 is out of range"),
    ],
)
def test_mistakes_are_one_line(folder, shell, words, message):
    line = shell.error("map", *words, "--device", "cpu", "--model", folder)
    assert message in line


def test_models_that_cannot_take_or_make_a_target(shell, tmp_path):
    with quiet_transformers():
        tiny_model("gpt2").save_pretrained(tmp_path / "gpt2")
        fast_tokenizer().save_pretrained(tmp_path / "gpt2")
        tiny_model("bart").save_pretrained(tmp_path / "bart")  # without its head
        fast_tokenizer().save_pretrained(tmp_path / "bart")
    common = ("map", SOURCE, "--device", "cpu", "--model")
    line = shell.error(*common, tmp_path / "gpt2", "--target-text", "encoder")
    assert "--target-text is for encoder–decoders" in line
    assert "no head that could generate" in shell.error(*common, tmp_path / "bart")


# Estimates ----------------------------------------------------------------------------------------


def test_an_estimate_of_both_lengths(folder, shell):
    words = ("map", "--model", folder, "--estimate", "20,12")
    out = shell(*words)
    assert "1 × (20 source + 12 target tokens), 8 scopes of the encoder and 12 scopes" in out
    assert "feed-forward stage (encoder): tiles" in out
    assert "feed-forward stage (decoder, sources of the encoder): tiles" in out
    found = json.loads(shell(*words, "--json"))
    assert [stage["stage"].split(",")[0] for stage in found["stages"]] == [
        "encoder", "decoder", "decoder",
    ]  # fmt: skip
    alone = json.loads(shell(*words, "--json", "--scope", "CROSS-N"))
    assert alone["operations"]["total"] < found["operations"]["total"]
    assert "feed-forward pairs" not in alone["operations"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("20", "give the length of its target"),
        ("99,9", "at most 48 tokens in its source, not 99"),
        ("9,9 --memory-limit 1KB", "memory limit of 1KB"),
        ("9,9 --nonlinearity shapley", "one attention only"),
    ],
)
def test_wrong_estimates_are_one_line(folder, shell, words, message):
    assert message in shell.error("map", "--model", folder, "--estimate", *words.split())


def test_a_target_to_estimate_is_for_encoder_decoders(shell):
    line = shell.error("map", "--estimate", "9,9")
    assert "target's length is for encoder–decoders" in line


# Explanations ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lens(folder):
    return normlens.load(folder, device="cpu")


def test_one_token_is_explained_by_both_sequences(folder, lens, shell):
    out = shell(*EXPLAIN, "--model", folder, "--position", "2", "--contrast", "the")
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
    out = shell(*EXPLAIN, "--model", folder, "--position", "all")
    every = lens.explain(SOURCE, target=TARGET, token="all")
    assert "What the source (█) and the prefix (░) supply" in out
    for share in every.shares()["source_share"]:
        assert f"{100 * share:.0f} %" in out
    assert "(prefix)" in out


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
def test_mistakes_of_explanations_are_one_line(folder, shell, words, message):
    assert message in shell.error(*EXPLAIN, "--model", folder, *words)


def test_one_scope_is_printed_with_the_sequence_that_it_reads(folder, maps, shell):
    out = shell(*GIVEN, "--model", folder, "--scope", "CROSS-N", "--layers", "1")
    assert f"source, {len(maps.encoder.tokens)} tokens: " in out
    assert "layer 1 (rows are targets, columns sources: the encoder)" in out
    header, _, *rows = out.split("the encoder)\n")[1].strip("\n ").splitlines()
    assert header.split() == maps.encoder.tokens
    k = len(maps.encoder.tokens)
    expected = [f"{value:.3g}" for value in maps.at("CROSS-N", 1)[0, :k]]
    assert rows[0].split()[1:] == expected
