"""Every family against the reference, and what must not change its numbers."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
import torch
import transformers
from heads import tried_families
from one_case import in_one_case
from reference import (
    assert_maps_match,
    assert_same_maps,
    largest_error,
    observe,
    padded,
    references,
)

import normlens
from normlens.errors import MemoryLimitError
from normlens.layers import Norm
from normlens.models import supported_families
from normlens.models.tiny import (
    scramble,
    tiny_config,
    tiny_encoder_decoders,
    tiny_families,
    tiny_signal_families,
)
from normlens.models.unwrapping import body_class

FAMILIES = tiny_families()
IDS = [3, 9, 27, 14, 5, 33, 8]
BATCH = [IDS, [40, 41, 3], [7, 12, 60, 22, 51]]
PADDING = 1

HEADS = [
    transformers.AutoModelForMaskedLM,
    transformers.AutoModelForCausalLM,
    transformers.AutoModelForSequenceClassification,
    transformers.AutoModelForTokenClassification,
    transformers.AutoModelForQuestionAnswering,
]

#: Families that predict no words: DPR's encoders, and halves of models of pictures and texts.
WORDLESS = (
    *("dpr", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"),
    *("clip_text_model", "siglip_text_model", "siglip2_text_model"),
)

every_family = pytest.mark.parametrize("family", FAMILIES)
every_kind = in_one_case("family", tried_families())


def test_every_family_is_tried():
    """One that was registered without a tiny configuration would pass through no test below."""
    encoder_decoders = tiny_encoder_decoders()  # tests/models/test_encoder_decoders.py
    signals = tiny_signal_families()  # tests/models/test_signal_families.py
    assert sorted([*FAMILIES, *encoder_decoders, *signals]) == sorted(supported_families())
    assert {"bert", "gpt2", "llama"} <= set(FAMILIES)


@pytest.mark.filterwarnings("ignore::normlens.errors.NormLensWarning")  # of padding before a text
@every_family
def test_numbers(family, tiny):
    """The reference in both precisions, completeness, causality, and texts padded like alone."""
    exact = tiny(family, torch.float64)
    expected = references(exact, IDS)
    lens = normlens.load(exact)
    maps = lens.maps(input_ids=IDS, heads=True)
    assert_maps_match(maps, expected, 1e-9)
    for position, layer in enumerate(expected):
        for scope in ("ATTN-W", "ATTN-N"):
            error = largest_error(maps.heads[scope][position], layer.head_maps[scope])
            assert error <= 1e-9, scope
    # To rounding, so that an activation with a constant of fewer digits is told from another;
    # transformers computes norms of its own in float32 whatever the model runs in.
    norms = [step for layer in lens.layers for step in layer.steps if isinstance(step, Norm)]
    single = not all(isinstance(norm.module, torch.nn.LayerNorm) for norm in norms)
    assert 0 < maps.completeness <= (1e-5 if single else 1e-13)
    alpha = observe(lens.adapter.model, list(lens.adapter.blocks()), IDS).alpha
    for position, weights in enumerate(alpha):
        np.testing.assert_array_equal(maps.allowed[position], (weights > 0).any(0).numpy())

    lens = normlens.load(tiny(family, torch.float32))
    maps = lens.maps(input_ids=IDS)
    assert maps["ATTN-N"].dtype == np.float32
    assert_maps_match(maps, expected, 1e-4)
    assert 0 < maps.completeness <= 1e-4
    for scope in maps.scopes:
        assert not maps[scope][~maps.allowed].any(), scope
        assert (maps[scope][maps.allowed] > 0).all(), scope
        above = np.triu(maps[scope], k=1)
        assert (np.abs(above).max() == 0) == lens.causal, scope

    alone = [maps, *(lens.maps(input_ids=ids) for ids in BATCH[1:])]
    for side in (None, "left", "right"):
        ids, mask = (BATCH, None) if side is None else padded(BATCH, side)
        together = lens.maps(input_ids=ids, attention_mask=mask, batch_size=3)
        for found, expected in zip(together, alone, strict=True):
            assert found.token_ids == expected.token_ids
            assert_same_maps(found, expected)


@every_kind
def test_other_rules_equal_the_reference(family, tiny):
    model = tiny(family, torch.float64)
    for rule in ("ig-bias", "gradient"):
        maps = normlens.load(model).maps(input_ids=IDS, nonlinearity=rule)
        assert_maps_match(maps, references(model, IDS, rule), 1e-9)


@every_kind
def test_layers_scopes_and_memory_change_no_number(family, tiny):
    lens = normlens.load(tiny(family, torch.float32))
    whole = lens.maps(input_ids=IDS)
    for scope in lens.scopes:
        some = lens.maps(input_ids=IDS, layers=[-1], scopes=[scope])
        assert some.scopes == [scope]
        assert some.layers == [lens.n_layers - 1]
        assert largest_error(some[scope][0], whole[scope][-1]) <= 1e-6, scope
        ratios = some.mixing_ratio(scope)[0] - whole.mixing_ratio(scope)[-1]
        assert np.abs(ratios).max() <= 1e-6, scope
    limit = "1KB"
    if any(layer.feed_forward is not None for layer in lens.layers):
        with pytest.raises(MemoryLimitError) as raised:
            lens.maps(input_ids=IDS, memory_limit=limit)
        least = re.search(r"needs (\S+);", str(raised.value))
        assert least
        limit = least[1]
    assert_same_maps(lens.maps(input_ids=IDS, memory_limit=limit), whole)


def assert_heads_are_taken_off(family, eager):
    """A model with any head gives the maps of the base model that holds the same weights."""
    config = tiny_config(family)
    base = copy.deepcopy(eager)
    lens = normlens.load(base)
    tried = []
    for head in HEADS:
        if type(config) not in head._model_mapping:
            continue
        model = head.from_config(config, attn_implementation="eager").eval()
        scramble(model, seed=len(tried) + 1)
        # Llama 4's causal model names no base model.
        body = model.model if model.base_model is model else model.base_model
        missing = base.load_state_dict(body.state_dict(), strict=False).missing_keys
        assert all("pooler" in name for name in missing)
        assert_same_maps(normlens.load(model).maps(input_ids=IDS), lens.maps(input_ids=IDS))
        tried.append(head)
    words = {transformers.AutoModelForMaskedLM, transformers.AutoModelForCausalLM}
    assert (not set(tried) & words) == (family in WORDLESS)


@every_family
def test_a_model_as_its_user_has_it(family, tiny):
    """With the attention that transformers chooses and in training mode: right, and left so."""
    eager = tiny(family, torch.float32)
    config = tiny_config(family)
    kind = body_class(config)
    model = (kind.from_config if hasattr(kind, "from_config") else kind._from_config)(config)
    model.load_state_dict(eager.state_dict())
    chosen = model.config._attn_implementation
    assert chosen == ("sdpa" if model._supports_sdpa else "eager")
    model.train()
    next(model.children()).eval()
    modes = {name: module.training for name, module in model.named_modules()}
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    learnt = [parameter.requires_grad for parameter in model.parameters()]

    assert_same_maps(
        normlens.load(model).maps(input_ids=IDS), normlens.load(eager).maps(input_ids=IDS)
    )

    assert model.config._attn_implementation == chosen
    assert {name: module.training for name, module in model.named_modules()} == modes
    for name, module in model.named_modules():
        assert not module._forward_hooks, name
        assert not module._forward_pre_hooks, name
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [parameter.requires_grad for parameter in model.parameters()] == learnt
    assert_heads_are_taken_off(family, eager)
