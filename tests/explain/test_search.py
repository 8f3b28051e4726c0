"""Scores of search models against a frozen copy with autograd, and against the libraries' own."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from frozen_copies import frozen_outputs
from one_case import in_one_case
from search_models import DOCUMENT, QUERY, tiny_of
from test_loading import save_tiny, tiny_tokenizer
from torch import Tensor

import normlens
from normlens.errors import InputError, MissingDependencyError, UnsupportedModelError
from normlens.layers import FIRST, LAST, MEAN
from normlens.loading import sentences as reading
from normlens.loading.sentences import Pooling, SparseVectors, TokenVectors

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


def frozen_parts(
    model: Any, ids: list[int], read: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """What each token (k, …) and no token (…) give to a vector, linear in a text's last ones."""
    layers = len(list(normlens.load(model).adapter.blocks()))
    tokens, outputs = frozen_outputs(model, ids, "ig", [{} for _ in range(layers)])
    vector = read(outputs[-1][-1])
    parts = torch.stack(
        [
            (torch.autograd.grad(one, tokens, retain_graph=True)[0] * tokens).sum(-1)
            for one in vector.flatten()
        ],
        dim=-1,
    )
    parts = parts.reshape(len(ids), *vector.shape).detach()
    return parts, vector.detach() - parts.sum(0)


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


# Sparse, multi-vector and cross-encoders ----------------------------------------------------------


def save_kind(folder: Path, kind: str, **settings: Any) -> Path:
    tiny_of(kind, torch.float32, **settings).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def check_ranking(source: Any, expected: Any, kind: str, **options: Any) -> normlens.Ranking:
    """Every score is the library's own, and its parts are the score."""
    ranking = normlens.load(source, device="cpu").rank(QUERY, DOCUMENTS, **options)
    for score, place in zip(ranking, ranking.places, strict=True):
        assert score.value == pytest.approx(float(expected[place]), rel=1e-5, abs=1e-5)
        assert score.kind == kind
        check_parts(score, 1e-5)
    above = ranking.why_above()
    assert above.by_query()["difference"].sum() == pytest.approx(above.value, abs=1e-5)
    assert above.by_document()["difference"].sum() == pytest.approx(above.value, abs=1e-5)
    return ranking


def check_parts(score: normlens.Score, tolerance: float) -> None:
    if score.has_pairs:
        check_sums(score, tolerance)
    total = score.matrix.sum() + sum(score.remainder.values())
    assert total == pytest.approx(score.value, rel=tolerance, abs=tolerance)
    largest = tolerance * max(1.0, abs(score.value))
    if score.term_values is not None:
        assert score.term_values.sum() == pytest.approx(score.value, rel=tolerance, abs=tolerance)
        np.testing.assert_allclose(score.term_query.sum(0), score.by_query, atol=largest)
        np.testing.assert_allclose(score.term_document.sum(0), score.by_document, atol=largest)
        assert score.terms()["value"].is_monotonic_decreasing
    rebuilt = score.words()
    assert rebuilt.by_query.sum() == pytest.approx(score.by_query.sum(), abs=largest)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@in_one_case("activation", ["relu", "log1p_relu"])
@in_one_case("pools", ["max", "sum"])
def test_a_sparse_model_scores_as_its_library_does(pools, activation, sentences, tmp_path):
    sparse = importlib.import_module("sentence_transformers.sparse_encoder.modules")
    modules = importlib.import_module("sentence_transformers.base.modules")
    folder = save_kind(tmp_path / "mlm", "BertForMaskedLM")
    encoder = modules.Transformer(str(folder), transformer_task="fill-mask")
    parts = [encoder, sparse.SpladePooling(pools, activation)]
    whole = sentences.SparseEncoder(modules=parts, device="cpu")
    query, documents = whole.encode_query(QUERY), whole.encode_document(list(DOCUMENTS))
    expected = whole.similarity(query, documents)[0].numpy()
    whole.save(str(tmp_path / "saved"))
    for source in (whole, tmp_path / "saved"):
        ranking = check_ranking(source, expected, "sparse")
        assert (ranking[0].term_places >= 0).all() == (pools == "max")
        path = ranking.save(tmp_path / "ranking.safetensors")
        assert normlens.open(path) == ranking


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_an_inference_free_query_has_its_words_weights(sentences, tmp_path, monkeypatch):
    sparse = importlib.import_module("sentence_transformers.sparse_encoder.modules")
    modules = importlib.import_module("sentence_transformers.base.modules")
    folder = save_kind(tmp_path / "mlm", "BertForMaskedLM")
    encoder = modules.Transformer(str(folder), transformer_task="fill-mask")
    torch.manual_seed(1)
    weights = torch.rand(encoder.tokenizer.vocab_size + 20)
    words = weights[: len(encoder.tokenizer)].clone()
    static = sparse.SparseStaticEmbedding(encoder.tokenizer, words)
    router = modules.Router.for_query_document(
        query_modules=[static], document_modules=[encoder, sparse.SpladePooling()]
    )
    whole = sentences.SparseEncoder(modules=[router], device="cpu")
    query = whole.encode_query(QUERY).to_dense()
    documents = whole.encode_document(list(DOCUMENTS)).to_dense()
    expected = (documents[:, : len(query)] @ query).detach().numpy()
    whole.save(str(tmp_path / "saved"))
    for source in (whole, tmp_path / "saved"):
        ranking = check_ranking(source, expected, "sparse")
        special = np.array(ranking[0].a.is_special)
        assert (ranking[0].by_query[special] == 0).all()
        assert ranking[0].bias == pytest.approx(0)
    assert normlens.load(tmp_path / "saved").name == "saved"
    monkeypatch.setattr(reading, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install sentence-transformers"):
        normlens.load(tmp_path / "saved")


@in_one_case(
    ("expansion", "similarity"),
    [
        (None, "maxsim"),
        ({"strategy": "fixed", "length": 12, "attend": False, "token": "the"}, "maxsim"),
        ({"strategy": "fixed", "length": 12, "attend": True, "token": "the"}, "meanmaxsim"),
        ({"strategy": "min", "length": 12, "attend": False, "token": "the"}, "meanmaxsim"),
    ],
)
def test_a_multi_vector_model_scores_as_its_library_does(
    expansion, similarity, sentences, folder, tmp_path
):
    modules = importlib.import_module("sentence_transformers.base.modules")
    late = importlib.import_module("sentence_transformers.multi_vector_encoder.modules")
    torch.manual_seed(2)
    of_tokens = {"module_input_name": "token_embeddings"}
    identity = torch.nn.Identity()
    parts = [
        modules.Transformer(str(folder), query_expansion=expansion),
        modules.Dense(16, 8, bias=False, activation_function=identity, **of_tokens),
        late.MultiVectorMask(skiplist_words=["on", "a"]),
        modules.Normalize(**of_tokens),
    ]
    prompts = {"query": "a cat : ", "document": "on a mat : "}
    whole = sentences.MultiVectorEncoder(
        modules=parts, device="cpu", prompts=prompts, similarity_fn_name=similarity
    )
    query, documents = whole.encode_query(QUERY), whole.encode_document(list(DOCUMENTS))
    expected = whole.similarity([query], documents)[0].numpy()
    whole.save(str(tmp_path))
    for source in (whole, tmp_path):
        ranking = check_ranking(source, expected, "late interaction")
        first = ranking[0]
        assert len(first.term_names) == len(query) == len(first.a)
        assert (first.term_places[:, 0] == np.arange(len(query))).all()
        assert not {"on", "a"} & {first.tokens_b[place] for place in first.term_places[:, 1]}


#: What pylate saves beside its modules, without what is its default.
OF_PYLATE = {"query_length": 12, "document_length": 20, "attend_to_expansion_tokens": True}


@in_one_case(
    "settings",
    [
        OF_PYLATE,
        OF_PYLATE | {"do_query_expansion": False, "skiplist_words": ["on", "a"]},
        {"query_prefix": "cat", "document_prefix": "mat", "prompts": {"query": "a "}},
    ],
)
def test_pylates_folders_score_as_sentence_transformers_reads_them(settings, sentences, tmp_path):
    torch.manual_seed(3)
    kept = {"query_prefix": "", "document_prefix": "", "model_type": "ColBERT"} | settings
    folder = save_kind(tmp_path / "saved", "BertModel")
    with_mask(tiny_tokenizer()).save_pretrained(folder)
    dense = sentences.models.Dense(16, 8, bias=False, activation_function=torch.nn.Identity())
    (folder / "1_Dense").mkdir()
    dense.save(str(folder / "1_Dense"))
    written = json.loads((folder / "1_Dense" / "config.json").read_text())
    plain = {name: value for name, value in written.items() if "module_" not in name}
    (folder / "1_Dense" / "config.json").write_text(json.dumps(plain))
    kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    rows = [{"idx": k, "name": str(k), "path": at, "type": kinds[at]} for k, at in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(kept))
    whole = sentences.MultiVectorEncoder(str(folder), device="cpu")
    query, documents = whole.encode_query(QUERY), whole.encode_document(list(DOCUMENTS))
    expected = whole.similarity([query], documents)[0].numpy()
    for source in (whole, folder):
        check_ranking(source, expected, "late interaction")


def with_mask(tokenizer: Any) -> Any:
    tokenizer.mask_token = "the"
    return tokenizer


def test_a_folder_in_stanfords_files_says_what_to_do(tmp_path):
    folder = save_kind(tmp_path / "colbert", "BertModel")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["HF_ColBERT"]}))
    with pytest.raises(UnsupportedModelError):
        normlens.load(folder).score(QUERY, DOCUMENT)


def test_longer_texts_than_the_library_reads_are_noted(tiny):
    search = TokenVectors(expansion={"length": 5, "strategy": "fixed"})
    lens = lens_of(tiny("bert"), search=search, max_query_tokens=5, max_tokens=9)
    assert "would cut texts after 5 tokens" in lens.score(QUERY, "a mat").note
    assert "after 9 tokens" in lens.score("cat", f"{DOCUMENT} {DOCUMENT}").note
    assert lens.score("cat", "a mat").note is None


@in_one_case("search", [SparseVectors(), TokenVectors(), None])
def test_towers_whose_vectors_differ_in_width_are_refused(search, tiny):
    if isinstance(search, SparseVectors):
        models = tiny_of("BertForMaskedLM"), tiny_of("BertForMaskedLM", vocab_size=70)
    else:
        models = tiny("bert"), tiny_of("BertModel", hidden_size=32)
    query, document = (lens_of(model, reads=MEAN, search=search) for model in models)
    with pytest.raises(InputError):
        query.score(QUERY, DOCUMENT, document_lens=document)


@in_one_case("kind", ["dense", "sparse", "late"])
def test_two_towers_each_read_their_texts(kind, tiny):
    options = {"similarity": "dot"} if kind == "dense" else {}
    if kind == "dense":
        models = tiny("bert"), tiny("bert", hidden_act="relu")
        lenses = [lens_of(models[0]), lens_of(models[1], reads=FIRST)]
    elif kind == "sparse":
        models = tiny_of("BertForMaskedLM"), tiny_of("BertForMaskedLM", hidden_act="relu")
        lenses = [lens_of(model, reads="any", search=SparseVectors()) for model in models]
    else:
        models = tiny("bert"), tiny("roberta")
        lenses = [lens_of(model, search=TokenVectors(), normalized=True) for model in models]
    query, document = lenses
    score = query.score(QUERY, DOCUMENT, document_lens=document, **options)
    assert score.provenance["document_model"] == document.name
    u, v = (
        model(**lens.tokenizer(text, return_tensors="pt", return_token_type_ids=False))[0][0]
        for model, lens, text in zip(models, lenses, (QUERY, DOCUMENT), strict=True)
    )
    if kind == "dense":
        expected = u.mean(0) @ v[0]
    elif kind == "sparse":
        expected = u.relu().log1p().amax(0) @ v.relu().log1p().amax(0)
    else:
        u, v = (x / x.norm(dim=-1, keepdim=True) for x in (u, v))
        expected = (u @ v.T).amax(1).sum()
    assert score.value == pytest.approx(expected.item(), rel=1e-9)
    assert score.value != pytest.approx(query.score(QUERY, DOCUMENT, **options).value, rel=1e-3)
    check_parts(score, 1e-9)


@in_one_case("labels", [1, 3])
def test_a_cross_encoder_scores_as_its_library_does(labels, sentences, tmp_path):
    folder = save_kind(tmp_path / "plain", "BertForSequenceClassification", num_labels=labels)
    whole = sentences.CrossEncoder(str(folder), device="cpu")
    pairs = [(QUERY, document) for document in DOCUMENTS]
    logits = whole.predict(pairs, activation_fn=torch.nn.Identity()).reshape(len(pairs), labels)
    whole.save(str(tmp_path / "saved"))
    options = {} if labels == 1 else {"label": "LABEL_2"}
    for source in (whole, folder, tmp_path / "saved"):
        ranking = check_ranking(source, logits[:, -1], "cross-encoder", **options)
        score = ranking[0]
        assert score.others.tokens == ["[CLS]", "[SEP]", "[SEP]"]
        assert score.query == QUERY
        assert score.words().tokens_a == QUERY.split()
        lens = normlens.load(source, device="cpu")
        why = lens.explain((QUERY, score.document), target=options.get("label", 0))
        order = np.concatenate([score.by_query, score.by_document, score.others_values])
        assert sorted(order) == pytest.approx(sorted(why.contributions), abs=1e-6)
        assert score.remainder["no token"] == pytest.approx(why.remainder, abs=1e-6)
        with pytest.raises(InputError):
            score.pairs  # noqa: B018
        path = score.save(tmp_path / "score.safetensors")
        assert normlens.open(path) == score
        page = ranking.to_html(tmp_path / "ranking.html").read_text(encoding="utf-8")
        assert "(neither text)" in page
    if labels == 3:
        with pytest.raises(InputError):
            normlens.load(folder, device="cpu").score(QUERY, DOCUMENT)


@pytest.mark.filterwarnings("ignore:.*which is another token")
def test_a_decoder_answers_by_a_template(smollm2):
    template = "Query: {query}\nDocument: {document}\nRelevant:"
    query, document = "soap opera", "She teaches soap opera history."
    score = smollm2.score(query, document, template=template, yes=" Yes", no=" No")
    text = template.format(query=query, document=document)
    why = smollm2.explain(text, target=" Yes", contrast=" No")
    assert score.value == pytest.approx(why.value, abs=1e-4)
    check_parts(score, 1e-4)
    assert "".join(score.tokens_a).replace("␣", " ").strip() == query
    assert "".join(score.tokens_b).replace("␣", " ").strip() == document
    ids = smollm2.tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = smollm2.adapter.whole(**ids).logits[0, -1]
    yes, no = (smollm2.tokenizer(word)["input_ids"][0] for word in (" Yes", " No"))
    assert score.value == pytest.approx(float(logits[yes] - logits[no]), abs=1e-3)
    alone = smollm2.score(query, document, template=template, yes=" Yes", no="")
    assert alone.value == pytest.approx(float(logits[yes]), rel=1e-4)
    with pytest.raises(InputError):
        smollm2.score(query, document, template="{query}")


# Against a frozen copy with autograd --------------------------------------------------------------


@in_one_case("dtype", EXACT)
@in_one_case("pools", ["max", "sum"])
def test_a_sparse_score_is_that_of_the_frozen_copy(pools, dtype):
    model = tiny_of("BertForMaskedLM")
    lens = lens_of(
        tiny_of("BertForMaskedLM", dtype), reads="any", search=SparseVectors(pools=pools)
    )
    score = lens.score(QUERY, DOCUMENT)
    check_parts(score, EXACT[dtype])
    sides = [frozen_words(model, lens.encode(text)[0].ids, pools) for text in (QUERY, DOCUMENT)]
    check_against(score, sides, dtype)


def frozen_words(model: Any, ids: list[int], pools: str) -> tuple[Any, Any]:
    """The parts (k, words) of a text's sparse vector, by a frozen copy of the model and head."""
    with torch.no_grad():
        own = model.bert(input_ids=torch.tensor([ids])).last_hidden_state[0]
        transform = model.cls.predictions.transform
        dense = transform.dense(own)
        active = transform.transform_act_fn(dense)
        centred = active - active.mean(-1, keepdim=True)
        deviation = (centred.square().mean(-1, keepdim=True) + transform.LayerNorm.eps).sqrt()
        z = model.cls(own[None])[0]
        squeezed = torch.log1p(z.relu())
        kept = squeezed / z.where(z != 0, 1)
        if pools == "max":
            kept = kept * (torch.arange(len(ids))[:, None] == squeezed.argmax(0))

    def read(y):
        y = (y @ transform.dense.weight.T + transform.dense.bias) * (active / dense)
        y = (y - y.mean(-1, keepdim=True)) / deviation * transform.LayerNorm.weight
        y = y + transform.LayerNorm.bias
        return (
            (y @ model.cls.predictions.decoder.weight.T + model.cls.predictions.bias) * kept
        ).sum(0)

    return frozen_parts(model.bert, ids, read)


def check_against(score: normlens.Score, sides: Any, dtype: torch.dtype) -> None:
    (u, b_u), (v, b_v) = sides
    for found, expected in (
        (score.pairs, u @ v.T),
        (score.by_query, u @ (v.sum(0) + b_v)),
        (score.by_document, v @ (u.sum(0) + b_u)),
        (score.bias, b_u @ b_v),
        (score.value, (u.sum(0) + b_u) @ (v.sum(0) + b_v)),
    ):
        expected = expected.detach().numpy()
        atol = 50 * EXACT[dtype] * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


# Rankings -----------------------------------------------------------------------------------------


def test_why_one_is_above_another(tiny):
    ranking = lens_of(tiny("bert")).rank(QUERY, DOCUMENTS)
    values = [score.value for score in ranking]
    assert values == sorted(values, reverse=True)
    above = ranking.why_above(0, 2)
    by_query, by_document = above.by_query(), above.by_document()
    assert by_query["token"].tolist() == [*ranking[0].tokens_a, "(no token)"]
    assert by_query["higher"].sum() == pytest.approx(values[0], abs=1e-9)
    lower = by_document[by_document["document"] == "lower"]["difference"]
    assert lower.sum() == pytest.approx(-values[2], abs=1e-9)
    table = ranking.to_pandas()
    assert table["given"].tolist() == ranking.places
    assert [DOCUMENTS[place] for place in ranking.places] == table["document"].tolist()


# What is refused ----------------------------------------------------------------------------------


@in_one_case(
    ("query", "documents", "similarity"),
    [
        (QUERY, [], None),
        (QUERY, "a text", None),
        (None, ["a"], None),
        (QUERY, ["word " * 600], None),
        (QUERY, ["a"], "euclid"),
    ],
)
def test_bad_input(query, documents, similarity, minilm):
    with pytest.raises(InputError):
        minilm.rank(query, documents, similarity=similarity)


# The page -----------------------------------------------------------------------------------------


def test_a_page_holds_its_numbers_and_no_markup_of_texts(minilm, tmp_path):
    ranking = minilm.rank("a cat </script><b>", ["<script>alert(1)</script>", "A cat sat."])
    page = ranking.to_html(tmp_path / "ranking.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script") == 2
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    words = ranking.words()
    assert data["query"]["tokens"] == words[0].tokens_a
    np.testing.assert_allclose(data["documents"][0]["pairs"], words[0].pairs, atol=1e-5)
    with pytest.raises(InputError):
        ranking.to_html(tmp_path / "small.html", largest=0.001)
    assert "<iframe" in ranking[0]._repr_mimebundle_()["text/html"]
