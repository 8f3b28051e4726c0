"""Every family that sees or hears against the reference, and what must not change its numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from one_case import in_one_case
from reference import assert_maps_match, assert_same_maps, largest_error, references
from signal_examples import HEARING, SEEING, call, example, noise, other_example

import normlens
from normlens.errors import InputError, UnsupportedModelError
from normlens.models.tiny import scramble, tiny_config, tiny_model, tiny_signal_families

every_family = pytest.mark.parametrize("family", tiny_signal_families())


# Right numbers ----------------------------------------------------------------------------------


@every_family
def test_maps_equal_the_reference(family, tiny):
    """In both precisions, and of another size."""
    model, values = tiny(family), example(family)
    expected = references(model, call(model, values))
    maps = normlens.load(model).maps(values, heads=True)
    assert_maps_match(maps, expected, 1e-9)
    assert 0 < maps.completeness <= 1e-13
    for place, layer in enumerate(expected):
        for scope in ("ATTN-W", "ATTN-N"):
            assert largest_error(maps.heads[scope][place], layer.head_maps[scope]) <= 1e-9
    single = normlens.load(tiny(family, torch.float32)).maps(values)
    assert_maps_match(single, expected, 1e-4)
    assert 0 < single.completeness <= 1e-4
    values = other_example(family)
    maps = normlens.load(model).maps(values)
    assert_maps_match(maps, references(model, call(model, values)), 1e-9)
    if family in SEEING:
        assert (maps.grid.rows, maps.grid.columns) == (2, 5)
        assert maps.tokens[maps.grid.first :][:6] == ["1,1", "1,2", "1,3", "1,4", "1,5", "2,1"]


def check(family: str, **overrides) -> normlens.Lens:
    """A tiny model with these settings matches the reference."""
    model = tiny_model(family, **overrides).double()
    lens = normlens.load(model)
    assert_maps_match(
        lens.maps(example(family)), references(model, call(model, example(family))), 1e-9
    )
    return lens


@in_one_case(
    ("family", "overrides"),
    [
        ("vit", {"qkv_bias": False, "hidden_act": "gelu_new"}),
        ("dinov2", {"use_swiglu_ffn": False}),
        ("dinov3_vit", {"use_gated_mlp": False, "key_bias": True, "proj_bias": False}),
        ("beit", {"use_shared_relative_position_bias": True, "use_relative_position_bias": False}),
        ("beit", {"layer_scale_init_value": 0.0}),
        ("hubert", {"do_stable_layer_norm": True, "feat_extract_norm": "layer"}),
        ("wav2vec2", {"do_stable_layer_norm": False}),
    ],
)
def test_traits_equal_the_reference(family, overrides):
    check(family, **overrides)


@in_one_case("rule", ["ig-bias", "gradient"])
@in_one_case("family", ["beit", "dinov2", "wav2vec2"])
def test_other_rules_equal_the_reference(family, rule, tiny):
    model, values = tiny(family), example(family)
    maps = normlens.load(model).maps(values, nonlinearity=rule)
    assert_maps_match(maps, references(model, call(model, values), rule), 1e-9)


# The same numbers, however they are asked for ----------------------------------------------------


@every_family
def test_batches_and_a_model_in_training(family, tiny):
    """Only signals of one shape run together: padding would be seen, and heard."""
    lens = normlens.load(tiny(family, torch.float32))
    given = [example(family), other_example(family), example(family, seed=1)]
    alone = [lens.maps(values) for values in given]
    for found, expected in zip(lens.maps(given, batch_size=3), alone, strict=True):
        assert_same_maps(found, expected)
    (found,) = lens.maps(given[0][None])
    assert_same_maps(found, alone[0])
    assert_a_model_in_training_is_left_as_it_was(family, tiny)


def assert_a_model_in_training_is_left_as_it_was(family, tiny):
    """Drop path, layer drop and SpecAugment are off, and sdpa, which shows no weights."""
    eager = tiny(family, torch.float32)
    overrides = {"drop_path_rate": 0.9} if family.startswith(("dino", "beit")) else {}
    if family in HEARING:
        overrides = {"layerdrop": 0.9, "mask_time_prob": 0.9, "mask_time_length": 1}
    model = transformers.AutoModel.from_config(tiny_config(family, **overrides))
    model.load_state_dict(eager.state_dict(), strict=False)
    model.train()
    implementation = model.config._attn_implementation
    assert implementation == "sdpa"
    assert_same_maps(
        normlens.load(model).maps(example(family)), normlens.load(eager).maps(example(family))
    )
    assert model.training
    assert model.config._attn_implementation == implementation
    assert not any(module._forward_hooks for module in model.modules())


# What a model is ---------------------------------------------------------------------------------


def test_tokens_before_the_patches(tiny):
    prefixes = {
        family: lens.maps(example(family)).tokens[: -9 or None]
        for family in SEEING
        for lens in [normlens.load(tiny(family, torch.float32))]
    }
    cls = {name: ["[CLS]"] for name in ("vit", "vit_mae", "vit_msn", "dinov2", "beit")}
    registers = ["[CLS]", "[REG1]", "[REG2]"]
    assert prefixes == {
        **cls,
        "clip_vision_model": ["[CLS]"],
        "deit": ["[CLS]", "[DIST]"],
        "dinov2_with_registers": registers,
        "dinov3_vit": registers,
        "siglip_vision_model": [],
        "ijepa": [],
    }


# Two towers --------------------------------------------------------------------------------------


def towers(kind: str) -> transformers.PreTrainedModel:
    vision = tiny_config(f"{kind}_vision_model").to_dict()
    text = tiny_config(f"{kind}_text_model").to_dict()
    config = transformers.AutoConfig.for_model(
        kind, vision_config=vision, text_config=text, projection_dim=8
    )
    model = transformers.AutoModel.from_config(config)
    scramble(model)
    return model.eval()


def test_a_part_is_named_by_its_path(tmp_path):
    model = towers("clip")
    model.save_pretrained(tmp_path)
    values = example("vit")
    expected = normlens.load(model.vision_model).maps(values)
    assert_same_maps(normlens.load(model, part="vision_model").maps(values), expected)
    lens = normlens.load(tmp_path, part="vision_model", tokenizer=False)
    assert_same_maps(lens.maps(values), expected)
    assert lens.name.endswith("(vision_model)")
    with pytest.raises(UnsupportedModelError, match="part='text_model'"):
        normlens.load(tmp_path)
    for source in (model, tmp_path):
        with pytest.raises(InputError, match="those inside are text_model, vision_model"):
            normlens.load(source, part="tower")
    with pytest.raises(InputError, match="there are none inside it"):
        normlens.load(part="vision_model")


@in_one_case(
    ("values", "message"),
    [
        (noise(1, 12, 12), r"has shape \(1, 12, 12\)"),
        (torch.zeros(3, 12, 12, dtype=torch.uint8), "floating-point"),
        (torch.full((3, 12, 12), torch.nan), "not finite"),
        (noise(3, 3, 12), "one patch of this model has 4×4"),
    ],
)
def test_pixel_values_that_cannot_be(values, message, tiny):
    with pytest.raises(InputError, match=message):
        normlens.load(tiny("vit", torch.float32)).maps(values)


# Sound -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hearing():
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=True)
    return normlens.load(tiny_model("wav2vec2"), extractor)


def test_a_waveform_goes_through_the_feature_extractor(hearing):
    wave = np.sin(np.arange(270) / 5) * 0.3 + 0.1
    maps = hearing.maps(wave, sampling_rate=16000)
    normalised = (wave - wave.mean()) / np.sqrt(wave.var() + 1e-7)
    assert_same_maps(maps, hearing.maps(torch.from_numpy(normalised)), 1e-5)
    assert maps.tokens[:5] == ["0.00 s", "0.00 s", "0.01 s", "0.01 s", "0.01 s"]
    assert maps.token_ids == []
    assert not any(maps.special)
    pcm = (wave * 32768).astype(np.int16)
    assert_same_maps(hearing.maps([pcm], sampling_rate=16000)[0], maps, 1e-2)


@in_one_case(
    ("given", "rate", "message"),
    [
        (np.zeros(270), None, "no sampling_rate was given"),
        (np.zeros(270), 44100, "this one has 44100 Hz"),
        (torch.zeros(9), None, "too short for one frame"),
        ("hello", None, "hears sound, not str"),
    ],
)
def test_sounds_that_cannot_be(given, rate, message, hearing):
    with pytest.raises(InputError, match=message):
        hearing.maps(given, sampling_rate=rate)


def test_siglip_reads_its_padding():
    """It was trained on texts padded to its length, and pools at the last token."""

    class Tokenizer:
        is_fast = False

        def __call__(self, text, padding=False, max_length=None, **_):
            ids = [5 + len(word) for word in text.split()] + [2]
            mask = [0] * (len(ids) - 1) + [1]
            if padding == "max_length":
                mask += [1] * (max_length - len(ids))
                ids += [1] * (max_length - len(ids))
            return {"input_ids": ids, "special_tokens_mask": mask}

        def convert_ids_to_tokens(self, ids):
            return [str(i) for i in ids]

    model = tiny_model("siglip_text_model", max_position_embeddings=6).double()
    maps = normlens.load(model, Tokenizer()).maps("a cat")
    assert maps.token_ids == [6, 8, 2, 1, 1, 1]
    assert maps.special == [False, False, True, True, True, True]
    assert_maps_match(maps, references(model, [6, 8, 2, 1, 1, 1]), 1e-9)
    clip = normlens.load(tiny_model("clip_text_model"), Tokenizer())
    assert clip.maps("a cat").token_ids == [6, 8, 2]
