"""Which tokens made a cosine: on every family, against the adjoint, and on real texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from heads import tried_families
from one_case import in_one_case
from whole_examples import frozen_network

import normlens
from normlens.errors import CompletenessError, InputError, MemoryLimitError
from normlens.explain.backward import carry
from normlens.explain.network import FrozenHead
from normlens.explain.search import cosines
from normlens.explain.whole_vectors import pooled, sentence_parts
from normlens.layers import FIRST, LAST, MEAN, Dense, Elementwise, Linear
from normlens.loading.sentences import Pooling
from normlens.options import CosineOptions

A, B = [3, 9, 27, 14, 5, 33, 8], [40, 41, 3, 6, 17]
TEXTS = ("A man is playing a flute.", "Someone plays an instrument.")

every_family = pytest.mark.parametrize("family", tried_families())


def dense_pooling(reads: str, width: int) -> Pooling:
    """Pooling with a Dense map and its activation behind it."""
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(width, 10, generator=generator, dtype=torch.float64)
    bias = torch.randn(10, generator=generator, dtype=torch.float64)
    return Pooling(reads, (Dense(Linear(0.3 * weight, bias)), Elementwise("tanh")))


def cosine_of(lens, pooling, pairs=((A, B),), **options):
    encoded = [tuple(lens.encode(input_ids=ids)[0] for ids in pair) for pair in pairs]
    return cosines(lens, pooling, encoded, CosineOptions(**options))


@every_family
@in_one_case(("reads", "rule"), [(MEAN, "ig"), (FIRST, "ig-bias"), (LAST, "gradient")])
def test_one_texts_tokens_are_what_the_adjoint_says(family, reads, rule, tiny):
    lens = normlens.load(tiny(family))
    pooling = dense_pooling(reads, lens.layers[0].width)
    (pair,) = cosine_of(lens, pooling, nonlinearity=rule)
    assert pair.matrix.shape == (len(A), len(B))
    u, v = (own_vector(lens, pooling, ids) for ids in (A, B))
    assert pair.value == pytest.approx(float(u @ v / (u.norm() * v.norm())), abs=1e-6)
    head = pooling.head(lens.adapter.end(), lens.device).to(torch.float64)
    # RMSNorm computes in float32 whatever the model is in; the frozen ways agree beyond that.
    own = [*lens.encode(input_ids=A), *lens.encode(input_ids=B)]
    parts = [sentence_parts(lens, [pooled(head)], [one], rule, 1 << 20)[0] for one in own]
    size = np.prod([np.linalg.norm(part.vector) for part in parts])
    u, v = (torch.from_numpy(part.tokens.sum(0) + part.bias) for part in parts)
    margins = pair.margins
    for ids, other, found, bias in (
        (A, v, margins.a, pair.b_with_bias.sum() + pair.bias),
        (B, u, margins.b, pair.a_with_bias.sum() + pair.bias),
    ):
        with frozen_network(lens.model, [ids], rule) as network:
            position = {MEAN: None, FIRST: 0, LAST: len(ids) - 1}[reads]
            frozen = FrozenHead(head, network.behind()[0].double(), rule, position)
            gradient, biases = frozen.score(other / size)
            back = carry(network, gradient[None, None])
        expected = back[0].nodes[0][0, 0].numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
        bias_part = sum(float(share.sum()) for each in back for share in each.bias_part.values())
        assert bias == pytest.approx(bias_part + sum(biases.values()), abs=1e-9)


def own_vector(lens, pooling, ids) -> torch.Tensor:
    """The text's vector by plain torch from what the model returns."""
    with torch.no_grad():
        y = lens.model(input_ids=torch.tensor([ids])).last_hidden_state[0].double()
    y = {MEAN: y.mean(0), FIRST: y[0], LAST: y[-1]}[pooling.reads]
    dense = pooling.steps[0].linear
    return torch.tanh(y @ dense.weight + dense.bias)


@in_one_case("family", tried_families())
def test_pairs_add_up_to_the_models_cosine_and_are_what_they_are_alone(family, tiny):
    lens = normlens.load(tiny(family))
    pairs = [(A, B), (B, [9, 5, 60, 22, 51, 30]), (A, A)]
    together = cosine_of(lens, Pooling(), pairs)
    assert cosine_of(lens, Pooling(), []) == []
    for pair, found in zip(pairs, together, strict=True):
        total = found.matrix.sum() + sum(found.remainder.values())
        assert found.completeness == pytest.approx(abs(total - found.value))
        assert found.completeness <= 1e-6  # of RMSNorm and rotary models, which compute in float32
        if family == "bert":
            assert found.completeness <= 1e-10
        (alone,) = cosine_of(lens, Pooling(), [pair], batch_size=1)
        assert found.value == pytest.approx(alone.value, abs=1e-6)
        np.testing.assert_allclose(found.matrix, alone.matrix, atol=1e-6)
        np.testing.assert_allclose(found.a_with_bias, alone.a_with_bias, atol=1e-6)
    np.testing.assert_allclose(together[2].matrix, together[2].matrix.T, atol=1e-12)
    assert together[2].value == pytest.approx(1.0)
    assert together[0].provenance["pooling"] == "mean"
    assert "no modules.json" in together[0].note
    assert "no modules.json" in repr(together[0])


def test_parts_that_miss_the_cosine_are_an_error(tiny, monkeypatch):
    from normlens.explain import whole_vectors as sentences

    def wrong(head, output):
        return output[0]

    monkeypatch.setattr(sentences, "text_vector", wrong)
    with pytest.raises(CompletenessError, match="miss the model's own by"):
        cosine_of(normlens.load(tiny("bert")), Pooling())


def test_limits_of_memory_change_nothing(tiny):
    lens = normlens.load(tiny("gpt2"))
    (whole,), (cut,) = (cosine_of(lens, Pooling(), memory_limit=m) for m in (None, "30KB"))
    np.testing.assert_allclose(cut.matrix, whole.matrix, rtol=0, atol=1e-12)
    with pytest.raises(MemoryLimitError):
        cosine_of(lens, Pooling(), memory_limit="1KB")


# Real texts ---------------------------------------------------------------------------------------


def test_the_embedded_sentence_encoder_says_how_it_pools(minilm):
    pair = minilm.cosine(*TEXTS)
    assert minilm.pooling == Pooling(MEAN, (), 256, note=None, normalized=True)
    assert pair.note is None
    assert pair.tokens_a[:3] == ["[CLS]", "a", "man"]
    assert pair.top(1)[["a_token", "b_token"]].values.tolist() == [["flute", "instrument"]]
    assert pair.completeness <= 1e-6


# What is refused ----------------------------------------------------------------------------------


@in_one_case(
    ("texts", "rule"),
    [
        (("one text",), "ig"),
        (([("a", "b", "c")],), "ig"),
        (("a text", "word " * 600), "ig"),
        (("a", "b"), "shapley"),
    ],
)
def test_bad_input(texts, rule, minilm):
    with pytest.raises(InputError):
        minilm.cosine(*texts, nonlinearity=rule)
