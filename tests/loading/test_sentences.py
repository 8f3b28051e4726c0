"""What the files of sentence-transformers say, and what of it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from test_loading import save_tiny

import normlens
from normlens.errors import InputError, ModelLoadError, UnsupportedModelError
from normlens.layers import FIRST, LAST, MEAN

WORDS = "sentence_transformers.models"
TEXTS = ("the cats sat on a mat", "the cats sat")
WIDTH = 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "tiny")


def write(folder: Path, name: str, value: Any) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def describe(folder: Path, *kinds: str, pooling: dict[str, Any] | None = None) -> None:
    """A modules.json of these kinds, with the pooling's settings."""
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"{WORDS}.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    write(folder, "modules.json", modules)
    for module in modules:
        if module["type"].endswith("Pooling"):
            settings = {"word_embedding_dimension": WIDTH, "include_prompt": True}
            mode = pooling or {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
            write(folder, f"{module['path']}/config.json", settings | mode)


def add_dense(folder: Path, path: str, activation: str, bias: bool, safe: bool) -> torch.nn.Module:
    torch.manual_seed(3)
    linear = torch.nn.Linear(WIDTH, 8, bias=bias)
    settings = {"in_features": WIDTH, "out_features": 8, "bias": bias}
    write(folder, f"{path}/config.json", settings | {"activation_function": activation})
    weights = {f"linear.{name}": value.detach() for name, value in linear.named_parameters()}
    if safe:
        save_file(weights, folder / path / "model.safetensors")
    else:
        torch.save(weights, folder / path / "pytorch_model.bin")
    return linear


@pytest.mark.parametrize(
    ("mode", "reads"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, MEAN),
        ({"pooling_mode_cls_token": True}, FIRST),
        ({"pooling_mode_lasttoken": True}, LAST),
        ({"pooling_mode": ["cls"]}, FIRST),
    ],
)
def test_pooling_and_dense_are_what_the_files_say(mode, reads, folder):
    describe(folder, "Transformer", "Pooling", "Dense", "Normalize", pooling=mode)
    safe = reads == MEAN
    linear = add_dense(folder, "2_Dense", "torch.nn.modules.activation.Tanh", safe, safe)
    lens = normlens.load(folder, device="cpu")
    pair = lens.cosine(*TEXTS)
    assert pair.provenance["pooling"] == reads
    assert pair.note is None

    vectors = []
    with torch.no_grad():
        for text in TEXTS:
            y = lens.model(**lens.tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            y = {MEAN: y.mean(0), FIRST: y[0], LAST: y[-1]}[reads]
            vectors.append(torch.tanh(linear(y)))
    expected = torch.nn.functional.cosine_similarity(*vectors, dim=0)
    assert pair.value == pytest.approx(float(expected), abs=1e-5)
    total = pair.matrix.sum() + sum(pair.remainder.values())
    assert total == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize(
    "mode",
    [
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
        {"pooling_mode_mean_tokens": False},
    ],
)
def test_other_pooling_is_refused(mode, folder):
    describe(folder, "Transformer", "Pooling", pooling=mode)
    lens = normlens.load(folder, device="cpu")
    assert lens.maps(TEXTS[0])  # only cosines need it
    with pytest.raises(UnsupportedModelError):
        lens.cosine(*TEXTS)


@pytest.mark.parametrize(
    "kinds",
    [
        ("Transformer", "Pooling", "LayerNorm"),
        ("Transformer", "Dense", "Pooling"),
        ("Transformer", "Pooling", "Normalize", "Dense"),
        ("Transformer",),
    ],
)
def test_other_modules_are_refused(kinds, folder):
    describe(folder, *kinds)
    for place, kind in enumerate(kinds):
        if kind in ("LayerNorm", "Dense"):
            write(folder, f"{place}_{kind}/config.json", {})
    with pytest.raises(UnsupportedModelError):
        normlens.load(folder, device="cpu").cosine(*TEXTS)


def test_files_that_are_missing_or_damaged_are_one_line(folder):
    describe(folder, "Transformer", "Pooling", "Dense")
    with pytest.raises(ModelLoadError):
        normlens.load(folder, device="cpu").cosine(*TEXTS)
    write(folder, "2_Dense/config.json", {"activation_function": "torch.nn.Identity"})
    with pytest.raises(ModelLoadError):
        normlens.load(folder, device="cpu").cosine(*TEXTS)
    (folder / "2_Dense" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelLoadError):
        normlens.load(folder, device="cpu").cosine(*TEXTS)
    for text in ("{", '{"a": 1}', "[3]"):
        (folder / "modules.json").write_text(text)
        with pytest.raises(ModelLoadError):
            normlens.load(folder, device="cpu").cosine(*TEXTS)


def test_a_bare_encoder_takes_the_mean_and_says_so(folder):
    pair = normlens.load(folder, device="cpu").cosine(*TEXTS)
    assert pair.provenance["pooling"] == MEAN
    assert "no modules.json" in pair.note


def test_what_sentence_transformers_would_do_to_texts_is_said(folder):
    describe(folder, "Transformer", "Pooling")
    write(folder, "sentence_bert_config.json", {"max_seq_length": 6, "do_lower_case": True})
    about = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    write(folder, "config_sentence_transformers.json", about)
    lens = normlens.load(folder, device="cpu")
    pair = lens.cosine(*TEXTS)
    assert "the default prompt 'query'" in pair.note
    assert "would cut texts after 6 tokens" in pair.note
    assert "would cut" not in lens.cosine("the cats", "the mat").note
    with pytest.raises(InputError):
        lens.cosine("The cats", "the mat")
