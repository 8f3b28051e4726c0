"""Every family against the reference, and what must not change its numbers."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
import torch
import transformers
from reference import assert_maps_match, largest_error, observe, references

import normlens
from normlens.errors import MemoryLimitError
from normlens.layers import Norm
from normlens.models import adapt, supported_families
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


@pytest.fixture(scope="module")
def expected():
    """The float64 reference of a family on IDS, computed once for each rule."""
    found = {}

    def get(model, family: str, rule: str = "ig"):
        if (family, rule) not in found:
            found[family, rule] = references(model, IDS, rule)
        return found[family, rule]

    return get


@pytest.fixture(scope="module")
def kept():
    """Maps of sequences alone, for all tests that compare others with them or look at them."""
    return {}


@pytest.fixture
def maps_of(tiny, kept):
    """The maps of a family's tiny model on one sequence, computed once for each precision."""

    def get(family: str, dtype: torch.dtype = torch.float32, ids: list[int] = IDS):
        key = family, dtype, tuple(ids)
        if key not in kept:
            kept[key] = normlens.load(tiny(family, dtype)).maps(input_ids=ids)
        return kept[key]

    return get


def assert_same(found: normlens.Maps, expected: normlens.Maps, tolerance: float = 1e-6) -> None:
    assert found.scopes == expected.scopes
    assert found.layers == expected.layers
    np.testing.assert_array_equal(found.allowed, expected.allowed)
    for scope in expected.scopes:
        assert largest_error(found[scope], expected[scope]) <= tolerance, scope
        difference = found.mixing_ratio(scope) - expected.mixing_ratio(scope)
        assert np.abs(difference).max() <= tolerance, scope


def test_every_family_is_tried():
    """One that was registered without a tiny configuration would pass through no test below."""
    encoder_decoders = tiny_encoder_decoders()  # tests/models/test_encoder_decoders.py
    signals = tiny_signal_families()  # tests/models/test_signal_families.py
    assert sorted([*FAMILIES, *encoder_decoders, *signals]) == sorted(supported_families())
    assert {"bert", "gpt2", "llama"} <= set(FAMILIES)


# Right numbers ----------------------------------------------------------------------------------


@every_family
def test_float64_equals_the_reference(family, tiny, maps_of, expected):
    maps = maps_of(family, torch.float64)
    assert_maps_match(maps, expected(tiny(family, torch.float64), family), 1e-9)


@every_family
def test_float32_is_close_to_the_float64_reference(family, tiny, maps_of, expected):
    maps = maps_of(family)
    assert maps["ATTN-N"].dtype == np.float32
    assert_maps_match(maps, expected(tiny(family, torch.float64), family), 1e-4)


@every_family
@pytest.mark.parametrize("rule", ["ig-bias", "gradient"])
def test_other_rules_equal_the_reference(family, rule, tiny, expected):
    model = tiny(family, torch.float64)
    maps = normlens.load(model).maps(input_ids=IDS, nonlinearity=rule)
    assert_maps_match(maps, expected(model, family, rule), 1e-9)


@every_family
def test_parts_and_bias_add_up_to_the_hidden_states(family, maps_of):
    assert 0 < maps_of(family).completeness <= 1e-4


@every_family
def test_parts_and_bias_add_up_in_float64(family, tiny, maps_of):
    """To rounding, so that an activation with a constant of fewer digits is told from another."""
    lens = normlens.load(tiny(family, torch.float64))
    # transformers computes norms of its own in float32 whatever the model runs in.
    norms = [step for layer in lens.layers for step in layer.steps if isinstance(step, Norm)]
    single = not all(isinstance(norm.module, torch.nn.LayerNorm) for norm in norms)
    assert 0 < maps_of(family, torch.float64).completeness <= (1e-5 if single else 1e-13)


@every_family
def test_head_maps_equal_the_reference(family, tiny, expected):
    model = tiny(family, torch.float64)
    maps = normlens.load(model).maps(input_ids=IDS, heads=True)
    for position, layer in enumerate(expected(model, family)):
        for scope in ("ATTN-W", "ATTN-N"):
            error = largest_error(maps.heads[scope][position], layer.head_maps[scope])
            assert error <= 1e-9, scope


@every_family
def test_allowed_pairs_are_those_with_attention(family, tiny, maps_of):
    adapter = adapt(tiny(family, torch.float64))
    maps = maps_of(family, torch.float64)
    alpha = observe(adapter.model, list(adapter.blocks()), IDS).alpha
    for position, weights in enumerate(alpha):
        np.testing.assert_array_equal(maps.allowed[position], (weights > 0).any(0).numpy())


@every_family
def test_causal_maps_are_lower_triangles(family, tiny, maps_of):
    causal = normlens.load(tiny(family, torch.float32)).causal
    maps = maps_of(family)
    for scope in maps.scopes:
        above = np.triu(maps[scope], k=1)
        assert (np.abs(above).max() == 0) == causal, scope


@every_family
def test_maps_are_zero_where_attention_is_not_allowed(family, maps_of):
    maps = maps_of(family)
    for scope in maps.scopes:
        assert not maps[scope][~maps.allowed].any(), scope
        assert (maps[scope][maps.allowed] > 0).all(), scope


# The same numbers, however they are asked for ----------------------------------------------------


@every_family
def test_batched_and_padded_equals_one_by_one(family, tiny, maps_of):
    lens = normlens.load(tiny(family, torch.float32))
    alone = [maps_of(family, ids=ids) for ids in BATCH]
    together = lens.maps(input_ids=BATCH, batch_size=3)
    for found, expected in zip(together, alone, strict=True):
        assert found.token_ids == expected.token_ids
        assert_same(found, expected)


@pytest.mark.filterwarnings("ignore::normlens.errors.NormLensWarning")  # of padding before a text
@every_family
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_taken_off(family, side, tiny, maps_of):
    lens = normlens.load(tiny(family, torch.float32))
    width = max(map(len, BATCH))
    rows, mask = [], []
    for ids in BATCH:
        fill = [PADDING] * (width - len(ids))
        flags = [0] * len(fill)
        rows.append(fill + ids if side == "left" else ids + fill)
        mask.append(flags + [1] * len(ids) if side == "left" else [1] * len(ids) + flags)
    padded = lens.maps(
        input_ids=torch.tensor(rows), attention_mask=torch.tensor(mask), batch_size=3
    )
    for found, ids in zip(padded, BATCH, strict=True):
        assert found.token_ids == ids
        assert_same(found, maps_of(family, ids=ids))


@every_family
def test_a_choice_of_layers_and_scopes_changes_no_number(family, tiny, maps_of):
    lens = normlens.load(tiny(family, torch.float32))
    whole = maps_of(family)
    for scope in lens.scopes:
        some = lens.maps(input_ids=IDS, layers=[-1], scopes=[scope])
        assert some.scopes == [scope]
        assert some.layers == [lens.n_layers - 1]
        assert largest_error(some[scope][0], whole[scope][-1]) <= 1e-6, scope
        ratios = some.mixing_ratio(scope)[0] - whole.mixing_ratio(scope)[-1]
        assert np.abs(ratios).max() <= 1e-6, scope


@every_family
def test_a_little_memory_changes_no_number(family, tiny, maps_of):
    lens = normlens.load(tiny(family, torch.float32))
    limit = "1KB"
    if any(layer.feed_forward is not None for layer in lens.layers):
        with pytest.raises(MemoryLimitError) as raised:
            lens.maps(input_ids=IDS, memory_limit=limit)
        least = re.search(r"needs (\S+);", str(raised.value))
        assert least
        limit = least[1]
    assert_same(lens.maps(input_ids=IDS, memory_limit=limit), maps_of(family))


@every_family
def test_heads_on_top_are_taken_off(family, tiny):
    """A model with any head gives the maps of the base model that holds the same weights."""
    config = tiny_config(family)
    base = copy.deepcopy(tiny(family, torch.float32))
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
        assert_same(normlens.load(model).maps(input_ids=IDS), lens.maps(input_ids=IDS))
        tried.append(head)
    words = {transformers.AutoModelForMaskedLM, transformers.AutoModelForCausalLM}
    assert (not set(tried) & words) == (family in WORDLESS)


def with_its_own_attention(family):
    """A tiny model whose attention is the one that transformers chooses."""
    config = tiny_config(family)
    kind = body_class(config)
    return (kind.from_config if hasattr(kind, "from_config") else kind._from_config)(config)


@every_family
def test_the_model_is_left_as_it_was(family):
    """An sdpa model in training mode works, and comes back with its modes and without hooks."""
    torch.manual_seed(0)
    model = with_its_own_attention(family)
    scramble(model)
    model.train()
    next(model.children()).eval()
    modes = {name: module.training for name, module in model.named_modules()}
    implementation = model.config._attn_implementation
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    learnt = [parameter.requires_grad for parameter in model.parameters()]

    maps = normlens.load(model).maps(input_ids=IDS)

    assert maps.completeness <= 1e-4
    assert model.config._attn_implementation == implementation
    assert {name: module.training for name, module in model.named_modules()} == modes
    for name, module in model.named_modules():
        assert not module._forward_hooks, name
        assert not module._forward_pre_hooks, name
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [parameter.requires_grad for parameter in model.parameters()] == learnt


@every_family
def test_fused_attention_gives_the_maps_of_eager_attention(family, tiny, maps_of):
    """transformers runs sdpa by itself wherever a family has it."""
    eager = tiny(family, torch.float32)
    model = with_its_own_attention(family)
    model.load_state_dict(eager.state_dict())
    chosen = model.config._attn_implementation
    assert chosen == ("sdpa" if model._supports_sdpa else "eager")
    assert_same(normlens.load(model).maps(input_ids=IDS), maps_of(family))
    assert model.config._attn_implementation == chosen
