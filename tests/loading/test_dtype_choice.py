"""The precision of a loaded checkpoint: float32 where it fits, and what half of it costs."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from test_loading import SENTENCE, tiny_tokenizer

import normlens
from normlens.figures.canvas import made
from normlens.loading import load
from normlens.models.tiny import tiny_config, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in bfloat16."""
    path = tmp_path_factory.mktemp("half") / "tiny"
    tiny_model("bert").to(torch.bfloat16).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(load, "free_memory", lambda device: size)


def test_float32_is_the_default(folder):
    lens = normlens.load(folder)
    assert lens.dtype == torch.float32
    assert "completeness" not in repr(lens)
    maps = lens.maps(SENTENCE)
    assert maps.completeness < 1e-5
    assert "float32" not in repr(maps)


def test_the_checkpoints_own_on_request(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lens = normlens.load(folder, dtype="checkpoint")
    assert lens.dtype == torch.bfloat16
    assert repr(lens).endswith(
        "bfloat16 on cpu, completeness about 1e-02 in bfloat16, about 1e-06 in float32)"
    )
    maps = lens.maps(SENTENCE)
    said = f"completeness {maps.completeness:.1e} in bfloat16, about 1e-06 in float32"
    assert said in repr(maps)
    assert said in made(maps)
    assert maps.completeness > 1e-4


def test_half_precision_where_float32_does_not_fit(folder, monkeypatch):
    parameters = load.count_parameters(tiny_config("bert"))
    assert parameters == sum(p.numel() for p in tiny_model("bert").parameters())
    free(monkeypatch, int(4 * parameters / 0.8) + 1)
    assert normlens.load(folder).dtype == torch.float32
    free(monkeypatch, int(4 * parameters / 0.8) - 1)
    with pytest.warns(UserWarning, match="stays in bfloat16, where completeness is about 1e-02"):
        lens = normlens.load(folder)
    assert lens.dtype == torch.bfloat16
    assert normlens.load(folder, dtype="float32").dtype == torch.float32


def test_quantised_checkpoints_stay_in_the_precision_they_were_made_for():
    config = tiny_config("bert", dtype="bfloat16")
    cpu = torch.device("cpu")
    assert load.dtype_to_load("auto", config, cpu, "tiny") == torch.float32
    config.quantization_config = {"quant_method": "gptq"}
    assert load.dtype_to_load("auto", config, cpu, "tiny") == "auto"
