"""What decoders differ in, one trait at a time: layouts, factors, limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from one_case import in_one_case
from reference import largest_error
from test_traits import IDS, check
from torch import nn

import normlens
from normlens.layers import Norm
from normlens.models import adapt
from normlens.models.base import linear, scaled
from normlens.models.tiny import scramble, tiny_config, tiny_model

PARALLEL = "(LN) ATTN ∥ (LN) FF RES"
IN_TURN = "(LN) ATTN RES LN FF RES"


# Side by side or one after the other ------------------------------------------------------------


@in_one_case(
    ("family", "overrides", "sequence"),
    [
        ("falcon", {}, PARALLEL),
        ("falcon", {"num_ln_in_parallel_attn": 1}, PARALLEL),
        (
            "falcon",
            {"new_decoder_architecture": False, "multi_query": False, "num_kv_heads": 4},
            PARALLEL,
        ),
        ("falcon", {"new_decoder_architecture": False, "parallel_attn": False}, IN_TURN),
        ("falcon", {"new_decoder_architecture": False, "alibi": True, "bias": False}, PARALLEL),
        ("stablelm", {"use_parallel_residual": True}, PARALLEL),
        ("cohere", {}, PARALLEL),
    ],
)
def test_layouts(family, overrides, sequence):
    assert check(family, **overrides).component_sequence == sequence


# Factors ----------------------------------------------------------------------------------------


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
    import transformers

    found = []
    for value in (1.0, factor):
        config = tiny_config(family, **{setting: value})
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        scramble(model.eval(), 3)
        lens = normlens.load(model.double(), tokenizer=False)
        found.append(lens.explain(input_ids=IDS, target=2, contrast=1))
    assert found[1].value == pytest.approx(4 * found[0].value)
    np.testing.assert_allclose(found[1].contributions, 4 * found[0].contributions, rtol=1e-6)


# Limits of values -------------------------------------------------------------------------------


@in_one_case("family", ["olmo", "mpt"])
def test_clipped_values(family):
    """A limit that no value reaches changes nothing; one that cuts values off is noticed."""

    def settings(limit: float) -> dict:
        return {"clip_qkv": limit} if family == "olmo" else {"attn_config": {"clip_qkv": limit}}

    check(family, **settings(100.0))
    lens = normlens.load(tiny_model(family, **settings(0.05)))
    with pytest.raises(normlens.NormLensError, match="layer 0"):
        lens.maps(input_ids=IDS)


# Half precision -----------------------------------------------------------------------------------


@in_one_case("family", ["gemma", "gemma2", "gemma3_text"])
def test_one_plus_gamma_keeps_the_digits_of_gamma(family):
    """Gemma's code multiplies by 1 + γ in float32; in bfloat16 1.01 would be 1.0078125."""
    model = tiny_model(family).bfloat16()
    block = model.layers[0]
    norm = next(step for step in adapt(model).layer(block).steps if isinstance(step, Norm))
    weight = block.input_layernorm.weight
    assert torch.equal(norm.gamma, 1 + weight.float())
    assert not torch.equal(norm.gamma, (1 + weight).float())
