"""``normlens explain``: what it prints and writes, and that every mistake is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from shell import Shell
from test_loading import save_tiny, tiny_tokenizer
from transformers.utils import logging

import normlens
from normlens.models.tiny import scramble, tiny_config

TEXT = "the cats sat on a"
LABELS = {0: "negative", 1: "positive", 2: "neutral"}


def saved(folder: Path, kind: str, model_type: str, **config: Any) -> Path:
    """A tiny model with a head, and a tokenizer with a mask token."""
    logging.disable_progress_bar()
    made = tiny_config(model_type, pad_token_id=0, **config)
    model = getattr(transformers, kind)(made).eval()
    scramble(model)
    model.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    if "Masked" in kind:
        tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain")
    return {
        "causal": saved(folder / "causal", "LlamaForCausalLM", "llama"),
        "masked": saved(folder / "masked", "BertForMaskedLM", "bert"),
        "classifier": saved(
            folder / "classifier", "BertForSequenceClassification", "bert", id2label=LABELS
        ),
        "headless": save_tiny(folder / "headless"),
    }


# What it prints -----------------------------------------------------------------------------------


def test_it_prints_what_lens_explain_says(models, shell):
    out = shell("explain", TEXT, "-m", models["causal"], "--target", "mat", "--contrast", "cat")
    why: Any = normlens.load(models["causal"]).explain(TEXT, target="mat", contrast="cat")
    assert "(causal language model): why 'mat' and not 'cat'" in out
    assert f"completeness: {why.completeness:.1e}" in out
    assert "probability of 'mat'" in out
    rows = [line.split() for line in out.splitlines()]
    largest = float(np.abs(why.contributions).max())
    for token, value in zip(why.tokens, why.contributions, strict=True):
        numbers = [row[1].replace("−", "-") for row in rows if row[:1] == [token]]
        assert any(abs(float(n) - value) < 0.01 * largest for n in numbers), token
    assert "no token (biases)" in out
    assert "Strongest components" in out
    assert "\x1b" not in out  # a pipe has no colours


def test_colours_on_a_terminal(models, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    out = Shell(capsys).run("explain", TEXT, "-m", models["causal"])[1]
    assert "\x1b[" in out
    assert ";48;2;" in out  # backgrounds of tokens


def test_words_are_merged(models, shell):
    out = shell("explain", TEXT, "-m", models["causal"], "--words")
    assert " cats " in out
    assert "##s" not in out.split("What each token")[1].split("Strongest")[0]


def test_a_classifier_and_a_mask(models, shell):
    out = shell("explain", TEXT, "-m", models["classifier"], "--target", "Positive")
    assert "why 'positive'" in out
    assert "read at position 0 ('[CLS]')" in out
    out = shell("explain", "the [MASK] sat", "-m", models["masked"], "--target", "cat")
    assert "why 'cat'" in out
    assert "read at position 2 ('[MASK]')" in out


# What it writes -----------------------------------------------------------------------------------


def test_a_document_has_all_pictures(models, shell, tmp_path):
    pytest.importorskip("matplotlib")
    for words, pages in (((), 3), (("--picture", "flow"), 1)):
        out = tmp_path / f"why-{pages}.pdf"
        shell("explain", TEXT, "-m", models["causal"], *words, "--out", out)
        assert out.read_bytes().count(b"/Type /Page ") == pages


# What is refused ----------------------------------------------------------------------------------

LONG = " ".join(["cat"] * 300)


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        ("causal", (TEXT, "--target", "cats", "--position", "1"), "2 tokens (cat + ##s)"),
        ("causal", (TEXT, "--target", "zebra"), "not in the vocabulary"),
        ("causal", (TEXT, "--position", "99"), "position 99 is out of range"),
        ("causal", (TEXT, "--position", "last"), "--position is a number or 'all', not 'last'"),
        (
            "causal",
            (TEXT, "--picture", "flow", "--position", "all"),
            "choose one of: matrix, shares",
        ),
        ("classifier", (TEXT, "--target", "7"), "unknown target '7'"),
        ("masked", (TEXT, "--target", "cat"), "the text has no [MASK]"),
        ("headless", (TEXT,), "direction"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_file(model, words, message, models, shell, tmp_path):
    pytest.importorskip("matplotlib")
    line = shell.error("explain", *words, "-m", models[model], "--out", tmp_path / "why.png")
    assert message in line
    assert list(tmp_path.iterdir()) == []
