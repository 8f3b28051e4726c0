"""Quantised models: maps of the weights that they compute with, formed layer by layer."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
import torch
import transformers
from one_case import in_one_case
from reference import largest_error
from safetensors.torch import save_file
from torch import nn

import normlens
from normlens.errors import ModelLoadError, UnsupportedModelError
from normlens.models.tiny import scramble, tiny_config

IDS = [3, 9, 27, 14, 5, 33, 8]


@pytest.fixture(scope="module")
def torchao():
    """torchao's quantisation; importing it warns about what torch will drop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchao", reason="quantised weights: pip install torchao")
        return importlib.import_module("torchao.quantization")


def with_head(dtype: torch.dtype = torch.float32) -> nn.Module:
    config = tiny_config("llama", hidden_size=32, intermediate_size=64, head_dim=8)
    model = transformers.AutoModelForCausalLM.from_config(config)
    scramble(model)
    return model.to(dtype).eval()


def quantised(torchao, kind: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    model = with_head(dtype)
    if not hasattr(torchao, kind):
        pytest.skip(f"this torchao has no {kind}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torchao.quantize_(model, getattr(torchao, kind)())
        except (ImportError, AssertionError) as error:
            pytest.skip(f"{kind} does not run here: {error}")
    return model


def dequantised(model: nn.Module) -> nn.Module:
    """A plain model with the same numbers."""
    plain = with_head(model.model.embed_tokens.weight.dtype)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            weight = module.weight
            values = weight if type(weight) is nn.Parameter else weight.dequantize()
            plain.get_submodule(name).weight = nn.Parameter(values.detach().clone())
    return plain


@in_one_case("kind", ["Int8WeightOnlyConfig", "IntxWeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_maps_of_the_weights_that_it_computes_with(kind, torchao):
    model = quantised(torchao, kind)
    lens = normlens.load(model)
    maps, plain = lens.maps(input_ids=IDS), normlens.load(dequantised(model)).maps(input_ids=IDS)
    assert maps.completeness < 1e-5
    for scope in plain.scopes:
        assert largest_error(maps[scope], plain[scope]) < 1e-5, scope
    assert lens.explain(input_ids=IDS).completeness < 1e-5
    assert type(model.model.layers[0].mlp.up_proj.weight) is not nn.Parameter  # it stays quantised
    original = normlens.load(with_head()).maps(input_ids=IDS)
    assert largest_error(maps["ATTN-N"], original["ATTN-N"]) > 1e-4


def test_quantised_activations_are_not_linear(torchao):
    model = quantised(torchao, "Int8DynamicActivationInt8WeightConfig")
    with pytest.raises(UnsupportedModelError) as raised:
        normlens.load(model).maps(input_ids=IDS)
    message = str(raised.value)
    assert "does not compute x W + b" in message
    assert "quantised activations" in message
    assert "model.dequantize()" in message
    assert "\n" not in message


def test_a_checkpoint_whose_package_is_not_installed(tmp_path):
    if importlib.util.find_spec("gptqmodel") or importlib.util.find_spec("optimum"):
        pytest.skip("a package for GPTQ is installed")
    model = with_head()
    model.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    model.config.save_pretrained(tmp_path)
    save_file({"lm_head.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match="needs a package that is not installed"):
        normlens.load(tmp_path)
