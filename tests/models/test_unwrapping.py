"""Objects that hold a transformers model somewhere inside."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

import normlens
from normlens.errors import UnsupportedModelError
from normlens.models import adapt
from normlens.models.tiny import tiny_config, tiny_model

IDS = [3, 9, 27, 14, 5, 33, 8]


class Wrapper(nn.Module):
    """A model of one's own around a transformers model, as classifiers are often written."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.config = model.config
        self.inner = nn.ModuleDict({"encoder": model})

    def forward(self, **inputs):
        return self.inner["encoder"](**inputs)


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2"])
def test_a_wrapper_is_told_what_to_pass(family):
    with pytest.raises(UnsupportedModelError) as raised:
        normlens.load(Wrapper(tiny_model(family)))
    message = str(raised.value)
    assert f"Wrapper does not have the layers of '{family}'" in message
    assert "pass the model inside it (its `.inner.encoder`)" in message
    assert "\n" not in message


def test_an_object_that_only_looks_like_a_family():
    module = nn.Linear(2, 2)
    module.config = tiny_config("llama")
    with pytest.raises(UnsupportedModelError, match=r"Linear does not have.*transformers model"):
        normlens.load(module)


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: torch.compile(m, backend="eager")])
def test_heads_and_compilation_are_taken_off(wrap):
    model = transformers.AutoModelForCausalLM.from_config(tiny_config("llama"))
    assert adapt(wrap(model)).model is model.model
    assert adapt(wrap(model.model)).model is model.model


def test_peft_is_taken_off():
    peft = pytest.importorskip("peft", reason="adapters inside a model: pip install peft")
    model = transformers.AutoModelForCausalLM.from_config(tiny_config("llama"))
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    assert adapt(wrapped).model is model.model


def test_virtual_tokens_have_no_place_in_a_map():
    peft = pytest.importorskip("peft", reason="adapters inside a model: pip install peft")
    model = transformers.AutoModelForCausalLM.from_config(tiny_config("llama"))
    config = peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    with pytest.raises(UnsupportedModelError, match=r"virtual tokens.*get_base_model\(\)"):
        normlens.load(peft.get_peft_model(model, config))
