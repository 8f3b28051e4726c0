"""Modules whose weights do not say what they compute: adapters and packed weights."""

from __future__ import annotations

import copy
import weakref

import numpy as np
import pytest
import torch
import transformers
from one_case import in_one_case
from reference import largest_error
from torch import nn

import normlens
from normlens.errors import UnsupportedModelError
from normlens.gpu.matmul import LazyTensor, formed
from normlens.models.tiny import scramble, tiny_config, tiny_model

IDS = [3, 9, 27, 14, 5, 33, 8]


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

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
KINDS = {
    "lora": dict(lora_dropout=0.5),
    "rslora": dict(use_rslora=True, lora_alpha=3),
    "dora": dict(use_dora=True),
    "bias": dict(lora_bias=True),
    "other alpha": dict(alpha_pattern={"up_proj": 16}, rank_pattern={"v_proj": 2}),
}


def adapted(model: nn.Module, config: object) -> nn.Module:
    """The model with an adapter whose parameters are shaken, and every mode a training one."""
    peft = pytest.importorskip("peft", reason="adapters inside a model: pip install peft")
    model = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "base_layer" not in name:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.train()


def assert_maps_of_sum(model: nn.Module, tolerance: float = 1e-5) -> None:
    """A model with adapters has the maps of the merged one, and stays as it is."""
    plain = normlens.load(copy.deepcopy(model).eval().merge_and_unload()).maps(input_ids=IDS)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    maps = normlens.load(model).maps(input_ids=IDS)
    for scope in plain.scopes:
        assert largest_error(maps[scope], plain[scope]) < tolerance, scope
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes


@in_one_case("kind", KINDS)
def test_an_adapter_is_part_of_the_maps(kind):
    peft = pytest.importorskip("peft", reason="adapters inside a model: pip install peft")
    config = peft.LoraConfig(target_modules=PROJECTIONS, r=4, **KINDS[kind])
    assert_maps_of_sum(adapted(with_head(), config))


@in_one_case(
    "inside",
    [
        lambda: lora(tiny_model("llama"), "v_proj", added=True),
        lambda: lora(with_head(), "v_proj"),
        lambda: lora(with_head(), "v_proj").base_model,
        lambda: lora(with_head(), "v_proj").base_model.model,
    ],
    ids=["add_adapter", "PeftModel", "LoraModel", "base_model.model"],
)
def test_an_adapter_is_read_however_it_came_in(inside):
    expected = normlens.load(lora(with_head(), "v_proj").merge_and_unload()).maps(input_ids=IDS)
    assert_same(normlens.load(inside()).maps(input_ids=IDS), expected)


def test_several_adapters():
    """Those that are active count, each with its own scaling; the fingerprint is of their sum."""
    peft = pytest.importorskip("peft", reason="adapters inside a model: pip install peft")
    model = adapted(with_head(), peft.LoraConfig(target_modules=["v_proj", "up_proj"], r=4))
    model.add_adapter("other", peft.LoraConfig(target_modules=["up_proj"], r=2, lora_alpha=9))
    lora_weights = [p for name, p in model.named_parameters() if "other" in name]
    for weight in lora_weights:
        torch.nn.init.normal_(weight.data, std=0.3, generator=torch.Generator().manual_seed(8))
    lens = normlens.load(model).prepare()
    for active in ("default", "other", ["default", "other"]):
        model.base_model.set_adapter(active)
        merged = copy.deepcopy(model).eval().merge_and_unload()
        plain = normlens.load(merged).prepare().maps(input_ids=IDS)
        maps = lens.maps(input_ids=IDS)
        for scope in plain.scopes:
            assert largest_error(maps[scope], plain[scope]) < 1e-5, (active, scope)
    assert lens.name.endswith(" + default")  # as it was made


def test_weights_are_formed_one_layer_at_a_time(monkeypatch):
    held: list[weakref.ref] = []
    most = []

    def noted(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, LazyTensor):
            return tensor
        values = formed(tensor).numpy().copy()  # alive as long as a tensor has its memory
        held.append(weakref.ref(values))
        most.append(sum(ref() is not None for ref in held))
        return torch.from_numpy(values)

    monkeypatch.setattr("normlens.layers.formed", noted)
    lens = normlens.load(lora(with_head(), *PROJECTIONS))
    assert lens.n_layers > 1
    assert not held  # the layers are described without their weights
    lens.maps(input_ids=IDS)
    per_layer = 5  # queries and keys are not read
    assert len(held) == per_layer * lens.n_layers
    assert max(most) == per_layer


# Packed weights -----------------------------------------------------------------------------------


class Params4bit(nn.Parameter):
    """As in bitsandbytes: two numbers to the byte, in a column."""


@in_one_case(
    ("weight", "words"),
    [
        (
            Params4bit(torch.zeros(192, 1, dtype=torch.uint8), requires_grad=False),
            "holds weights of Params4bit",
        ),
        (torch.zeros(24, 16).to(torch.float8_e4m3fn), "holds weights in float8_e4m3fn"),
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


class PackedLinear(nn.Module):
    """As in GPTQ and AWQ: integers in a buffer, their scales, and no weight."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scales = linear.weight.detach().abs().amax(1) / 7  # (out,)
        self.register_buffer("scales", scales)
        packed = (linear.weight.detach() / scales[:, None]).round().to(torch.int32)
        self.register_buffer("qweight", packed)
        self.register_buffer("bias", linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.qweight.to(x.dtype) * self.scales[:, None].to(x.dtype)
        return nn.functional.linear(x, weight, self.bias)


@in_one_case("family", ["bert", "phi3"])
def test_weights_that_only_the_module_can_read(family):
    """They are what it makes of unit vectors, whatever the bias is."""
    model, plain = tiny_model(family), tiny_model(family)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and "pooler" not in name:
            if module.bias is not None:
                module.bias.data += 5
            packed = PackedLinear(module)
            model.set_submodule(name, packed)
            weight = packed.qweight * packed.scales[:, None]
            plain.get_submodule(name).weight.data.copy_(weight)
            if packed.bias is not None:
                plain.get_submodule(name).bias.data.copy_(packed.bias)
    maps = normlens.load(model).maps(input_ids=IDS)
    assert maps.completeness < 1e-5
    assert_same(maps, normlens.load(plain).maps(input_ids=IDS))
