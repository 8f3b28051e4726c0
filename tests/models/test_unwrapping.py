"""Objects that hold a transformers model somewhere inside."""

from __future__ import annotations

import pytest
import torch
import transformers
from one_case import in_one_case
from reference import largest_error
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


@in_one_case("family", ["bert", "llama", "gpt2"])
def test_a_wrapper_is_told_what_to_pass(family):
    with pytest.raises(UnsupportedModelError) as raised:
        normlens.load(Wrapper(tiny_model(family)))
    message = str(raised.value)
    assert f"Wrapper does not have the layers of '{family}'" in message
    assert "pass the model inside it (its `.inner.encoder`)" in message
    assert "\n" not in message


WRAPPERS = {
    "none": lambda m: m,
    "compiled": lambda m: torch.compile(m, backend="eager"),
    "DataParallel": nn.DataParallel,
    "compiled DataParallel": lambda m: torch.compile(nn.DataParallel(m), backend="eager"),
}


@in_one_case("name", WRAPPERS)
def test_heads_and_wrappers_are_taken_off(name):
    wrap = WRAPPERS[name]
    model = transformers.AutoModelForCausalLM.from_config(tiny_config("llama"))
    adapter = adapt(wrap(model))
    assert (adapter.model, adapter.whole) == (model.model, model)
    assert adapt(wrap(model.model)).model is model.model


def test_a_model_in_distributed_training():
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = tiny_model("llama").train()
        wrapped = nn.parallel.DistributedDataParallel(model)
        maps = normlens.load(wrapped).maps(input_ids=IDS)
    finally:
        distributed.destroy_process_group()
    assert all(module.training for module in wrapped.modules())
    expected = normlens.load(tiny_model("llama")).maps(input_ids=IDS)
    assert largest_error(maps[expected.scopes[-1]], expected[expected.scopes[-1]]) < 1e-6


class FullyShardedDataParallel(nn.Module):
    """As in torch: a model whose weights lie in several processes."""


def test_weights_in_several_processes_are_refused():
    with pytest.raises(UnsupportedModelError, match=r"shared out among processes \(FSDP\); save"):
        normlens.load(FullyShardedDataParallel())


def test_peft_is_taken_off():
    peft = pytest.importorskip("peft", reason="adapters inside a model: pip install peft")
    model = transformers.AutoModelForCausalLM.from_config(tiny_config("llama"))
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    adapter = adapt(nn.DataParallel(wrapped))
    assert (adapter.model, adapter.whole) == (model.model, model)
    assert normlens.load(wrapped).name == "LlamaForCausalLM + default"


def test_virtual_tokens_have_no_place_in_a_map():
    peft = pytest.importorskip("peft", reason="adapters inside a model: pip install peft")
    model = transformers.AutoModelForCausalLM.from_config(tiny_config("llama"))
    config = peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    with pytest.raises(UnsupportedModelError, match=r"virtual tokens.*get_base_model\(\)"):
        normlens.load(peft.get_peft_model(model, config))
