"""Maps of encoder–decoders whose sources are the tokens that both stacks read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from frozen_copies import FrozenPair
from heads import in_float64
from one_case import in_one_case
from pair_models import FAMILIES, TARGET, generating, model_inputs, source_of

import normlens
from normlens.errors import CompletenessError
from normlens.models.parts import TwoStacks

every_family = pytest.mark.parametrize("family", FAMILIES)


def whole_maps(family, model=None, **asked):
    lens = normlens.load(generating(family) if model is None else model, tokenizer=False)
    asked = {"decoder_input_ids": TARGET, "origin": "input", **source_of(family), **asked}
    return lens.maps(**asked)


def only(tokens: torch.Tensor, place: int) -> torch.Tensor:
    kept = torch.zeros_like(tokens)
    kept[place] = tokens[place]
    return kept


@in_one_case(
    ("family", "rule"),
    [*((family, "ig") for family in FAMILIES), ("bart", "ig-bias"), ("t5", "gradient")],
)
def test_maps_are_what_a_frozen_copy_makes_of_each_token_alone(family, rule):
    """The copy is affine in its tokens: each one's part is what it adds to none of them."""
    model = generating(family)
    with in_float64():
        maps = whole_maps(family, model, nonlinearity=rule)
        frozen = FrozenPair(model, model_inputs(family), rule)
        source, target = frozen.source, frozen.target
        none = torch.zeros_like(source), torch.zeros_like(target)
        with torch.no_grad():
            nothing = frozen(*none)
            each = [frozen(only(source, k), none[1]) for k in range(len(source))]
            m = len(each)
            each += [frozen(none[0], only(target, k)) for k in range(len(target))]
    assert maps.completeness < 1e-10
    adapter = frozen.adapter
    for stack, name, blocks in zip((0, 1), ("encoder", "decoder"), frozen.stacks, strict=True):
        found = maps.encoder if name == "encoder" else maps
        for layer, block in enumerate(blocks):
            for step, scope in adapter.layer(block).scope_of_step.items():
                v = torch.stack(
                    [one[stack][layer][step] - nothing[stack][layer][step] for one in each]
                )  # (k, i, d)
                expected = v.norm(dim=-1).T.numpy()
                if name == "encoder":
                    assert not expected[:, m:].any()
                    expected = expected[:, :m]
                scale = expected.max()
                np.testing.assert_allclose(
                    found.at(scope, layer), expected, rtol=0, atol=1e-9 * scale, err_msg=scope
                )
                first = m if name == "decoder" else 0
                own = torch.stack([v[first + i, i] for i in range(v.shape[1])])
                others = (v.sum(0) - own).norm(dim=-1)
                ratio = others / (others + own.norm(dim=-1))
                np.testing.assert_allclose(found.mixing[scope][layer], ratio, rtol=0, atol=1e-9)


@every_family
def test_the_first_cross_attention_reads_the_encoders_parts(family):
    """What a source token gave to all vectors of the encoder arrives by CROSS."""
    maps = whole_maps(family)
    m = len(maps.encoder.targets)
    assert maps.source_sequences == ["encoder"] * m + ["decoder"] * len(TARGET)
    assert [scope for scope in maps.scopes if scope.endswith("-W")] == []
    crossing = maps["CROSS-N"]
    assert crossing[..., :m].all()
    assert not crossing[..., m:].any()
    before = maps["ATTN-N"]
    assert not before[0][:, :m].any()
    assert before[1][:, :m].all()  # by the first layer's CROSS
    assert not np.triu(before[:, :, m:], 1).any()


def test_an_end_of_the_encoder_that_the_adapter_leaves_out_is_noticed(monkeypatch):
    monkeypatch.setattr(
        type(normlens.load(generating("t5"), tokenizer=False).adapter),
        "encoder_end",
        TwoStacks.encoder_end,
    )
    with pytest.raises(CompletenessError):
        whole_maps("t5")
