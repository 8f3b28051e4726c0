"""Objects of other libraries: the model inside them, and what they do to texts."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_case import in_one_case
from test_loading import SENTENCE, save_tiny

import normlens
from normlens.errors import UnsupportedModelError

TEXTS = ("the cats sat on a mat", "the mat sat")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("objects") / "tiny")


@pytest.fixture(scope="module")
def sentences() -> Any:
    """The package sentence-transformers; importing it may warn of what others will drop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = pytest.importorskip(
            "sentence_transformers",
            reason="sentence encoders as objects: pip install sentence-transformers",
        )
        importlib.import_module("sentence_transformers.models")
    return package


# sentence-transformers ----------------------------------------------------------------------------


@in_one_case("kind", ["mean", "cls", "dense", "short", "tuned"])
def test_a_sentence_encoder_brings_what_makes_its_vector(kind, sentences, folder):
    modules = sentences.models
    encoder = modules.Transformer(str(folder))
    mode = "cls" if kind == "cls" else "mean"
    parts = [encoder, modules.Pooling(16, pooling_mode=mode)]
    if kind == "dense":
        parts.append(modules.Dense(16, 8, activation_function=torch.nn.Tanh()))
    parts.append(modules.Normalize())
    whole = sentences.SentenceTransformer(
        modules=parts, device="cpu", truncate_dim=5 if kind == "short" else None
    )
    whole.train(kind == "tuned")
    lens = normlens.load(whole)
    cosine = lens.cosine(*TEXTS)
    assert encoder.auto_model.training == (kind == "tuned")
    a, b = whole.eval().encode(list(TEXTS))
    assert cosine.value == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)
    expected = normlens.load(folder).maps(SENTENCE)
    np.testing.assert_array_equal(lens.maps(SENTENCE)["ATTN-N"], expected["ATTN-N"])


class StaticSentences(torch.nn.Sequential):
    """As a SentenceTransformer of word vectors: no transformers model is inside."""


StaticSentences.__module__ = "sentence_transformers.model"
StaticSentences.__name__ = "SentenceTransformer"


def test_a_sentence_encoder_without_layers():
    with pytest.raises(UnsupportedModelError):
        normlens.load(StaticSentences(torch.nn.Linear(2, 2)))
