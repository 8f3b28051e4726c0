"""What encoders differ in, one trait at a time: projections, pooling, positions."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from one_case import in_one_case
from reference import largest_error
from test_traits import IDS, check
from torch import nn

import normlens
from normlens.errors import InputError, UnsupportedModelError
from normlens.explain.rollouts import value_zeroing
from normlens.families.deberta import Deberta
from normlens.layers import FIRST, MEAN
from normlens.models import base
from normlens.models.base import interleaved_values, read_head
from normlens.models.tiny import scramble, tiny_config, tiny_model
from normlens.pipeline.batches import batches
from normlens.studies.ablation.losses import choose_loss


def headed(family: str, task: str, **overrides):
    kind = getattr(transformers, f"AutoModelFor{task}")
    model = kind.from_config(tiny_config(family, num_labels=3, **overrides)).eval()
    scramble(model, 3)
    return model.double()


# RoFormer -----------------------------------------------------------------------------------------


def test_rotated_values_are_refused_by_name():
    with pytest.raises(UnsupportedModelError, match="rotary_value=True rotates value vectors"):
        normlens.load(tiny_model("roformer", rotary_value=True))


# DeBERTa ----------------------------------------------------------------------------------------


class BiasInside(Deberta):
    """For a model whose projection has the bias of its values itself."""

    def attention(self, block):
        attention = super().attention(block)
        module = attention.value.module
        return replace(attention, value=interleaved_values(module, attention.heads))


def test_a_zero_value_is_zero_with_that_bias(monkeypatch):
    """The same model with the bias inside its projection says the same."""
    model = tiny_model("deberta").double()
    inside = copy.deepcopy(model)
    with torch.no_grad():
        for block in inside.encoder.layer:
            attention = block.attention.self
            heads, width = attention.num_attention_heads, attention.attention_head_size
            bias = torch.zeros(heads, 3, width, dtype=torch.float64)
            bias[:, 2] = attention.v_bias.view(heads, width)
            attention.in_proj.bias = nn.Parameter(bias.flatten())
            attention.v_bias.zero_()
    first = normlens.load(model)
    monkeypatch.setitem(base._ADAPTERS, "deberta", BiasInside)
    second = normlens.load(inside)
    (found,), (expected,) = (
        value_zeroing(lens, lens.encode(input_ids=IDS)) for lens in (first, second)
    )
    scope = first.scopes[-1]
    assert largest_error(found[scope], expected[scope]) < 1e-9


def test_deberta_with_talking_heads_is_refused():
    with pytest.raises(UnsupportedModelError, match="talking_head"):
        normlens.load(tiny_model("deberta", talking_head=True))


# EuroBERT ---------------------------------------------------------------------------------------


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


# MobileBERT -------------------------------------------------------------------------------------


@in_one_case(
    ("overrides", "components"),
    [
        ({}, "ATTN RES LN FF RES LN FF RES LN PROJ RES LN"),
        (
            {"use_bottleneck_attention": True, "normalization_type": "layer_norm"},
            "(PROJ) (LN) ATTN RES LN FF RES LN FF RES LN PROJ RES LN",
        ),
        (
            {"key_query_shared_bottleneck": False, "intra_bottleneck_size": 16},
            "ATTN RES LN FF RES LN FF RES LN PROJ RES LN",
        ),
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
    whole = lens.maps(input_ids=IDS, origin="input")
    assert whole.completeness < 1e-12
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


def test_what_is_not_written_for_several_blocks_is_one_line():
    lens = normlens.load(tiny_model("mobilebert"))
    with pytest.raises(InputError, match="not sampled for layers with several feed-forward"):
        lens.maps(input_ids=IDS, nonlinearity="shapley")
    assert lens.maps(input_ids=IDS, nonlinearity="shapley", scopes=["ATTN", "LN1"]).scopes
    with pytest.raises(UnsupportedModelError, match="several feed-forward blocks or a bottleneck"):
        choose_loss(lens)
    maps = lens.maps(input_ids=IDS)
    with pytest.raises(InputError, match="each layer has several feed-forward blocks"):
        maps.feed_forward_pair()
