"""Modules whose weights do not say what they compute: adapters and packed weights."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import normlens
from normlens.errors import UnsupportedModelError
from normlens.models.tiny import scramble, tiny_config, tiny_model

IDS = [3, 9, 27, 14, 5, 33, 8]

# One line that names the module, its class and what to do.
ADAPTED = r"^layers\.0\.\S*{name} \(peft Linear\) computes with the adapter default.*merge"


def with_head(family: str = "llama", dtype: torch.dtype = torch.float32) -> nn.Module:
    model = transformers.AutoModelForCausalLM.from_config(
        tiny_config(family), attn_implementation="eager"
    )
    scramble(model)
    return model.to(dtype).eval()


def lora(model: nn.Module, *targets: str, added: bool = False, size: float = 0.1) -> nn.Module:
    """The model with LoRA on some modules, its two matrices random."""
    peft = pytest.importorskip("peft", reason="adapters inside a model: pip install peft")
    conv = model.config.model_type == "gpt2"
    config = peft.LoraConfig(target_modules=list(targets), r=4, fan_in_fan_out=conv)
    if added:
        model.add_adapter(config)
    else:
        model = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data.copy_((size if "lora_B" in name else 1) * noise)
    return model.eval()


def refusal(model: nn.Module) -> str:
    with pytest.raises(UnsupportedModelError) as raised:
        normlens.load(model).maps(input_ids=IDS)
    message = str(raised.value)
    assert "\n" not in message
    return message


def assert_same(found: normlens.Maps, expected: normlens.Maps) -> None:
    for scope in expected.scopes:
        np.testing.assert_allclose(found[scope], expected[scope], rtol=1e-5, atol=1e-6)


# Adapters -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0.1, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
def test_an_adapter_on_a_linear_map_is_named(name, dtype, size):
    """In half precision a small one would pass for rounding."""
    with pytest.raises(UnsupportedModelError, match=ADAPTED.format(name=name)):
        normlens.load(lora(tiny_model("llama").to(dtype), name, size=size)).maps(input_ids=IDS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "inside",
    [
        lambda: lora(tiny_model("llama"), "v_proj", added=True),
        lambda: lora(with_head(), "v_proj"),
        lambda: lora(with_head(), "v_proj").base_model,
        lambda: lora(with_head(), "v_proj").base_model.model,
    ],
    ids=["add_adapter", "PeftModel", "LoraModel", "base_model.model"],
)
def test_an_adapter_is_found_however_it_came_in(inside, dtype):
    assert "merge" in refusal(inside().to(dtype))


@pytest.mark.parametrize("name", ["c_attn", "c_proj"])
def test_an_adapter_on_gpt_2s_transposed_modules(name):
    assert f"{name} (peft Linear)" in refusal(lora(tiny_model("gpt2"), name))


def test_an_adapter_on_queries_and_keys_changes_the_weights_alone():
    """Their maps need nothing of the adapter but the weights that it makes."""
    model = lora(with_head(), "q_proj", "k_proj")
    found = normlens.load(model).maps(input_ids=IDS)
    assert_same(found, normlens.load(model.merge_and_unload()).maps(input_ids=IDS))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_merged_adapter_is_part_of_the_weight(family):
    names = ["v_proj", "down_proj"] if family == "llama" else ["c_attn", "c_proj"]
    model = lora(with_head(family), *names)
    plain = normlens.load(copy.deepcopy(model).merge_and_unload()).maps(input_ids=IDS)
    model.merge_adapter()
    assert_same(normlens.load(model).maps(input_ids=IDS), plain)


def test_an_adapter_that_is_switched_off_does_nothing():
    plain = normlens.load(with_head()).maps(input_ids=IDS)
    model = lora(with_head(), "v_proj", "up_proj")
    with model.disable_adapter():
        lens = normlens.load(model)
        assert_same(lens.maps(input_ids=IDS), plain)
    with pytest.raises(UnsupportedModelError, match="merge"):
        lens.maps(input_ids=IDS)  # it is on again


@pytest.mark.filterwarnings("ignore:Unsupported layer type:UserWarning")  # peft, of any norm
def test_other_adapters_are_named_too():
    peft = pytest.importorskip("peft", reason="adapters inside a model: pip install peft")
    scaled = peft.IA3Config(target_modules=["v_proj"], feedforward_modules=[])
    assert "v_proj (peft Linear)" in refusal(peft.get_peft_model(with_head(), scaled))
    norms = peft.LNTuningConfig(target_modules=["ln_1"])
    message = refusal(peft.get_peft_model(with_head("gpt2"), norms))
    assert message.startswith("h.0.ln_1 (peft LNTuningLayer)")


def test_modules_that_were_trained_whole_are_read_as_they_are():
    peft = pytest.importorskip("peft", reason="adapters inside a model: pip install peft")
    config = peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["v_proj"])
    model = peft.get_peft_model(with_head(), config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "modules_to_save" in name:
                parameter.mul_(2)
    merged = copy.deepcopy(model).merge_and_unload()
    found = normlens.load(model).maps(input_ids=IDS)
    assert_same(found, normlens.load(merged).maps(input_ids=IDS))


# Packed weights -----------------------------------------------------------------------------------


def quantised(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own quantisation is on its way out
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def test_torchs_dynamic_quantisation():
    message = refusal(quantised(tiny_model("bert")))
    assert message.startswith("encoder.layer.0.attention.self.value (torch Linear) holds packed")
    assert "without quantisation" in message


class Params4bit(nn.Parameter):
    """As in bitsandbytes: two numbers to the byte, in a column."""


class Int8Tensor(torch.Tensor):
    """As in torchao: a tensor that says it is float32 and holds int8."""


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (
            Params4bit(torch.zeros(192, 1, dtype=torch.uint8), requires_grad=False),
            "holds weights of Params4bit",
        ),
        (torch.zeros(24, 16).as_subclass(Int8Tensor), "holds weights of Int8Tensor"),
        (torch.zeros(24, 16).to(torch.float8_e4m3fn), "holds weights in float8_e4m3fn"),
        (torch.zeros(24, 16, dtype=torch.int8), "holds weights in int8"),
        (torch.zeros(24 * 16), "has no matrix named `weight`"),
        (None, "has no matrix named `weight`"),
    ],
    ids=["bitsandbytes", "torchao", "float8", "int8", "flat", "none"],
)
def test_packed_weights(weight, words):
    model = tiny_model("llama")
    module = model.layers[1].mlp.up_proj
    del module.weight
    module.weight = weight
    message = refusal(model)
    assert message.startswith(f"layers.1.mlp.up_proj (torch Linear) {words}")
    assert "without quantisation" in message
