"""Models that are made of several models: the error names the one to pass."""

from __future__ import annotations

import pytest
import transformers
from one_case import in_one_case

import normlens
from normlens.errors import UnsupportedModelError
from normlens.models import adapter_class
from normlens.models.tiny import scramble, tiny_config

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
