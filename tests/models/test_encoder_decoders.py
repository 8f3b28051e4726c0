"""Every encoder–decoder against the reference: both stacks, all scopes, ragged lengths."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from one_case import in_one_case
from reference import assert_maps_match, assert_same_maps, largest_error, padded, pair_references

import normlens
import normlens.options
from normlens.errors import CompletenessError, InputError, MemoryLimitError, UnsupportedModelError
from normlens.families.bart import Bart
from normlens.frozen import norm_maps
from normlens.layers import Attention, Norm
from normlens.models.parts import DECODER, ENCODER
from normlens.models.tiny import scramble, tiny_config, tiny_encoder_decoders, tiny_model
from normlens.trace.run import trace

FAMILIES = tiny_encoder_decoders()
LONG, SHORT = [3, 9, 27, 14, 5, 33, 8, 51, 60], [2, 5, 40, 12]
#: Sources and targets, each longer than the other once.
PAIRS = {"a longer source": (LONG, SHORT), "a longer target": (SHORT, LONG)}
FRAMES, BINS = 9, 6  # of the tiny Whisper

#: Families whose encoder ends with its last layer.
NORMS_BEHIND = ("bart", "blenderbot-small", "marian", "plbart")

every_family = pytest.mark.parametrize("family", FAMILIES)


def sound(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BINS, 2 * FRAMES, generator=generator, dtype=torch.float64)


def given(family: str, source: list[int], target: list[int]) -> dict[str, object]:
    """The arguments of `Lens.maps` for one pair; a source that is heard is made of its sum."""
    if family == "whisper":
        return {"input_features": sound(sum(source)), "decoder_input_ids": target}
    return {"input_ids": source, "decoder_input_ids": target}


def model_call(family: str, source: list[int], target: list[int]) -> dict[str, torch.Tensor]:
    """The arguments of the model itself for the same pair."""
    arguments = given(family, source, target)
    return {
        name: value[None] if isinstance(value, torch.Tensor) else torch.tensor([value])
        for name, value in arguments.items()
    }


@pytest.fixture(scope="module")
def expected():
    """The float64 reference of a family on a pair, computed once for each rule."""
    found = {}

    def get(family: str, which: str, rule: str = "ig"):
        if (family, which, rule) not in found:
            model = tiny_model(family).double()
            inputs = model_call(family, *PAIRS[which])
            found[family, which, rule] = pair_references(model, inputs, rule)
        return found[family, which, rule]

    return get


def assert_pair_matches(maps: normlens.Maps, both, tolerance: float) -> None:
    assert maps.encoder is not None
    assert_maps_match(maps.encoder, both[0], tolerance)
    assert_maps_match(maps, both[1], tolerance)


# Right numbers ----------------------------------------------------------------------------------


@every_family
def test_right_numbers(family, tiny, expected):
    """The reference in both precisions, completeness, heads, and what columns stand for."""
    for which in PAIRS:
        assert_float64_equals_the_reference(family, which, tiny, expected)
        assert_float32_is_close(family, which, tiny, expected)
    assert_head_maps_equal_the_reference(family, tiny, expected)
    assert_complete_to_rounding(family, tiny)
    assert_the_decoder_reads_what_the_encoder_returns(family, tiny)
    assert_columns_are_of_both_stacks(family, tiny)


@pytest.mark.filterwarnings("ignore::normlens.errors.NormLensWarning")  # of padding before a text
@every_family
def test_the_same_numbers_however_they_are_asked_for(family, tiny):
    for side in ("left", "right"):
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
            assert_padded_equals_alone(family, side, dtype, tolerance, tiny)
    assert_a_choice_changes_no_number(family, tiny)
    assert_a_little_memory_changes_no_number(family, tiny)
    assert_a_prepared_lens_gives_the_same_maps(family, tiny)
    assert_a_model_with_its_head_gives_the_same_maps(family, tiny)
    assert_the_model_is_left_as_it_was(family)


def assert_float64_equals_the_reference(family, which, tiny, expected):
    maps = normlens.load(tiny(family, torch.float64)).maps(**given(family, *PAIRS[which]))
    assert_pair_matches(maps, expected(family, which), 1e-9)


def assert_float32_is_close(family, which, tiny, expected):
    maps = normlens.load(tiny(family, torch.float32)).maps(**given(family, *PAIRS[which]))
    assert maps["CROSS-N"].dtype == np.float32
    assert_pair_matches(maps, expected(family, which), 1e-4)


@in_one_case("rule", ["ig-bias", "gradient"])
@in_one_case("family", ["bart", "mt5", "t5", "whisper"])
def test_other_rules_equal_the_reference(family, rule, tiny, expected):
    lens = normlens.load(tiny(family, torch.float64))
    maps = lens.maps(**given(family, LONG, SHORT), nonlinearity=rule)
    assert_pair_matches(maps, expected(family, "a longer source", rule), 1e-9)


@in_one_case("family", ["bart", "mt5"])
def test_every_order_of_the_players_of_both_sequences_is_exact(family, tiny, monkeypatch):
    """With all orders instead of random ones, nothing is left to chance; mT5's block is gated."""
    orders = {count: itertools.cycle(itertools.permutations(range(count))) for count in (3, 5)}
    monkeypatch.setattr(
        norm_maps.torch, "randperm", lambda count, generator: torch.tensor(next(orders[count]))
    )
    model, pair = tiny(family, torch.float64), (LONG[:2], SHORT[:2])
    both = pair_references(model, model_call(family, *pair), "shapley")
    lens = normlens.load(model)
    # 5 players in the decoder, 3 in the encoder, whose orders all come twenty times.
    maps = lens.maps(**given(family, *pair), nonlinearity="shapley", samples=120)
    assert_pair_matches(maps, both, 1e-9)
    behind = [scope for scope in maps.scopes if "FF" in scope]
    assert set(maps.standard_error) == set(behind)
    seen = maps.allowed[0]
    for scope in behind:
        assert (maps.standard_error[scope][:, seen] > 0).all(), scope


def assert_head_maps_equal_the_reference(family, tiny, expected):
    lens = normlens.load(tiny(family, torch.float64))
    maps = lens.maps(**given(family, LONG, SHORT), heads=True)
    encoder, decoder = expected(family, "a longer source")
    for position, layer in enumerate(decoder):
        k = len(maps.sources) - len(SHORT)
        for scope in ("ATTN-W", "ATTN-N"):
            own = maps.heads[scope][position][..., k:]
            assert largest_error(own, layer.head_maps[scope]) <= 1e-9, scope
            assert not maps.heads[scope][position][..., :k].any()
        for scope in ("CROSS-W", "CROSS-N"):
            assert largest_error(maps.heads[scope][position], layer.head_maps[scope]) <= 1e-9, scope
    assert maps.encoder is not None
    for position, layer in enumerate(encoder):
        error = largest_error(maps.encoder.heads["ATTN-N"][position], layer.head_maps["ATTN-N"])
        assert error <= 1e-9


def assert_complete_to_rounding(family, tiny):
    lens = normlens.load(tiny(family, torch.float64))
    norms = [step for layer in lens.layers for step in layer.steps if isinstance(step, Norm)]
    single = not all(norm.centred for norm in norms)  # RMSNorms compute in float32
    maps = lens.maps(**given(family, LONG, SHORT))
    assert 0 < maps.completeness <= (1e-5 if single else 1e-13)
    assert maps.encoder is not None
    assert maps.completeness >= maps.encoder.completeness


def assert_the_decoder_reads_what_the_encoder_returns(family, tiny):
    """Behind its final norm, where it has one."""
    model = tiny(family, torch.float64)
    adapter = normlens.load(model).adapter
    inputs = model_call(family, LONG, SHORT)
    layers: list = []
    trace(adapter, inputs, range(len(adapter.blocks())), layers.append)
    with torch.no_grad():
        memory = model(**inputs).encoder_last_hidden_state
    for layer in layers[len(adapter.encoder_blocks()) :]:
        torch.testing.assert_close(layer.sources[ENCODER], memory, rtol=0, atol=0)
    assert bool(adapter.encoder_end()) == (family not in NORMS_BEHIND)


@in_one_case(
    ("family", "settings"),
    [
        ("t5", {"num_layers": 1, "num_decoder_layers": 4, "d_kv": 5, "num_heads": 3}),
        ("bart", {"scale_embedding": True, "encoder_layerdrop": 0.9, "decoder_layerdrop": 0.9}),
        ("mbart", {"dropout": 0.5, "attention_dropout": 0.5, "activation_function": "silu"}),
        ("marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 70}),
        ("whisper", {"encoder_layers": 1, "activation_function": "relu"}),
    ],
)
def test_settings_that_differ_and_a_model_that_is_trained(family, settings):
    """Depths, heads and embeddings of other sizes; layers and weights that training drops."""
    model = tiny_model(family, **settings).double()
    both = pair_references(model, model_call(family, LONG, SHORT))
    model.train()
    maps = normlens.load(model, tokenizer=False).maps(**given(family, LONG, SHORT))
    assert model.training
    assert_pair_matches(maps, both, 1e-9)


# Labels -----------------------------------------------------------------------------------------


def assert_columns_are_of_both_stacks(family, tiny):
    maps = normlens.load(tiny(family, torch.float32)).maps(**given(family, LONG, SHORT))
    k, n = len(maps.sources) - len(SHORT), len(SHORT)
    assert maps.source_sequences == [ENCODER] * k + [DECODER] * n
    assert maps["CROSS-N"].shape == (3, n, k + n)
    np.testing.assert_array_equal(maps["CROSS-N"], maps["ATTNRESLNCROSS-N"])
    assert not maps["CROSS-N"][..., k:].any()
    assert not maps["CROSS-W"][..., k:].any()
    np.testing.assert_allclose(maps["CROSS-W"].sum(-1), 1, rtol=1e-5)
    assert not maps["ATTN-N"][..., :k].any()
    assert (maps["ATTNRESLNCROSSRES-N"][maps.allowed] > 0).all()
    lower = np.tril(np.ones((n, n), bool))
    for mask in maps.allowed:
        assert mask[:, :k].all()
        np.testing.assert_array_equal(mask[:, k:], lower)
    assert maps.encoder is not None
    assert maps.encoder.allowed.all()
    assert maps.encoder["ATTN-N"].shape == (2, k, k)
    frames = [f"{0.02 * place:.2f}s" for place in range(FRAMES)]
    assert maps.encoder.tokens == (frames if family == "whisper" else [str(i) for i in LONG])
    assert maps.source_tokens == [*maps.encoder.tokens, *map(str, SHORT)]


# The same numbers, however they are asked for ----------------------------------------------------

RAGGED = [(LONG, SHORT), (SHORT, LONG), (LONG[:6], LONG[3:6]), ([7], [2, 5])]


def batch_of(family: str, side: str) -> dict[str, object]:
    sources, targets = zip(*RAGGED, strict=True)
    ids, mask = padded(list(targets), side)
    arguments: dict[str, object] = {"decoder_input_ids": ids, "decoder_attention_mask": mask}
    if family == "whisper":
        return {"input_features": torch.stack([sound(sum(s)) for s in sources]), **arguments}
    ids, mask = padded(list(sources), side)
    return {"input_ids": ids, "attention_mask": mask, **arguments}


def assert_padded_equals_alone(family, side, dtype, tolerance, tiny):
    lens = normlens.load(tiny(family, dtype))
    # Norms and softmax in float32 round differently beside padding.
    single = any(isinstance(step, Norm) and not step.centred for step in lens.layers[0].steps)
    together = lens.maps(**batch_of(family, side), batch_size=len(RAGGED))
    for found, pair in zip(together, RAGGED, strict=True):
        alone = lens.maps(**given(family, *pair))
        assert_same_maps(found, alone, 1e-6 if single and dtype == torch.float64 else tolerance)


def assert_a_choice_changes_no_number(family, tiny):
    lens = normlens.load(tiny(family, torch.float64))
    whole = lens.maps(**given(family, LONG, SHORT))
    for scope in whole.scopes:
        some = lens.maps(**given(family, LONG, SHORT), layers=[-1], scopes=[scope])
        assert some.scopes == [scope]
        assert some.layers == [2]
        assert largest_error(some[scope][0], whole[scope][-1]) <= 1e-12
        if scope not in whole.encoder.scopes:
            assert some.encoder is None
        else:
            assert some.encoder.layers == [1]
            assert largest_error(some.encoder[scope][0], whole.encoder[scope][-1]) <= 1e-12


def test_layers_that_only_one_stack_has(tiny):
    lens = normlens.load(tiny("bart", torch.float32))
    maps = lens.maps(**given("bart", LONG, SHORT), layers=[0, 2])
    assert maps.layers == [0, 2]
    assert maps.encoder.layers == [0]
    alone = lens.maps(**given("bart", LONG, SHORT), layers=2)
    assert alone.layers == [2]
    assert alone.encoder is None
    with pytest.raises(InputError, match="layer 3 is out of range; its decoder has layers 0 to 2"):
        lens.maps(**given("bart", LONG, SHORT), layers=3)
    with pytest.raises(InputError, match=r"scopes of the encoder.*CROSS-W.*3 layers"):
        lens.maps(**given("bart", LONG, SHORT), scopes="ATTNRESLNFF-N")


def assert_a_little_memory_changes_no_number(family, tiny):
    lens = normlens.load(tiny(family, torch.float64))
    with pytest.raises(MemoryLimitError) as raised:
        lens.maps(**given(family, LONG, SHORT), memory_limit="1KB")
    limit = str(raised.value).split("needs ")[1].split(";")[0]
    found = lens.maps(**given(family, LONG, SHORT), memory_limit=limit)
    assert_same_maps(found, lens.maps(**given(family, LONG, SHORT)), 1e-12)


def assert_a_prepared_lens_gives_the_same_maps(family, tiny):
    lens = normlens.load(tiny(family, torch.float64))
    plain = lens.maps(**given(family, LONG, SHORT))
    assert_same_maps(lens.prepare().maps(**given(family, LONG, SHORT)), plain, 1e-10)


def assert_a_model_with_its_head_gives_the_same_maps(family, tiny):
    config = tiny_config(family)
    heads = transformers.AutoModelForSpeechSeq2Seq, transformers.AutoModelForSeq2SeqLM
    kind = next(kind for kind in heads if type(config) in kind._model_mapping)
    model = kind.from_config(config, attn_implementation="eager").eval()
    scramble(model, seed=3)
    base = tiny_model(family)
    missing = base.load_state_dict(model.base_model.state_dict(), strict=False).missing_keys
    assert not missing
    found = normlens.load(model).maps(**given(family, LONG, SHORT))
    assert_same_maps(found, normlens.load(base).maps(**given(family, LONG, SHORT)), 1e-6)


def assert_the_model_is_left_as_it_was(family):
    """An sdpa model in training mode works, and comes back with its modes and without hooks."""
    model = transformers.AutoModel.from_config(tiny_config(family))
    scramble(model)
    model.train()
    model.encoder.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    implementation = model.config._attn_implementation
    maps = normlens.load(model).maps(**given(family, LONG, SHORT))
    assert maps.completeness <= 1e-4
    assert model.config._attn_implementation == implementation
    assert {name: module.training for name, module in model.named_modules()} == modes
    for name, module in model.named_modules():
        assert not module._forward_hooks, name
        assert not module._forward_pre_hooks, name


# Wrong adapters ----------------------------------------------------------------------------------


def changed(change):
    """BART's steps, of which `change` alters one attention."""
    steps = Bart.steps

    def altered(self, block):
        return [change(step, block) if isinstance(step, Attention) else step
                for step in steps(self, block)]  # fmt: skip

    return altered


def wrong_cross(step, block):
    """Takes the keys for the values of the second attention."""
    if step.source is None:
        return step
    from normlens.models.base import linear

    return replace(step, value=linear(block.encoder_attn.k_proj))


def wrong_encoder(step, block):
    """Forgets the encoder's output bias."""
    if hasattr(block, "encoder_attn"):
        return step
    return replace(step, output=replace(step.output, bias=None, module=None))


@in_one_case(
    ("change", "where"),
    [
        (wrong_cross, r"decoder layer 0 at its CROSS \(scope ATTNRESLNCROSS-N\)"),
        (wrong_encoder, r"encoder layer 0 at its ATTN \(scope ATTN-N\)"),
    ],
)
def test_completeness_names_the_stack_that_is_not_what_its_adapter_says(
    change, where, tiny, monkeypatch
):
    lens = normlens.load(tiny("bart", torch.float64))
    monkeypatch.setattr(Bart, "steps", changed(change))
    with pytest.raises(CompletenessError, match=where):
        lens.maps(**given("bart", LONG, SHORT))


def test_weights_on_the_sources_padding_are_noticed(tiny):
    """A model that ignores the source's mask gives each pair of a batch other numbers."""
    lens = normlens.load(tiny("bart", torch.float64))
    forget = lens.model.decoder.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {**kwargs, "encoder_attention_mask": None}),
        with_kwargs=True,
    )
    try:
        with pytest.raises(UnsupportedModelError, match="padding of the other sequence"):
            lens.maps(**batch_of("bart", "right"), batch_size=len(RAGGED))
    finally:
        forget.remove()
