"""What `Lens.explain` answers: real models, batches, chunks, several questions, wrong ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from heads import headed
from one_case import in_one_case

import normlens
from normlens.errors import CompletenessError, InputError, NormLensWarning
from normlens.explain.explainer import Explainer
from normlens.explain.network import FrozenNetwork

TEXT = "The keys to the cabinet"
IDS = [[5, 17, 31, 8, 44, 23, 12], [9, 3, 3], [41, 2, 60, 7, 7]]


@pytest.fixture(scope="module")
def why(smollm2):
    return smollm2.explain(TEXT, target=" are", contrast=" is", heads=True, scopes=["ATTN", "FF"])


def test_a_real_decoder_says_why(smollm2, why):
    inputs = smollm2.tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        logits = smollm2.adapter.whole(**inputs).logits[0, -1].double()
    are, is_ = (smollm2.tokenizer(word)["input_ids"][0] for word in (" are", " is"))
    assert (why.target, why.contrast) == ("␣are", "␣is")
    assert (why.target_id, why.contrast_id) == (are, is_)
    assert why.value == pytest.approx(float(logits[are] - logits[is_]), rel=1e-5)
    assert why.contrast_value == pytest.approx(float(logits[is_]), rel=1e-6)
    assert why.completeness < 1e-5
    # The plural noun speaks for the plural verb, the singular one against it.
    by_token = dict(zip(why.tokens, why.contributions, strict=True))
    assert by_token["␣keys"] > 0 > by_token["␣cabinet"]


def test_flows_meet_their_neighbours(why):
    """Columns are what enters a layer; rows and biases what leaves it."""
    layers = len(why.nodes)
    bias = why.bias
    scale = float(np.abs(why.nodes).max())
    for layer in range(layers):
        np.testing.assert_allclose(why.flow[layer].sum(0), why.nodes[layer], atol=2e-5 * scale)
    for layer in range(layers - 1):
        leaving = why.flow[layer].sum() + (bias[layer].sum() if layer in bias.index else 0)
        assert leaving == pytest.approx(float(why.nodes[layer + 1].sum()), abs=2e-5 * scale)
    np.testing.assert_allclose(why.heads.sum(1), why.components[:, 0], atol=2e-5 * scale)
    np.testing.assert_allclose(
        why.head_flow.sum(-1), why.heads, atol=2e-5 * scale
    )  # no norm in front of the attention has a β
    np.testing.assert_allclose(why.head_flow.sum(1), why.flow_behind("ATTN"), atol=2e-5 * scale)


def test_the_mean_over_layers_and_its_biases_are_the_score(why):
    layers = len(why.nodes)
    np.testing.assert_array_equal(why.read("embeddings"), why.contributions)
    mean = why.read("layers")
    np.testing.assert_allclose(mean, sum(why.nodes[k] for k in range(layers)) / layers, rtol=1e-5)
    assert float(mean.sum()) + why.remainder_of("layers") == pytest.approx(why.value, rel=1e-5)
    # The first token is this model's sink; on the way the score is the noun's.
    by_token = dict(zip(why.tokens, mean, strict=True))
    assert max(by_token, key=by_token.get) == "␣keys"
    with pytest.raises(InputError):
        why.read("depth")


def test_a_likelier_spelling_is_said(smollm2):
    with pytest.warns(NormLensWarning) as said:
        smollm2.explain(TEXT, target="are", contrast="is", flow=False)
    lines = [str(each.message) for each in said]
    assert ["' are' likelier" in lines[0], "' is' likelier" in lines[1]] == [True, True]
    with pytest.warns(NormLensWarning, match="finds ' the' likelier"):
        smollm2.explain(TEXT, target=" The", flow=False)
    with pytest.warns(NormLensWarning, match="finds ' are' likelier"):
        smollm2.explain(TEXT, target=" ARE", flow=False)


def test_every_next_token(smollm2):
    every = smollm2.explain(TEXT, position="all", flow=False)
    tokens = smollm2.explain(TEXT).tokens
    assert every.predicted == tokens[1:]
    assert every.contributions.shape == (len(tokens) - 1, len(tokens))
    assert not np.triu(every.contributions, 1).any()
    third = smollm2.explain(TEXT, position=2, target=smollm2.encode(TEXT)[0].ids[3])
    np.testing.assert_allclose(every.contributions[2], third.contributions, atol=1e-4)
    assert every.values[2] == pytest.approx(third.value, rel=1e-5)


@in_one_case("task", ["CausalLM", "SequenceClassification"])
@in_one_case("family", ["llama", "gpt2", "gemma2", "bert", "gpt_neox", "modernbert"])
def test_padded_together_is_alone(family, task):
    model = headed(family, task)
    if model is None:
        pytest.skip(f"{family} has no such head")
    lens = normlens.load(model, tokenizer=False)
    together = lens.explain(input_ids=IDS, target=1, batch_size=3, heads=True)
    for ids, both in zip(IDS, together, strict=True):
        alone = lens.explain(input_ids=ids, target=1, heads=True)
        assert alone.value == pytest.approx(both.value, rel=1e-6)
        np.testing.assert_allclose(both.contributions, alone.contributions, atol=1e-6)
        np.testing.assert_allclose(both.flow, alone.flow, atol=1e-6)
        np.testing.assert_allclose(both.head_flow, alone.head_flow, atol=1e-6)
        np.testing.assert_allclose(both.components, alone.components, atol=1e-6)
        np.testing.assert_allclose(both.bias, alone.bias, atol=1e-6)


@in_one_case("family", ["llama", "bert", "albert", "deberta-v2", "gpt_neox", "opt"])
def test_a_layer_that_runs_again_is_the_same(family, monkeypatch):
    """Under a small limit only layer inputs are kept, and few scores are carried at a time."""
    model = headed(family, "CausalLM") or headed(family, "MaskedLM")
    lens = normlens.load(model, tokenizer=False)
    position = [1, 4, 6, 2, 0]
    kept = lens.explain(input_ids=IDS[0], target=3, position=position)
    again: list[int] = []
    layer = FrozenNetwork.layer

    def count(self, index):
        again.append(index)
        assert not self.visited[index].alphas
        return layer(self, index)

    monkeypatch.setattr(FrozenNetwork, "layer", count)
    small = lens.explain(input_ids=IDS[0], target=3, position=position, memory_limit=1000)
    assert len(again) == len(position) * lens.n_layers  # one score at a time
    for a, b in zip(kept, small, strict=True):
        np.testing.assert_allclose(a.contributions, b.contributions, atol=1e-12)
        np.testing.assert_allclose(a.flow, b.flow, atol=1e-12)
        assert a.value == b.value


def test_a_direction_of_any_vector(smollm2):
    vector = np.linspace(-1, 1, 576)
    why = smollm2.explain(TEXT, direction=vector, position=3, layer=7)
    inputs = smollm2.tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        states = smollm2.model(**inputs, output_hidden_states=True).hidden_states
    assert why.value == pytest.approx(float(states[8][0, 3].double().numpy() @ vector), rel=1e-5)
    assert len(why.nodes) == 8
    end = smollm2.explain(TEXT, direction=vector, position=3)
    assert end.value == pytest.approx(float(states[-1][0, 3].double().numpy() @ vector), rel=1e-4)
    assert end.completeness < 1e-5
    last = smollm2.explain(TEXT, direction=vector, position=3, layer=-1)
    assert last.layer == 29


@in_one_case(
    ("module", "component"),
    [("mlp.down_proj", "FF"), ("self_attn.o_proj", "ATTN"), ("mlp", "RES")],
)
def test_another_network_raises(module, component, smollm2):
    """A model that is not what its adapter says is not explained; layer and component are named."""
    block = smollm2.model.layers[4]
    handle = block.get_submodule(module).register_forward_hook(
        lambda module, args, output: output * 1.01
    )
    try:
        with pytest.raises(CompletenessError, match=f"layer 4 at its {component} "):
            smollm2.explain(TEXT)
    finally:
        handle.remove()


@in_one_case(
    "asked",
    [
        {"target": " areologically", "position": 1},
        {"target": 10**6},
        {"target": " is", "contrast": " is"},
        {"position": 9},
        {"position": 1.5},
        {"position": "all", "target": " is"},
        {"nonlinearity": "shapley"},
        {"layer": 3},
        {"direction": [1.0, 2.0]},
        {"direction": [0.0] * 576, "layer": 30},
        {"scopes": "LN7"},
    ],
)
def test_wrong_questions(asked, smollm2):
    with pytest.raises(InputError):
        smollm2.explain(TEXT, **asked)


def test_masks(minilm):
    """A tiny masked model with MiniLM's tokenizer."""
    lens = normlens.load(
        headed("bert", "MaskedLM", torch.float32, vocab_size=30522), minilm.tokenizer
    )
    why = lens.explain("Paris is the [MASK] of France.", target="capital")
    assert why.target == "capital"
    assert why.position == lens.encode("Paris is the [MASK] of France.")[0].ids.index(103)
    assert lens.explain("Paris is big.", position=2, target="is").position == 2
    for text in ("Paris is the capital.", "Paris is the [MASK] of [MASK]."):
        with pytest.raises(InputError):
            lens.explain(text)
    with pytest.raises(InputError):
        lens.explain("Paris is the [MASK].", target="🜁")


def test_labels(minilm):
    model = headed("bert", "SequenceClassification", torch.float32, vocab_size=30522)
    model.config.id2label = {0: "negative", 1: "neutral", 2: "positive"}
    lens = normlens.load(model, minilm.tokenizer)
    text = "a charming and often affecting journey"
    why = lens.explain(text, target="Positive", contrast="negative")
    assert (why.target, why.target_id, why.contrast) == ("positive", 2, "negative")
    assert lens.explain(text, target=2).value == pytest.approx(why.target_value)
    for asked in ({"target": "splendid"}, {"position": 3}):
        with pytest.raises(InputError):
            lens.explain(text, **asked)
    model.config.problem_type = "multi_label_classification"
    assert lens.explain(text, target=2).probability is None


def test_a_batch_that_does_not_fit_is_halved(monkeypatch):
    lens = normlens.load(headed("gpt2", "CausalLM"))
    asked = {"input_ids": IDS, "target": 7, "batch_size": 3}
    expected, tried, answers = lens.explain(**asked), [], Explainer._answers

    def guarded(self, batch):
        tried.append(len(batch))
        if len(batch) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return answers(self, batch)

    monkeypatch.setattr(Explainer, "_answers", guarded)
    for ours, theirs in zip(lens.explain(**asked), expected, strict=True):
        np.testing.assert_allclose(ours.contributions, theirs.contributions, rtol=1e-4, atol=1e-6)
    assert tried == [3, 1, 2, 1, 1]
