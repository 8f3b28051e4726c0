"""Explanations of every encoder–decoder: complete at every layer, and the same by autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from frozen_copies import frozen_pair_scores, times_input
from heads import assert_every_layer_makes_the_score, in_float64
from one_case import in_one_case
from pair_models import FAMILIES, IDS, TARGET, generating, model_inputs, source_of

import normlens
from normlens.errors import CompletenessError

RULES = ["ig", "ig-bias", "gradient"]
PLACE, CONTRAST = 3, 7  # the token behind position 3, and another in its place

every_family = pytest.mark.parametrize("family", FAMILIES)
every_rule = in_one_case("rule", RULES)


def explain(family, model=None, **asked):
    lens = normlens.load(generating(family) if model is None else model, tokenizer=False)
    asked = {"decoder_input_ids": TARGET, "token": PLACE, **source_of(family), **asked}
    return lens.explain(**asked)


def own_scores(family, model) -> torch.Tensor:
    with torch.no_grad():
        return model(**model_inputs(family)).logits[0]


@every_family
@every_rule
def test_parts_are_the_models_own_score_and_what_autograd_finds(family, rule):
    """Autograd goes through a frozen copy of the model."""
    model = generating(family)
    with in_float64():
        why = explain(family, model, contrast=CONTRAST, nonlinearity=rule)
        source, target, scores = frozen_pair_scores(model, model_inputs(family), rule)
        expected = own_scores(family, model)
    word = TARGET[PLACE + 1]
    value = float(expected[PLACE, word] - expected[PLACE, CONTRAST])
    assert (why.target_id, why.contrast_id) == (word, CONTRAST)
    assert why.value == pytest.approx(value, rel=1e-12, abs=1e-12)
    assert why.target_value == pytest.approx(float(expected[PLACE, word]))
    assert why.probability == pytest.approx(float(expected[PLACE].softmax(-1)[word]))
    total = why.source.total + why.prefix.total + why.remainder
    assert abs(total - value) < 1e-10 * max(1, abs(value))
    assert why.completeness < 1e-10

    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-9)
    score = scores[PLACE, word] - scores[PLACE, CONTRAST]
    seen, prefix = PLACE + 1, times_input(score, target)
    expected = times_input(score, source)
    np.testing.assert_allclose(why.source.contributions, expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(why.prefix.contributions, prefix[:seen], rtol=0, atol=1e-9)
    assert not prefix[seen:].any()  # the decoder does not see what comes later
    assert not why.contributions[-len(TARGET) + seen :].any()


@every_family
def test_it_is_complete_at_every_layer_and_flows_lose_nothing(family):
    with in_float64():
        why = explain(family, heads=True)
    layers, size = why.nodes.shape
    scale = max(1, np.abs(why.nodes).max())
    biases = np.zeros(layers + 1)
    for layer, _, share in why.biases:
        biases[layers if layer == "head" else layer] += share
    for layer in range(layers):
        total = why.nodes[layer].sum() + biases[layer:].sum()
        assert abs(total - why.value) < 1e-10 * scale
    assert why.flow.shape == (layers, size, size)
    np.testing.assert_allclose(why.flow.sum(1), why.nodes, atol=1e-10 * scale)
    leaving = why.flow.sum(2)[:-1].sum(-1) + biases[: layers - 1]
    np.testing.assert_allclose(leaving, why.nodes[1:].sum(-1), atol=1e-10 * scale)
    m = why.encoder_tokens
    through = np.nansum(why.head_flow, axis=1)
    crossing = why.cross_flow
    np.testing.assert_allclose(through[why.encoder_layers :, m:, :m], crossing, atol=1e-10 * scale)
    assert np.abs(crossing).sum() > 0
    # In an encoder layer the target's tokens wait, and no source token goes to them.
    assert not why.flow[: why.encoder_layers, m:, :m].any()
    assert not why.flow[:, :m, m:].any()
    assert_components_and_heads_of_both_stacks(why)


def assert_components_and_heads_of_both_stacks(why):
    assert_every_layer_makes_the_score(why)
    assert why.component_names == ["ATTN", "CROSS", "FF", "RES"]
    encoder = why.encoder_layers
    cross = why.components[:, 1]
    assert np.isnan(cross[:encoder]).all()
    assert np.isfinite(why.components[encoder:]).all()
    m = why.encoder_tokens
    assert not why.components[:encoder, [0, 2], m:].any()
    assert not why.components[encoder:, :3, :m].any()
    # The target's tokens wait while the encoder runs, with what they contribute.
    waiting = np.broadcast_to(why.contributions[m:], (encoder, len(TARGET)))
    np.testing.assert_array_equal(why.components[:encoder, 3, m:], waiting)
    np.testing.assert_allclose(np.nansum(why.heads, axis=1), why.components[:, 0], atol=1e-12)
    np.testing.assert_allclose(
        np.nansum(why.cross_heads[encoder:], axis=1), cross[encoder:], atol=1e-12
    )


def test_a_head_that_differs_from_its_description_is_noticed():
    model = generating("bart")
    lm_head = model.lm_head.forward
    model.lm_head.forward = lambda x: lm_head(x).tanh()
    with pytest.raises(CompletenessError, match="from the head on"):
        explain("bart", model)


def test_an_encoder_end_that_differs_is_named_by_its_layer(monkeypatch):
    model = generating("mbart")
    lens = normlens.load(model, tokenizer=False)
    monkeypatch.setattr(type(lens.adapter), "encoder_end", lambda self: [])
    with pytest.raises(CompletenessError, match="from encoder layer 1 on"):
        lens.explain(input_ids=IDS, decoder_input_ids=TARGET)
