"""Folders with an adapter alone: the base that they name is loaded with it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from reference import largest_error
from safetensors.torch import load_file, save_file
from test_loading import SENTENCE, save_tiny, tiny_tokenizer

import normlens
from normlens.corpus.runs.folder import model_name
from normlens.errors import MissingDependencyError, ModelLoadError
from normlens.loading.load import load_config

peft = pytest.importorskip("peft", reason="adapters inside a model: pip install peft")


def tuned(model: Any, **settings: Any) -> Any:
    model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["value"], **settings))
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "base")


@pytest.fixture
def folder(base: Path) -> Path:
    """An adapter on a body without any head."""
    tuned(transformers.AutoModel.from_pretrained(base)).save_pretrained(base.parent / "adapter")
    return base.parent / "adapter"


def test_an_adapter_brings_its_base_and_a_tokenizer(folder, base):
    lens = normlens.load(folder)
    plain = tuned(transformers.AutoModel.from_pretrained(base)).merge_and_unload()
    maps, expected = (
        each.maps(SENTENCE) for each in (lens, normlens.load(plain, tiny_tokenizer()))
    )
    for scope in expected.scopes:
        assert largest_error(maps[scope], expected[scope]) < 1e-5, scope
    assert (lens.name, load_config(folder).model_type) == (folder.name, "bert")
    assert model_name(folder.name) == folder.name  # a name, unless the folder is here


def test_a_head_that_came_with_the_adapter(base, tmp_path):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=5)
    wrapped = tuned(model, modules_to_save=["classifier"], task_type="SEQ_CLS")
    wrapped.save_pretrained(tmp_path / "classifier")
    plain = normlens.load(copy.deepcopy(wrapped).merge_and_unload(), tiny_tokenizer())
    why, expected = (
        lens.explain(SENTENCE) for lens in (normlens.load(tmp_path / "classifier"), plain)
    )
    assert why.value == pytest.approx(expected.value, abs=1e-5)
    assert largest_error(why.contributions, expected.contributions) < 1e-4


@pytest.mark.parametrize("name", ["/nowhere/at/all", "org/absent", None])
def test_a_base_that_is_missing(name, folder):
    path = folder / "adapter_config.json"
    settings = json.loads(path.read_text()) | {"base_model_name_or_path": name}
    path.write_text(json.dumps(settings))
    with pytest.raises(ModelLoadError):
        normlens.load(folder)


def test_an_adapter_that_is_not_whole(folder):
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    del tensors[next(iter(tensors))]
    save_file(tensors, path)
    with pytest.raises(ModelLoadError):
        normlens.load(folder)


def test_without_peft(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(MissingDependencyError):
        normlens.load(folder)
