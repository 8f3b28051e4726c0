"""What families differ in, one trait at a time: each setting matches the reference."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers
from one_case import in_one_case
from reference import assert_maps_match, largest_error, references
from torch import nn

import normlens
from normlens.cli.map import show_maps
from normlens.errors import InputError, UnsupportedModelError
from normlens.layers import FIRST, MEAN, Norm
from normlens.models import adapt
from normlens.models.base import linear, read_head, scaled
from normlens.models.tiny import scramble, tiny_config, tiny_model
from normlens.pipeline.batches import batches
from normlens.studies.ablation.losses import choose_loss

IDS = [3, 9, 27, 14, 5, 33, 8]
PARALLEL = "(LN) ATTN ∥ (LN) FF RES"
IN_TURN = "(LN) ATTN RES LN FF RES"
OLD = {"new_decoder_architecture": False}
BOTTLENECK = "ATTN RES LN FF RES LN FF RES LN PROJ RES LN"


def check(family: str, ids: list[int] = IDS, **overrides) -> normlens.Lens:
    """A tiny model with these settings matches the reference in float64 and float32."""
    model = tiny_model(family, **overrides).double()
    lens = normlens.load(model)
    expected = references(model, ids)
    assert_maps_match(lens.maps(input_ids=ids), expected, 1e-9)
    single = normlens.load(copy.deepcopy(model).float()).maps(input_ids=ids)
    assert_maps_match(single, expected, 1e-4)
    assert single.completeness <= 1e-4
    return lens


def headed(family: str, task: str, **overrides):
    kind = getattr(transformers, f"AutoModelFor{task}")
    model = kind.from_config(tiny_config(family, num_labels=3, **overrides)).eval()
    scramble(model, 3)
    return model.double()


@in_one_case(
    ("family", "overrides", "sequence"),
    [
        ("falcon", {}, PARALLEL),
        ("falcon", {"num_ln_in_parallel_attn": 1}, PARALLEL),
        ("falcon", {**OLD, "multi_query": False, "num_kv_heads": 4}, PARALLEL),
        ("falcon", {**OLD, "parallel_attn": False}, IN_TURN),
        ("falcon", {**OLD, "alibi": True, "bias": False}, PARALLEL),
        ("stablelm", {"use_parallel_residual": True, "qk_layernorm": False}, PARALLEL),
        ("cohere", {"num_key_value_heads": 1, "use_qk_norm": False}, PARALLEL),
        ("gpt_neox", {"use_parallel_residual": False}, IN_TURN),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, IN_TURN),
        ("gpt2", {"scale_attn_weights": False, "activation_function": "quick_gelu"}, IN_TURN),
        ("gpt2", {"activation_function": "mish"}, IN_TURN),
        ("gpt_bigcode", {"multi_query": False}, IN_TURN),
        ("llama", {"num_key_value_heads": 1, "head_dim": 6, "hidden_act": "relu2"}, IN_TURN),
        ("granite", {"num_key_value_heads": 1}, IN_TURN),
        ("opt", {"layer_norm_elementwise_affine": False, "word_embed_proj_dim": 8}, IN_TURN),
        ("opt", {"do_layer_norm_before": False}, "ATTN RES LN FF RES LN"),
        ("esm", {"position_embedding_type": "absolute", "token_dropout": False}, IN_TURN),
        ("roberta-prelayernorm", {"is_decoder": True}, IN_TURN),
        ("gemma2", {}, "(LN) ATTN LN RES LN FF LN RES"),
        ("olmo2", {}, "ATTN LN RES FF LN RES"),
        ("albert", {"num_hidden_groups": 3}, "ATTN RES LN FF RES LN"),
        ("bert", {"is_decoder": True}, "ATTN RES LN FF RES LN"),
        ("deberta", {"pos_att_type": ["c2p"]}, "ATTN RES LN FF RES LN"),
        ("deberta", {"relative_attention": False}, "ATTN RES LN FF RES LN"),
    ],
)
def test_settings(family, overrides, sequence):
    lens = check(family, **overrides)
    assert lens.component_sequence == sequence
    if "num_key_value_heads" in overrides:
        assert lens.layers[0].attention.groups == 1


@in_one_case(
    ("family", "overrides", "windows"),
    [
        ("gpt_neo", {}, [(None, 0), (2, 0)]),
        ("mistral", {}, [(2, 0), (2, 0)]),
        ("mistral", {"sliding_window": None}, [(None, 0), (None, 0)]),
        ("mistral", {"sliding_window": 40}, [(None, 0), (None, 0)]),
        ("qwen2", {"use_sliding_window": False}, [(None, 0), (None, 0)]),
        ("gemma2", {}, [(2, 0), (None, 0)]),
        ("smollm3", {"use_sliding_window": False, "layer_types": None}, [(None, 0), (None, 0)]),
        ("exaone4", {}, [(2, 0), (None, 0)]),
        ("starcoder2", {"sliding_window": None}, [(None, 0), (None, 0)]),
        ("modernbert", {}, [(None, None), (2, 2), (2, 2)]),
        ("bert", {"is_decoder": True}, [(None, 0), (None, 0)]),
    ],
)
def test_windows(family, overrides, windows):
    maps = check(family, **overrides).maps(input_ids=IDS)
    n = len(IDS)
    for allowed, (back, ahead) in zip(maps.allowed, windows, strict=True):
        reach = (n if back is None else back), (n if ahead is None else ahead)
        expected = [[i - reach[0] <= j <= i + reach[1] for j in range(n)] for i in range(n)]
        np.testing.assert_array_equal(allowed, expected)


@in_one_case("family", ["gpt_neox", "gptj", "phi"])
def test_parallel_blocks_belong_to_the_diagonal(family, tiny):
    maps = normlens.load(tiny(family)).maps(input_ids=IDS)
    others = ~np.eye(len(IDS), dtype=bool)
    for scope in ("ATTNFF-N", "ATTNFFRES-N"):
        np.testing.assert_array_equal(maps[scope][:, others], maps["ATTN-N"][:, others])
        assert (np.abs(maps[scope] - maps["ATTN-N"])[:, ~others] > 1e-6).all()


@in_one_case(
    ("family", "words", "overrides"),
    [
        ("qwen3", ["q_norm", "k_norm"], {}),
        ("phi", ["q_layernorm", "k_layernorm"], {"qk_layernorm": True}),
        ("cohere", ["q_norm", "k_norm"], {}),
        ("mpnet", ["relative_attention_bias"], {}),
        ("deberta-v2", ["rel_embeddings"], {}),
    ],
)
def test_what_acts_on_queries_and_keys_changes_the_weights_alone(family, words, overrides):
    """The first layer attends elsewhere, and each head still sends the same vectors."""
    model = tiny_model(family, **overrides).double()
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if any(word in name for word in words):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    first, second = (
        normlens.load(m).maps(input_ids=IDS, layers=0, heads=True).heads for m in (model, other)
    )
    assert largest_error(second["ATTN-W"], first["ATTN-W"]) > 1e-3
    # The last target sees every source.
    sizes = [maps["ATTN-N"][0, :, -1] / maps["ATTN-W"][0, :, -1] for maps in (first, second)]
    np.testing.assert_allclose(sizes[0], sizes[1], rtol=1e-6)


@in_one_case("family", ["bloom", "mpt", "falcon"])
def test_alibi_sees_the_order(family):
    """The same token is weighted by its distance."""
    overrides = {"alibi": True, **OLD} if family == "falcon" else {}
    model = tiny_model(family, **overrides).double()
    maps = normlens.load(model).maps(input_ids=[5, 5, 5, 5], heads=True)
    assert (np.diff(maps.heads["ATTN-W"][0, :, -1], axis=-1) > 0).all()


def test_albert_runs_its_one_layer_again_and_again(tiny):
    lens = normlens.load(tiny("albert"))
    assert lens.n_layers == 3
    assert len({id(block) for block in lens.adapter.blocks()}) == 1
    maps = lens.maps(input_ids=IDS)
    assert largest_error(maps["FF"][1], maps["FF"][0]) > 1e-3


def test_a_convolution_between_layers_is_said(tmp_path, capsys):
    """It mixes tokens where no map shows it."""
    maps = normlens.load(tiny_model("deberta-v2", conv_kernel_size=3, conv_act="gelu")).maps(
        input_ids=IDS
    )
    note = "a convolution over 3 tokens mixes tokens between layers 0 and 1"
    assert note in maps.provenance["outside_scopes"]
    show_maps(normlens.open(maps.save(tmp_path / "maps.safetensors")))
    assert "outside every scope: a convolution" in capsys.readouterr().out


@in_one_case("family", ["bert", "albert", "layoutlm"])
def test_feed_forward_in_chunks(family):
    ids = IDS[:6]
    whole = normlens.load(tiny_model(family).double()).maps(input_ids=ids)
    found = check(family, ids, chunk_size_feed_forward=2).maps(input_ids=ids)
    for scope in whole.scopes:
        assert largest_error(found[scope], whole[scope]) < 1e-9


def test_an_activation_without_a_known_slope_is_named():
    model = tiny_model("gpt2", activation_function="laplace")
    with pytest.raises(normlens.NormLensError, match=r"'laplace'.*known are.*gelu"):
        normlens.load(model).maps(input_ids=IDS)


@in_one_case("pad", [None, -1])
def test_a_batch_without_a_padding_token(pad):
    """Some checkpoints name no padding token, or −1, which is not a row of the embeddings."""
    model = tiny_model("llama")
    model.config.pad_token_id = pad
    lens = normlens.load(model)
    alone = lens.maps(input_ids=IDS[:3])
    together = lens.maps(input_ids=[IDS, IDS[:3]], batch_size=2)
    for scope in alone.scopes:
        assert largest_error(together[1][scope], alone[scope]) < 1e-6


@in_one_case("family", ["bert", "gpt2", "opt", "bloom", "llama", "gemma2", "phi"])
@in_one_case(("dtype", "tolerance"), [(torch.float16, 1e-2), (torch.bfloat16, 8e-2)])
def test_half_precision(family, dtype, tolerance):
    """The model runs in half precision, the algebra in float32, near the float32 model's maps."""
    model = tiny_model(family)
    expected = normlens.load(model).maps(input_ids=IDS)
    lens = normlens.load(copy.deepcopy(model), dtype=dtype)
    assert (lens.dtype, lens.compute_dtype) == (dtype, torch.float32)
    maps = lens.maps(input_ids=IDS)
    assert maps["ATTN-N"].dtype == np.float32
    for scope in expected.scopes:
        assert largest_error(maps[scope], expected[scope]) < tolerance, scope


# Factors ------------------------------------------------------------------------------------------


@in_one_case("factor", [1.0, 0.3, -2.0])
def test_granites_factor_is_that_of_its_weights(factor):
    """A model with the factor inside its matrices and biases has the same maps."""
    model = tiny_model("granite", residual_multiplier=factor).double()
    plain = tiny_model("granite", residual_multiplier=1.0).double()
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        for block in plain.layers:
            for last in (block.self_attn.o_proj, block.mlp.down_proj):
                last.weight *= factor
                last.bias *= factor
    first, second = (normlens.load(m).maps(input_ids=IDS) for m in (model, plain))
    for scope in first.scopes:
        # its norms compute in float32
        assert largest_error(first[scope], second[scope]) < 1e-6, scope


def test_a_factor_for_each_dimension():
    """As a scale behind a branch may be: the map, its folded form and its module agree."""
    torch.manual_seed(0)
    module, factor, x = nn.Linear(6, 4), torch.randn(4), torch.randn(3, 6)
    with torch.no_grad():
        expected = module(x) * factor
        found = scaled(scaled(linear(module), factor), 0.5)
        torch.testing.assert_close(found(x), 0.5 * expected)
        folded = found.folded(torch.float64)
        torch.testing.assert_close(folded(x.double()), 0.5 * expected.double(), rtol=1e-6, atol=0)
        torch.testing.assert_close(folded.part(module(x).double()).float(), 0.5 * expected)
    assert not folded.is_scaled


@in_one_case(
    ("family", "setting", "factor"),
    [("granite", "logits_scaling", 0.25), ("cohere", "logit_scale", 4.0)],
)
def test_scores_are_scaled_as_the_model_scales_them(family, setting, factor):
    """Four times the score is four times every contribution."""
    found = []
    for value in (1.0, factor):
        lens = normlens.load(headed(family, "CausalLM", **{setting: value}), tokenizer=False)
        found.append(lens.explain(input_ids=IDS, target=2, contrast=1))
    assert found[1].value == pytest.approx(4 * found[0].value)
    np.testing.assert_allclose(found[1].contributions, 4 * found[0].contributions, rtol=1e-6)


@in_one_case("family", ["gemma", "gemma3_text"])
def test_one_plus_gamma_keeps_the_digits_of_gamma(family):
    """Gemma's code multiplies by 1 + γ in float32; in bfloat16 1.01 would be 1.0078125."""
    model = tiny_model(family).bfloat16()
    norm = next(s for s in adapt(model).layer(model.layers[0]).steps if isinstance(s, Norm))
    weight = model.layers[0].input_layernorm.weight
    assert torch.equal(norm.gamma, 1 + weight.float())
    assert not torch.equal(norm.gamma, (1 + weight).float())


# Heads, and what is refused ----------------------------------------------------------------------


@in_one_case(("pooling", "reads"), [("bos", FIRST), ("mean", MEAN), ("late", MEAN)])
def test_eurobert_poolings(pooling, reads):
    model = headed("eurobert", "SequenceClassification", classifier_pooling=pooling)
    lens = normlens.load(model, tokenizer=False)
    assert read_head(lens.adapter).reads == reads
    why = lens.explain(input_ids=IDS, target=1)
    with torch.no_grad():
        score = float(model(input_ids=torch.tensor([IDS])).logits[0, 1])
    assert why.target_value == pytest.approx(score, rel=1e-6)
    assert why.completeness < 1e-5


@in_one_case(
    ("overrides", "components"),
    [
        ({}, BOTTLENECK),
        (
            {"use_bottleneck_attention": True, "normalization_type": "layer_norm"},
            "(PROJ) (LN) ATTN RES LN FF RES LN FF RES LN PROJ RES LN",
        ),
        ({"key_query_shared_bottleneck": False, "intra_bottleneck_size": 16}, BOTTLENECK),
        ({"num_feedforward_networks": 1}, "ATTN RES LN FF RES LN PROJ RES LN"),
        (
            {"num_feedforward_networks": 3, "use_bottleneck": False},
            "ATTN RES LN FF RES LN FF RES LN FF RES LN",
        ),
    ],
)
def test_mobilebert_in_every_form(overrides, components):
    lens = check("mobilebert", **overrides)
    assert lens.component_sequence == components
    assert lens.maps(input_ids=IDS, origin="input").completeness < 1e-12
    model = headed("mobilebert", "MaskedLM", **overrides)
    why = normlens.load(model, tokenizer=False).explain(
        input_ids=IDS, position=2, target=5, scopes="all", heads=True
    )
    with torch.no_grad():
        score = float(model(input_ids=torch.tensor([IDS])).logits[0, 2, 5])
    assert why.target_value == pytest.approx(score, rel=1e-9)
    assert why.completeness < 1e-9
    for layer, flow in enumerate(why.flow):  # what leaves a source is what the source has
        np.testing.assert_allclose(flow.sum(0), why.nodes[layer], atol=1e-9)


def test_mobilebert_runs_texts_of_one_length_together():
    """The embeddings of neighbours are part of a token's, and padding would be one."""
    lens = normlens.load(tiny_model("mobilebert"))
    ids = (IDS, IDS[:3], IDS[::-1], IDS[2:5])
    texts = [lens.encode(input_ids=each)[0] for each in ids]
    assert sorted(batches(lens, texts, 4)) == [[0, 2], [1, 3]]
    alone = normlens.load(tiny_model("mobilebert", trigram_input=False))
    assert list(batches(alone, texts, 4)) == [[1, 3, 0, 2]]


def test_what_is_not_written_for_several_blocks_is_refused():
    lens = normlens.load(tiny_model("mobilebert"))
    with pytest.raises(InputError):
        lens.maps(input_ids=IDS, nonlinearity="shapley")
    assert lens.maps(input_ids=IDS, nonlinearity="shapley", scopes=["ATTN", "LN1"]).scopes
    with pytest.raises(UnsupportedModelError):
        choose_loss(lens)
    with pytest.raises(InputError):
        lens.maps(input_ids=IDS).feed_forward_pair()


@in_one_case(
    ("family", "overrides"),
    [("roformer", {"rotary_value": True}), ("deberta", {"talking_head": True})],
)
def test_values_that_are_mixed_otherwise_are_refused(family, overrides):
    with pytest.raises(UnsupportedModelError, match=next(iter(overrides))):
        normlens.load(tiny_model(family, **overrides))


@in_one_case("family", ["olmo", "mpt"])
def test_clipped_values(family):
    """A limit that no value reaches changes nothing; one that cuts values off is noticed."""

    def settings(limit: float) -> dict:
        return {"clip_qkv": limit} if family == "olmo" else {"attn_config": {"clip_qkv": limit}}

    check(family, **settings(100.0))
    lens = normlens.load(tiny_model(family, **settings(0.05)))
    with pytest.raises(normlens.NormLensError, match="layer 0"):
        lens.maps(input_ids=IDS)
