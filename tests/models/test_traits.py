"""What families differ in, one trait at a time."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from one_case import in_one_case
from reference import assert_maps_match, largest_error, references

import normlens
from normlens.cli.map import show_maps
from normlens.models import adapt
from normlens.models.tiny import tiny_model

IDS = [3, 9, 27, 14, 5, 33, 8]


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


def with_other(model: torch.nn.Module, *names: str) -> torch.nn.Module:
    """A copy in which the parameters with these words in their name are other random numbers."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    touched = 0
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if any(word in name for word in names):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
                touched += 1
    assert touched
    return other


def assert_only_weights_differ(model: torch.nn.Module, other: torch.nn.Module) -> None:
    """The first layer of `other` attends elsewhere, and each head still sends the same vectors."""
    first, second = (
        normlens.load(m).maps(input_ids=IDS, layers=0, heads=True).heads for m in (model, other)
    )
    assert largest_error(second["ATTN-W"], first["ATTN-W"]) > 1e-3
    sizes = [
        # the last target sees every source in the families that this is used for
        maps["ATTN-N"][0, :, -1] / maps["ATTN-W"][0, :, -1]
        for maps in (first, second)
    ]
    np.testing.assert_allclose(sizes[0], sizes[1], rtol=1e-6)


# Heads and groups -------------------------------------------------------------------------------


@in_one_case("family", ["llama", "mistral", "qwen2", "qwen3", "gemma", "olmo2", "phi"])
@in_one_case("groups", [1, 2, 4])
def test_grouped_and_multi_query_attention(family, groups):
    lens = check(family, num_key_value_heads=groups)
    attention = adapt(lens.model).layer(lens.model.layers[0]).attention
    assert (attention.heads, attention.groups) == (4, groups)


@in_one_case("family", ["llama", "qwen3", "gemma"])
@in_one_case("head_dim", [2, 6])
def test_heads_that_are_not_a_share_of_the_width(family, head_dim):
    lens = check(family, head_dim=head_dim)
    weight = adapt(lens.model).layer(lens.model.layers[0]).attention.output.weight
    assert weight.shape == (4 * head_dim, 16)


# Side by side or one after the other ------------------------------------------------------------


@in_one_case("family", ["gpt_neox", "gptj", "phi"])
def test_parallel_blocks_belong_to_the_diagonal(family, tiny):
    maps = normlens.load(tiny(family)).maps(input_ids=IDS)
    assert maps.scopes == ["ATTN-W", "ATTNRES-W", "ATTN-N", "ATTNFF-N", "ATTNFFRES-N"]
    others = ~np.eye(len(IDS), dtype=bool)
    for scope in ("ATTNFF-N", "ATTNFFRES-N"):
        np.testing.assert_array_equal(maps[scope][:, others], maps["ATTN-N"][:, others])
        assert (np.abs(maps[scope] - maps["ATTN-N"])[:, ~others] > 1e-6).all()


# What changes the attention weights alone --------------------------------------------------------


@in_one_case(
    ("family", "overrides"),
    [("qwen3", {}), ("gemma3_text", {"sliding_window": 48}), ("olmo2", {}), ("phi", {})],
)
def test_query_and_key_norms_act_on_the_weights(family, overrides):
    if family == "phi":
        overrides = {"qk_layernorm": True}
    lens = check(family, **overrides)
    names = ["q_norm", "k_norm", "q_layernorm", "k_layernorm"]
    assert_only_weights_differ(lens.model, with_other(lens.model, *names))


# How far a target sees --------------------------------------------------------------------------


def band(n: int, back: int, ahead: int) -> np.ndarray:
    return np.array([[i - back <= j <= i + ahead for j in range(n)] for i in range(n)])


@in_one_case(
    ("family", "overrides", "windows"),
    [
        ("gpt_neo", {}, [None, 3]),
        ("mistral", {}, [3, 3]),
        ("mistral", {"sliding_window": None}, [None, None]),
        ("qwen2", {"use_sliding_window": False}, [None, None]),
        ("gemma2", {}, [3, None]),
        ("gemma3_text", {"layer_types": ["sliding_attention", "full_attention"]}, [3, None]),
    ],
)
def test_sliding_windows(family, overrides, windows):
    lens = check(family, **overrides)
    maps = lens.maps(input_ids=IDS)
    for allowed, window in zip(maps.allowed, windows, strict=True):
        back = len(IDS) if window is None else window - 1
        np.testing.assert_array_equal(allowed, band(len(IDS), back, 0))


def test_local_attention_looks_both_ways():
    lens = check("modernbert")  # three layers, the first of them global; a window of 4
    maps = lens.maps(input_ids=IDS)
    assert maps.allowed[0].all()
    for allowed in maps.allowed[1:]:
        np.testing.assert_array_equal(allowed, band(len(IDS), 2, 2))


# Norms ------------------------------------------------------------------------------------------


@in_one_case("family", ["gemma2", "gemma3_text"])
def test_norms_on_both_sides_of_a_branch(family, tiny):
    lens = normlens.load(tiny(family))
    assert lens.component_sequence == "(LN) ATTN LN RES LN FF LN RES"
    assert lens.scopes[2:] == [
        "ATTN-N",
        "ATTNLN-N",
        "ATTNLNRES-N",
        "ATTNLNRESLN-N",
        "ATTNLNRESLNFF-N",
        "ATTNLNRESLNFFLN-N",
        "ATTNLNRESLNFFLNRES-N",
    ]


# Embeddings and shared layers --------------------------------------------------------------------


def test_albert_runs_its_one_layer_again_and_again(tiny):
    lens = normlens.load(tiny("albert"))
    assert lens.n_layers == 3
    assert len({id(block) for block in lens.adapter.blocks()}) == 1
    maps = lens.maps(input_ids=IDS)
    assert largest_error(maps["FF"][1], maps["FF"][0]) > 1e-3


# Blocks that the model runs in its own way --------------------------------------------------------


def test_the_convolution_mixes_tokens_that_no_map_shows(tmp_path, capsys):
    """Where layer 1 mixes nothing, neighbours are mixed before layer 2 all the same; it is said."""
    model = tiny_model("deberta-v2", conv_kernel_size=3, conv_act="gelu").double()
    other = [*IDS[:3], IDS[3] + 1, *IDS[4:]]
    blocks = model.encoder.layer
    seen = []
    handles = [
        blocks[0].attention.self.register_forward_hook(
            lambda _, args, out: (args[0], *out[1:])  # every token keeps to itself
        ),
        blocks[1].register_forward_pre_hook(lambda _, args: seen.append(args[0])),
    ]
    with torch.no_grad():
        for ids in (IDS, other):
            model(torch.tensor([ids]), torch.ones(1, len(ids)))
    for handle in handles:
        handle.remove()
    changed = (seen[0] - seen[1]).abs().amax(-1)[0] > 1e-9
    assert changed.tolist() == [False, False, True, True, True, False, False]
    maps = normlens.load(model).maps(input_ids=IDS)
    maps.save(tmp_path / "maps.safetensors")
    reloaded = normlens.open(tmp_path / "maps.safetensors")
    assert reloaded.provenance["outside_scopes"] == maps.provenance["outside_scopes"]
    show_maps(reloaded)
    assert "outside every scope: a convolution" in capsys.readouterr().out


@in_one_case("chunk", [1, 2, 3])
@in_one_case("family", ["bert", "albert"])
def test_feed_forward_in_chunks(family, chunk):
    ids = IDS[:6]
    whole = normlens.load(tiny_model(family).double()).maps(input_ids=ids)
    lens = check(family, ids, chunk_size_feed_forward=chunk)
    found = lens.maps(input_ids=ids)
    for scope in whole.scopes:
        assert largest_error(found[scope], whole[scope]) < 1e-9
    assert found.completeness < 1e-9


@in_one_case(
    "activation",
    ["relu", "gelu", "silu", "quick_gelu", "relu2", "tanh", "gelu_new", "mish", "sigmoid"],
)
def test_gpt2_with_another_activation(activation):
    check("gpt2", activation_function=activation)


@in_one_case("activation", ["gelu", "gelu_pytorch_tanh", "relu", "relu2", "tanh"])
def test_a_gate_with_another_activation(activation):
    check("llama", hidden_act=activation)


def test_an_activation_without_a_known_slope_is_named():
    model = tiny_model("gpt2", activation_function="laplace")
    with pytest.raises(normlens.NormLensError, match=r"'laplace'.*known are.*gelu"):
        normlens.load(model).maps(input_ids=IDS)


# Padding ----------------------------------------------------------------------------------------


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


# Half precision ---------------------------------------------------------------------------------


@in_one_case("family", ["bert", "gpt2", "opt", "bloom", "llama", "gemma2", "phi"])
@in_one_case(
    ("dtype", "tolerance"), [(torch.float16, 1e-2), (torch.bfloat16, 8e-2)], ids=["fp16", "bf16"]
)
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
