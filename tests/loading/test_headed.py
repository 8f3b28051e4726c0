"""Checkpoints are loaded with the head that they name, unless its weights are not all there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from one_case import in_one_case
from safetensors.torch import load_file, save_file

import normlens
from normlens.errors import UnsupportedModelError
from normlens.models.tiny import scramble, tiny_config

IDS = [5, 17, 31, 8]


def saved(folder: Path, kind: str, model_type: str = "bert") -> Any:
    model = getattr(transformers, kind)(tiny_config(model_type)).eval()
    scramble(model)
    model.save_pretrained(folder)
    return model


def without(folder: Path, part: str) -> None:
    weights = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(weights).items() if part not in name}
    save_file(tensors, weights, metadata={"format": "pt"})


@in_one_case(
    ("kind", "family"),
    [
        ("BertForMaskedLM", "bert"),
        ("BertForSequenceClassification", "bert"),
        ("BertForTokenClassification", "bert"),
        ("LlamaForCausalLM", "llama"),
        ("GPT2LMHeadModel", "gpt2"),
    ],
)
def test_a_checkpoint_comes_with_its_head(kind: str, family: str, tmp_path: Path) -> None:
    model = saved(tmp_path, kind, family)
    lens = normlens.load(tmp_path)
    assert type(lens.adapter.whole).__name__ == kind
    asked = {} if "Sequence" in kind else {"position": 2}
    why = lens.explain(input_ids=IDS, target=1, **asked)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([IDS])).logits[0]
    expected = logits[1] if logits.dim() == 1 else logits[2, 1]
    assert why.value == pytest.approx(float(expected), rel=1e-5)


def test_a_head_without_all_its_weights_is_left_out(tmp_path: Path) -> None:
    saved(tmp_path, "BertForMaskedLM")
    without(tmp_path, "cls.predictions.transform")
    lens = normlens.load(tmp_path)
    assert type(lens.model).__name__ == "BertModel"
    assert lens.maps(input_ids=IDS).completeness < 1e-5
    with pytest.raises(UnsupportedModelError):
        lens.explain(input_ids=IDS)


def test_an_object_whose_head_nobody_describes_is_named() -> None:
    model = transformers.BertForQuestionAnswering(tiny_config("bert")).eval()
    lens = normlens.load(model, tokenizer=False)
    with pytest.raises(UnsupportedModelError):
        lens.explain(input_ids=IDS)
