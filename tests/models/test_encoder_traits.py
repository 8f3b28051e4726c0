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
from test_traits import IDS, assert_only_weights_differ, band, check, with_other
from torch import nn

import normlens
from normlens.errors import InputError, UnsupportedModelError
from normlens.explain.rollouts import value_zeroing
from normlens.families.deberta import Deberta
from normlens.layers import FIRST, MEAN
from normlens.models import adapt, base
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


@in_one_case(
    "overrides",
    [
        {"pos_att_type": ["c2p"]},
        {"pos_att_type": ["p2c"]},
        {"relative_attention": False, "position_biased_input": True, "type_vocab_size": 2},
    ],
)
def test_deberta_positions(overrides):
    check("deberta", **overrides)


def test_deberta_relative_positions_act_on_the_weights(tiny):
    model = tiny("deberta")
    assert_only_weights_differ(model, with_other(model, "rel_embeddings", "q_bias"))


def test_deberta_values_have_a_bias_outside_their_projection():
    model = tiny_model("deberta").double()
    lens = normlens.load(model)
    value = lens.layers[0].attention.value
    assert value.bias_outside
    before = lens.maps(input_ids=IDS)
    with torch.no_grad():
        for block in model.encoder.layer:
            block.attention.self.v_bias.zero_()
    after = lens.maps(input_ids=IDS)
    assert largest_error(after["ATTN-N"], before["ATTN-N"]) > 1e-2
    assert after.completeness < 1e-6


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


@in_one_case("legacy", [True, False])
def test_deberta_masked_heads(legacy):
    model = headed("deberta", "MaskedLM", legacy=legacy)
    lens = normlens.load(model, tokenizer=False)
    why = lens.explain(input_ids=IDS, target=7, position=2)
    with torch.no_grad():
        score = float(model(input_ids=torch.tensor([IDS])).logits[0, 2, 7])
    assert why.target_value == pytest.approx(score, rel=1e-6)


# Norms before the branches -----------------------------------------------------------------------


@in_one_case("family", ["roberta-prelayernorm", "xlm-roberta-xl", "esm"])
def test_norms_before_the_branches(family):
    lens = check(family)
    assert lens.component_sequence == "(LN) ATTN RES LN FF RES"
    assert len(lens.adapter.end()) == 1


@in_one_case("family", ["roberta-prelayernorm", "xlm-roberta-xl", "esm", "ernie"])
def test_as_a_decoder(family):
    maps = check(family, is_decoder=True).maps(input_ids=IDS)
    np.testing.assert_array_equal(maps.allowed[0], band(len(IDS), len(IDS), 0))


@in_one_case("family", ["roberta-prelayernorm", "xlm-roberta-xl", "layoutlm"])
def test_feed_forward_in_chunks(family):
    ids = IDS[:6]
    whole = normlens.load(tiny_model(family).double()).maps(input_ids=ids)
    found = check(family, ids, chunk_size_feed_forward=2).maps(input_ids=ids)
    for scope in whole.scopes:
        assert largest_error(found[scope], whole[scope]) < 1e-9


# ESM --------------------------------------------------------------------------------------------


@in_one_case("kind", ["absolute", "rotary"])
def test_esm_positions(kind):
    lens = check("esm", position_embedding_type=kind, token_dropout=False)
    assert lens.adapter.max_positions() == (46 if kind == "absolute" else 48)


def test_esm_with_masked_residues():
    """Embeddings of masked residues are zero, and the others are scaled, before the first layer."""
    check("esm", [3, 63, 27, 14, 63, 33, 8])


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


@in_one_case("groups", [1, 4])
def test_eurobert_groups(groups):
    lens = check("eurobert", num_key_value_heads=groups)
    assert not lens.causal
    assert lens.maps(input_ids=IDS).allowed.all()


# Embeddings of their own -------------------------------------------------------------------------


def test_layoutlm_puts_every_word_into_one_corner(tiny):
    """A text has no boxes; the model takes them all to be 0, as transformers does."""
    model = tiny("layoutlm")
    moved = copy.deepcopy(model)
    with torch.no_grad():
        moved.embeddings.x_position_embeddings.weight[1:] += 1  # rows that no word has
    first, second = (normlens.load(m).maps(input_ids=IDS) for m in (model, moved))
    assert np.array_equal(first["ATTN-N"], second["ATTN-N"])


def test_ernie_with_and_without_tasks():
    for tasks in (True, False):
        assert adapt(check("ernie", use_task_id=tasks).model).token_types() == 2


# MobileBERT -------------------------------------------------------------------------------------


@in_one_case(
    ("overrides", "components"),
    [
        ({}, "ATTN RES LN FF RES LN FF RES LN PROJ RES LN"),
        (
            {"normalization_type": "layer_norm", "hidden_act": "gelu"},
            "ATTN RES LN FF RES LN FF RES LN PROJ RES LN",
        ),
        (
            {"use_bottleneck_attention": True, "normalization_type": "layer_norm"},
            "(PROJ) (LN) ATTN RES LN FF RES LN FF RES LN PROJ RES LN",
        ),
        (
            {"use_bottleneck_attention": True},
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
        ({"num_feedforward_networks": 1, "use_bottleneck": False}, "ATTN RES LN FF RES LN"),
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


@in_one_case("dtype", [torch.float16, torch.bfloat16])
def test_mobilebert_in_half_precision(dtype):
    lens = normlens.load(tiny_model("mobilebert").to(dtype))
    lens.maps(input_ids=IDS)  # complete, or it raises
    lens.maps(input_ids=IDS, origin="input")
    why = lens.explain(input_ids=IDS, direction=np.arange(16), position=2)
    assert why.completeness <= why.provenance["tolerance"]


@in_one_case("classifier_activation", [True, False])
def test_mobilebert_poolers(classifier_activation):
    model = headed(
        "mobilebert", "SequenceClassification", classifier_activation=classifier_activation
    )
    why = normlens.load(model, tokenizer=False).explain(input_ids=IDS, target=1)
    with torch.no_grad():
        score = float(model(input_ids=torch.tensor([IDS])).logits[0, 1])
    assert why.target_value == pytest.approx(score, rel=1e-9)
    assert why.completeness < 1e-9


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
