"""Models of several models, and objects that hold a model somewhere inside."""

from __future__ import annotations

import pytest
import torch
import transformers
from one_case import in_one_case
from torch import nn

import normlens
from normlens.errors import UnsupportedModelError
from normlens.models import adapt, adapter_class
from normlens.models.tiny import scramble, tiny_config, tiny_model

IDS = [3, 9, 27, 14, 5]


VISION = dict(
    model_type="siglip2_vision_model",
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=24,
    num_patches=16,
    patch_size=4,
)


def llava(language: str) -> transformers.LlavaConfig:
    text = tiny_config(language)
    return transformers.LlavaConfig(text_config=text, vision_config=VISION, image_token_index=63)


def refusal_of(model) -> str:
    with pytest.raises(UnsupportedModelError) as raised:
        normlens.load(model)
    return str(raised.value)


@in_one_case(
    ("kind", "path"),
    [
        (transformers.AutoModel, "model.language_model"),
        (transformers.AutoModelForImageTextToText, "model.model.language_model"),
    ],
)
def test_the_model_inside_is_named_by_its_path(kind, path):
    model = kind.from_config(llava("qwen2"))
    line = refusal_of(model)
    part = path.removeprefix("model.")
    assert f"pass the one whose maps you want: {path} ('qwen2')" in line
    assert line.endswith(f"part={part!r} (--part {part})")
    scramble(model)
    inside = model.get_submodule(path.removeprefix("model."))
    assert normlens.load(inside, False).maps(input_ids=IDS).completeness <= 1e-4


def test_a_configuration_alone_tells_as_much():
    with pytest.raises(UnsupportedModelError, match=r"AutoModel and pass .*model\.language_model"):
        adapter_class(llava("llama"))


def test_models_inside_that_are_refused_give_their_reason():
    text = dict(model_type="mamba", vocab_size=64, hidden_size=16, num_hidden_layers=1)
    config = transformers.LlavaConfig(text_config=text, vision_config=VISION, image_token_index=63)
    with pytest.raises(UnsupportedModelError, match=r"none of which .*'mamba' .*state-space"):
        adapter_class(config)


def test_a_configuration_without_a_skeleton_names_the_types_inside():
    """transformers has no AutoModel for it."""
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        tiny_config("bert"), tiny_config("gpt2")
    )
    with pytest.raises(UnsupportedModelError, match=r"several models \(bert, gpt2\); load it"):
        adapter_class(config)
    model = transformers.EncoderDecoderModel(config)
    assert "model.encoder ('bert') or model.decoder ('gpt2')" in refusal_of(model)


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
