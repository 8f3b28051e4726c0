"""Mixtures of experts: what the model really routed, whichever way it did."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from one_case import in_one_case
from reference import assert_maps_match, largest_error, reference, references, routed_of

import normlens
from normlens.errors import CompletenessError, InputError
from normlens.families.llama import Llama
from normlens.layers import Experts
from normlens.models import adapt
from normlens.plan import costs as plans
from normlens.plan.costs import MATRICES, TILES
from normlens.trace.run import trace

IDS = [3, 9, 27, 14, 5, 33, 8]
FF = "ATTNRESLNFF-N"


# The experts themselves, called with the routing of the run --------------------------------------


def mean_derivative(block, y: torch.Tensor, along: torch.Tensor) -> torch.Tensor:
    """``∫₀¹ ∂block(αy) · along dα`` by quadrature over forward-mode derivatives."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    total = torch.zeros_like(y)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        total += weight * torch.func.jvp(block, (node * y,), (along,))[1]
    return total


def test_norms_are_those_of_the_modules_integrated_along_their_input(tiny):
    """Without input biases, integrating over neurons and over the block's input is the same."""
    model, ids = tiny("qwen2_moe", torch.float64), IDS[:4]
    adapter, traces = adapt(model), []
    inputs = {"input_ids": torch.tensor([ids])}
    trace(adapter, inputs, [1], traces.append)
    layer, mlp = traces[0].layer, traces[0].block.mlp
    routed = routed_of(layer)
    before = reference(layer, traces[0].x[0], traces[0].alphas[0][0], routed=routed)
    parts = before.parts["ATTNRESLN-N"]

    def block(y: torch.Tensor) -> torch.Tensor:
        out = mlp.experts(y, routed.experts, routed.weights)
        return out + routed.shared[:, None] * mlp.shared_expert(y)

    with torch.no_grad():
        expected = torch.stack(
            [mean_derivative(block, parts.total, parts.owned[:, j]) for j in range(len(ids))], 1
        ).norm(dim=-1)
    maps = normlens.load(model).maps(input_ids=ids, layers=[1], scopes=[FF])
    assert largest_error(maps[FF][0], expected) <= 1e-9


# Routing as families do it -----------------------------------------------------------------------


@in_one_case(
    ("family", "settings"),
    [
        ("qwen3_moe", {"norm_topk_prob": False}),
        ("olmoe", {"norm_topk_prob": True}),
        ("mixtral", {"num_experts_per_tok": 1}),
        ("mixtral", {"num_experts_per_tok": 5}),
        ("deepseek_v3", {"norm_topk_prob": False, "n_group": 1, "topk_group": 1}),
        ("deepseek_v3", {"q_lora_rank": None, "attention_bias": False}),
        ("llama4_text", {"num_experts_per_tok": 1}),
        ("gpt_oss", {"swiglu_limit": 7.0}),
        ("ernie4_5_moe", {"moe_num_shared_experts": 0}),
    ],
)
def test_every_way_of_routing_equals_the_reference(family, settings, tiny):
    model = tiny(family, torch.float64, **settings)
    maps = normlens.load(model).maps(input_ids=IDS)
    assert_maps_match(maps, references(model, IDS), 1e-9)
    weights = maps.routing.weights.sum(-1)
    if settings.get("norm_topk_prob") is not None and family != "deepseek_v3":
        assert np.allclose(weights, 1) == settings["norm_topk_prob"]


# The same numbers, however they are computed ------------------------------------------------------


@in_one_case("family", ["qwen2_moe", "llama4_text"])
def test_tiles_and_matrices_agree(family, tiny, monkeypatch):
    lens = normlens.load(tiny(family, torch.float64))
    found = []
    for method in (TILES, MATRICES):
        monkeypatch.setattr(plans, "cheaper_method", lambda _, method=method: method)
        found.append(lens.maps(input_ids=IDS))
    for scope in found[0].scopes:
        assert largest_error(found[0][scope], found[1][scope]) <= 1e-12, scope


# What must not pass silently ----------------------------------------------------------------------


def test_weights_other_than_the_models_are_noticed(tiny, monkeypatch):
    honest = Llama.experts

    def doubled(self, mlp) -> Experts:
        experts = honest(self, mlp)
        read = experts.read
        return replace(experts, read=lambda *call: (read(*call)[0], 2 * read(*call)[1]))

    monkeypatch.setattr(Llama, "experts", doubled)
    with pytest.raises(CompletenessError, match="at its FF"):
        normlens.load(tiny("mixtral", torch.float32)).maps(input_ids=IDS)


def test_shapley_values_are_refused_in_one_line(tiny):
    lens = normlens.load(tiny("mixtral", torch.float32))
    with pytest.raises(InputError, match="not sampled for mixtures of experts"):
        lens.maps(input_ids=IDS, nonlinearity="shapley")
    assert lens.maps(input_ids=IDS, nonlinearity="shapley", scopes=["ATTN-N"]).completeness < 1e-4


# Sinks --------------------------------------------------------------------------------------------


def test_what_a_sink_takes_belongs_to_no_token(tiny):
    maps = normlens.load(tiny("gpt_oss", torch.float64)).maps(input_ids=IDS)
    weights = maps["ATTN-W"]
    assert (weights.sum(-1) < 0.99).all()
    own = weights.diagonal(axis1=1, axis2=2)
    np.testing.assert_allclose(
        maps.mixing_ratio("ATTN-W"), 1 - own / weights.sum(-1), rtol=0, atol=1e-12
    )
    assert (maps.mixing_ratio("ATTN-W")[:, 0] == 0).all()  # the first token sees itself alone
