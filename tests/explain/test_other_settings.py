"""Every family with its optional biases, norms and branches the other way round.

A family's tiny configuration has most options on. A term that is lost where an option is off, or
where one is on and another off, shows here only.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from frozen_copies import frozen_outputs, frozen_pair_scores, times_input
from heads import assert_every_layer_makes_the_score, every_head, headed, in_float64
from pair_models import IDS, TARGET, generating, model_inputs, source_of
from reference import assert_maps_match, pair_references, references

import normlens
from normlens.layers import ANY
from normlens.models import adapt
from normlens.models.base import read_head
from normlens.models.parts import ImageEncoder
from normlens.models.tiny import (
    tiny_config,
    tiny_encoder_decoders,
    tiny_families,
    tiny_model,
    tiny_signal_families,
)

#: What an option of a configuration switches on or off, by its name; the first that matches.
KINDS = {
    "norms": re.compile(r"^[a-z].*norm"),
    "biases": re.compile(r"bias"),
    "branches": re.compile(r"parallel|residual|use_gated|swiglu|new_decoder|bottleneck"),
}
#: Options that are no switches.
MORE: dict[str, dict[str, Any]] = {
    "albert": {"inner_group_num": 2},
    "beit": {"layer_scale_init_value": 0.0},
    "deepseek_v2": {"q_lora_rank": None, "first_k_dense_replace": 0},
    "deepseek_v3": {"q_lora_rank": None, "first_k_dense_replace": 0},
    "dots1": {"first_k_dense_replace": 0},
    "falcon": {"num_ln_in_parallel_attn": 1},
    "gemma2": {"final_logit_softcapping": None, "attn_logit_softcapping": None},
    "glm4_moe": {"first_k_dense_replace": 0},
    "glm4_moe_lite": {"q_lora_rank": None},
    "granitemoeshared": {"shared_intermediate_size": 0},
    "mobilebert": {"num_feedforward_networks": 1, "normalization_type": "layer_norm"},
    "mt5": {"feed_forward_proj": "relu"},
    "opt": {"word_embed_proj_dim": 8},
    "qwen2_moe": {"mlp_only_layers": [1]},
    "t5": {"feed_forward_proj": "gated-gelu"},
    "umt5": {"feed_forward_proj": "relu"},
    "wav2vec2": {"feat_extract_norm": "layer"},
}
VECTOR = np.random.default_rng(0).standard_normal(16)


def other_settings(family: str) -> list[dict[str, Any]]:
    """Each kind of option the other way round, and all kinds together."""
    kinds: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    for name, value in vars(tiny_config(family)).items():
        kind = next((kind for kind, names in KINDS.items() if names.search(name)), None)
        if kind is not None and isinstance(value, bool):
            kinds[kind][name] = not value
    turned = [settings for settings in kinds.values() if settings]
    together = {name: value for settings in turned for name, value in settings.items()}
    more = [MORE[family]] if family in MORE else []
    return turned + ([together] if len(turned) > 1 else []) + more


def cases(families: list[str]) -> Any:
    """Families that have other settings."""
    return pytest.mark.parametrize("family", [name for name in families if other_settings(name)])


TASKS = dict(reversed(every_head()))


@cases([*tiny_families(), *tiny_signal_families()])
def test_one_stack(family):
    for settings in other_settings(family):
        assert_one_stack(family, settings)


def assert_one_stack(family, settings):
    model = tiny_model(family, **settings).double()
    lens = normlens.load(model, tokenizer=False)
    given, called = _inputs(model)
    with in_float64():
        assert_maps_match(lens.maps(**given), references(model, called), 1e-9)
        why = lens.explain(**given, direction=VECTOR, position=2, layer=lens.n_layers - 1)
        tokens, outputs = frozen_outputs(model, called, "ig", [{}] * lens.n_layers)
        expected = times_input(outputs[-1][-1][2] @ torch.from_numpy(VECTOR), tokens)
    np.testing.assert_allclose(why.contributions, expected, rtol=0, atol=1e-9)
    assert why.completeness < 1e-10
    assert_every_layer_makes_the_score(why)
    if family in TASKS:
        assert_complete(lambda dtype: headed(family, TASKS[family], dtype, **settings))


@cases(tiny_encoder_decoders())
def test_two_stacks(family):
    for settings in other_settings(family):
        assert_two_stacks(family, settings)


def assert_two_stacks(family, settings):
    model, inputs = generating(family, **settings), model_inputs(family)
    lens = normlens.load(model, tokenizer=False)
    target = {"decoder_input_ids": TARGET}
    with in_float64():
        maps = lens.maps(**source_of(family), **target)
        encoder, decoder = pair_references(model, inputs)
        assert_maps_match(maps, decoder, 1e-9)
        assert_maps_match(maps.encoder, encoder, 1e-9)
        why = lens.explain(**source_of(family), **target, token=3, contrast=7)
        source, prefix, scores = frozen_pair_scores(model, inputs, "ig")
        score = scores[3, TARGET[4]] - scores[3, 7]
        expected = [times_input(score, tokens) for tokens in (source, prefix)]
    np.testing.assert_allclose(why.contributions, np.concatenate(expected), rtol=0, atol=1e-9)
    assert why.completeness < 1e-10
    assert_every_layer_makes_the_score(why)
    single = normlens.load(model.float(), tokenizer=False)
    assert single.explain(**source_of(family), **target, token=3).completeness < 1e-5


def assert_complete(make: Any) -> None:
    """Explanations of a model with its head, which has options of its own, lose nothing."""
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        lens = normlens.load(make(dtype), tokenizer=False)
        head = read_head(lens.adapter)
        position = 3 if head.reads == ANY and head.task != "causal language model" else None
        with in_float64() if dtype == torch.float64 else nullcontext():
            why = lens.explain(input_ids=IDS, target=2, contrast=1, position=position)
        assert why.completeness < tolerance


def _inputs(model: Any) -> tuple[dict[str, Any], Any]:
    """What the lens is given, and what the model is called with."""
    generator = torch.Generator().manual_seed(0)
    adapter = adapt(model)
    if not hasattr(adapter, "argument"):
        return {"input_ids": IDS}, IDS
    shape = (3, 12, 12) if isinstance(adapter, ImageEncoder) else (270,)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    # ViT-MAE shuffles its nine patches by this.
    order = {"noise": torch.arange(9.0)[None]} if model.config.model_type == "vit_mae" else {}
    return {"text": values}, {adapter.argument: values[None], **order}
