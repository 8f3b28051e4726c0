"""Scores of search models against a frozen copy with autograd, and against the libraries' own."""

from __future__ import annotations

import importlib
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_case import in_one_case
from search_models import DOCUMENT, QUERY, frozen_parts
from test_loading import save_tiny, tiny_tokenizer

import normlens
from normlens.errors import InputError, UnsupportedModelError
from normlens.layers import FIRST, LAST, MEAN
from normlens.loading.sentences import Pooling

DOCUMENTS = (DOCUMENT, "a mat", "the cats sat on a mat", "on the cats")
EXACT = {torch.float64: 1e-9, torch.float32: 1e-5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("search") / "tiny")


@pytest.fixture(scope="module")
def sentences() -> Any:
    """The package sentence-transformers; importing it may warn of what others will drop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = pytest.importorskip(
            "sentence_transformers",
            reason="search models as objects: pip install sentence-transformers",
        )
        importlib.import_module("sentence_transformers.models")
    return package


def lens_of(model: Any, **pooling: Any) -> Any:
    """A lens whose texts are pooled as given."""
    return normlens.Lens(model, tiny_tokenizer(), pooling=lambda: Pooling(note=None, **pooling))


def check_sums(score: normlens.Score, tolerance: float) -> None:
    """The parts of a score are the score, and so are both sides' with what they do not own."""
    total = score.matrix.sum() + sum(score.remainder.values())
    size = max(1.0, abs(score.value))
    assert score.completeness <= tolerance
    assert total == pytest.approx(score.value, abs=tolerance * size)
    assert score.by_query.sum() + score.b_with_bias.sum() + score.bias == pytest.approx(
        score.value, abs=tolerance * size
    )


# Dense models -------------------------------------------------------------------------------------


@in_one_case("dtype", EXACT)
@in_one_case("similarity", ["cosine", "dot"])
@in_one_case(
    ("reads", "normalized", "width"), [(MEAN, False, None), (FIRST, True, 7), (LAST, True, None)]
)
def test_pooled_vectors(reads, normalized, width, similarity, dtype, tiny):
    lens = lens_of(tiny("bert", dtype), reads=reads, normalized=normalized)
    score = lens.score(QUERY, DOCUMENT, similarity=similarity, truncate_dim=width)
    check_sums(score, EXACT[dtype])

    exact = tiny("bert")
    sides = []
    for text in (QUERY, DOCUMENT):
        ids = lens.encode(text)[0].ids
        read = {MEAN: lambda y: y.mean(0), FIRST: lambda y: y[0], LAST: lambda y: y[-1]}[reads]
        parts, bias = frozen_parts(exact, ids, read)
        size = (parts.sum(0) + bias).norm() if normalized else 1.0
        sides.append((parts[:, :width] / size, bias[:width] / size))
    (u, b_u), (v, b_v) = sides
    lengths = (u.sum(0) + b_u).norm() * (v.sum(0) + b_v).norm() if similarity == "cosine" else 1.0
    for found, expected in (
        (score.pairs, u @ v.T),
        (score.by_query, u @ (v.sum(0) + b_v)),
        (score.by_document, v @ (u.sum(0) + b_u)),
        (score.bias, b_u @ b_v),
        (score.value, (u.sum(0) + b_u) @ (v.sum(0) + b_v)),
    ):
        expected = (expected / lengths).numpy()
        largest = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=20 * EXACT[dtype] * largest)


def test_a_cosine_is_the_score_of_the_same_texts(tiny):
    lens = lens_of(tiny("bert"))
    score, cosine = lens.score(QUERY, DOCUMENT), lens.cosine(QUERY, DOCUMENT)
    assert score.value == cosine.value
    np.testing.assert_array_equal(score.pairs, cosine.matrix)


def test_two_towers_each_read_their_texts(tiny):
    query, document = lens_of(tiny("bert")), lens_of(tiny("bert", hidden_act="relu"), reads=FIRST)
    score = query.score(QUERY, DOCUMENT, document_lens=document, similarity="dot")
    check_sums(score, 1e-9)
    u, v = (
        lens.model(**lens.tokenizer(text, return_tensors="pt")).last_hidden_state[0].detach()
        for lens, text in ((query, QUERY), (document, DOCUMENT))
    )
    assert score.value == pytest.approx(float(u.mean(0) @ v[0]), abs=1e-9)
    assert score.provenance["document_model"] == document.name


@in_one_case("kind", ["plain", "dense", "dot", "short"])
def test_a_dense_model_scores_as_its_library_does(kind, sentences, folder, tmp_path):
    modules = sentences.models
    parts = [modules.Transformer(str(folder)), modules.Pooling(16)]
    if kind == "dense":
        parts.append(modules.Dense(16, 8, activation_function=torch.nn.Tanh()))
    if kind != "dot":
        parts.append(modules.Normalize())
    prompts = {"query": "a cat : ", "document": "on a mat : ", "other": "no"}
    whole = sentences.SentenceTransformer(
        modules=parts,
        device="cpu",
        prompts=prompts,
        similarity_fn_name="dot" if kind in ("dot", "short") else "cosine",
        truncate_dim=5 if kind == "short" else None,
    )
    query, documents = whole.encode_query(QUERY), whole.encode_document(list(DOCUMENTS))
    expected = whole.similarity(query, documents)[0].numpy()
    whole.save(str(tmp_path))
    lenses = [normlens.load(whole), *([] if kind == "short" else [normlens.load(tmp_path)])]
    for lens in lenses:
        ranking = lens.rank(QUERY, DOCUMENTS)
        assert ranking.places == np.argsort(-expected).tolist()
        for score, place in zip(ranking, ranking.places, strict=True):
            assert score.value == pytest.approx(float(expected[place]), rel=1e-5, abs=1e-6)
            assert score.query == "a cat : " + QUERY
            assert score.document == "on a mat : " + DOCUMENTS[place]
            check_sums(score, 1e-5)
        bare = lens.score(QUERY, DOCUMENT, query_prompt="", document_prompt="")
        assert bare.query == QUERY
        u, v = whole.encode(QUERY), whole.encode(DOCUMENT)
        assert bare.value == pytest.approx(float(whole.similarity(u, v)), rel=1e-5, abs=1e-6)


# Rankings -----------------------------------------------------------------------------------------


def test_why_one_is_above_another(tiny):
    ranking = lens_of(tiny("bert")).rank(QUERY, DOCUMENTS)
    values = [score.value for score in ranking]
    assert values == sorted(values, reverse=True)
    above = ranking.why_above(0, 2)
    assert above.value == pytest.approx(values[0] - values[2])
    by_query, by_document = above.by_query(), above.by_document()
    assert by_query["token"].tolist() == [*ranking[0].tokens_a, "(no token)"]
    for table in (by_query, by_document):
        assert table["difference"].sum() == pytest.approx(above.value, abs=1e-9)
    assert by_query["higher"].sum() == pytest.approx(values[0], abs=1e-9)
    lower = by_document[by_document["document"] == "lower"]["difference"]
    assert lower.sum() == pytest.approx(-values[2], abs=1e-9)
    table = ranking.to_pandas()
    assert table["given"].tolist() == ranking.places
    assert [DOCUMENTS[place] for place in ranking.places] == table["document"].tolist()


def test_scores_of_a_ranking_are_what_they_are_alone(tiny):
    lens = lens_of(tiny("bert"))
    ranking = lens.rank(QUERY, DOCUMENTS, batch_size=2)
    for score, place in zip(ranking, ranking.places, strict=True):
        alone = lens.score(QUERY, DOCUMENTS[place], batch_size=1)
        assert score.value == pytest.approx(alone.value, abs=1e-9)
        np.testing.assert_allclose(score.pairs, alone.pairs, atol=1e-9)


def test_words_sum_their_tokens_and_files_hold_everything(minilm, tmp_path):
    ranking = minilm.rank("playing instruments", ["Someone strums a ukulele.", "Snow fell."])
    words = ranking.words()
    assert len(words[0].tokens_b) < len(ranking[0].tokens_b)
    for whole, merged in zip(ranking, words, strict=True):
        assert merged.pairs.sum() == pytest.approx(whole.pairs.sum())
    assert ranking[0].document == "Someone strums a ukulele."
    for result in (ranking, ranking[0], words):
        path = result.save(tmp_path / "result.safetensors")
        assert normlens.open(path) == result
    assert ranking.why_above().words().by_query()["difference"].sum() == pytest.approx(
        ranking[0].value - ranking[1].value, abs=1e-6
    )


# What is refused ----------------------------------------------------------------------------------


@in_one_case(
    ("given", "options", "line"),
    [
        ((QUERY, []), {}, "there are no documents"),
        ((QUERY, "a text"), {}, "documents \\(a list of texts\\)"),
        ((QUERY, [3]), {}, "documents \\(a list of texts\\)"),
        ((None, ["a"]), {}, "give a query"),
        ((" ", ["a"]), {}, "the text is empty"),
        ((QUERY, ["a", ""]), {}, "the text is empty"),
        ((QUERY, ["word " * 600]), {}, "at most 512"),
        ((QUERY, ["a"]), {"similarity": "euclid"}, "similarity"),
        ((QUERY, ["a"]), {"truncate_dim": 0}, "truncate_dim must be at least 1"),
        ((QUERY, ["a"]), {"nonlinearity": "shapley"}, "not linear"),
        ((QUERY, ["a"]), {"prompt": "a"}, "takes no option 'prompt'"),
    ],
)
def test_bad_input_is_one_line(given, options, line, minilm):
    with pytest.raises(InputError, match=line) as caught:
        minilm.rank(*given, **options)
    assert "\n" not in str(caught.value)


def test_models_of_other_inputs_are_refused(tiny):
    for family, line in (("vit", "reads pictures or sound"), ("t5", "is an encoder–decoder")):
        with pytest.raises(InputError, match=line):
            normlens.Lens(tiny(family), tokenizer=False).score(QUERY, DOCUMENT)


def test_towers_of_other_widths_and_prompts_that_are_not_pooled_are_refused(tiny):
    lens = lens_of(tiny("bert"))
    other = lens_of(tiny("bert", hidden_size=8, num_attention_heads=2))
    with pytest.raises(InputError, match="vectors of 16 numbers"):
        lens.score(QUERY, DOCUMENT, document_lens=other)
    lens.pooling = replace(lens.pooling, pools_prompt=False, query_prompt="a cat : ")
    with pytest.raises(UnsupportedModelError, match="leaves its prompt"):
        lens.score(QUERY, DOCUMENT)
    assert lens.score(QUERY, DOCUMENT, query_prompt="").value


def test_there_is_no_such_rank(tiny):
    with pytest.raises(InputError, match="ranks are 0 to 0"):
        lens_of(tiny("bert")).rank(QUERY, [DOCUMENT]).why_above()


# The page -----------------------------------------------------------------------------------------


def test_a_page_holds_its_numbers_and_no_markup_of_texts(minilm, tmp_path):
    ranking = minilm.rank("a cat </script><b>", ["<script>alert(1)</script>", "A cat sat."])
    page = ranking.to_html(tmp_path / "ranking.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script") == 2
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    words = ranking.words()
    assert data["query"]["tokens"] == words[0].tokens_a
    assert [item["value"] for item in data["documents"]] == [score.value for score in words]
    np.testing.assert_allclose(data["documents"][0]["pairs"], words[0].pairs, atol=1e-5)
    ranking.to_html(tmp_path / "ranking.html")  # its own page is replaced
    with pytest.raises(InputError, match="larger than"):
        ranking.to_html(tmp_path / "small.html", largest=0.001)
    assert "<iframe" in ranking[0]._repr_mimebundle_()["text/html"]
