"""Citations as a protocol: solvers and methods against plain code, values on known scores."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import normlens
from normlens.corpus.runs.folder import SomeFailedWarning
from normlens.errors import InputError, MissingDependencyError
from normlens.explain.citations import prepared
from normlens.inputs.text import DOCUMENT
from normlens.options import CiteOptions
from normlens.studies.faithfulness import citations
from normlens.studies.faithfulness.citations import (
    Trial,
    attention,
    gradient_x_input,
    lasso,
    passes,
)
from normlens.studies.faithfulness.options import CITATION_METHODS, ablations_of

QUESTION = "What is the capital of Peru?"
SOURCES = ["Bananas are yellow.", "The capital of Peru is Lima.", "Snow is white."]
ANSWER = "It is Lima."


def trial_of(lens, seed=0):
    options = CiteOptions(by=DOCUMENT, parts=DOCUMENT, separator=" ")
    return Trial(prepared(lens, QUESTION, SOURCES, ANSWER, options), (seed,), 8)


@pytest.fixture(scope="module")
def trial(smollm2):
    return trial_of(smollm2)


@pytest.fixture(scope="module")
def plain(smollm2):
    """Ids of the whole chat and the answer's, and the places of each source's tokens."""
    text = f"Context: {' '.join(SOURCES)}\n\nQuery: {QUESTION}"
    chat = smollm2.tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    batch = smollm2.tokenizer(chat, add_special_tokens=False, return_offsets_mapping=True)
    answer = smollm2.tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    places = []
    for source in SOURCES:
        start = chat.index(source)
        own = [
            k
            for k, (a, b) in enumerate(batch["offset_mapping"])
            if start <= a + (chat[a] == " ") < start + len(source) and b > a
        ]
        places.append(own)
    return batch["input_ids"], answer, places


def test_the_solver_is_the_published_one():
    linear = pytest.importorskip("sklearn.linear_model")
    scaler = pytest.importorskip("sklearn.preprocessing").StandardScaler()
    rng = np.random.default_rng(0)
    for sources, rows in ((5, 8), (20, 32), (40, 16)):
        masks = rng.random((rows, sources)) < 0.5
        masks[:, 0] = True  # never left out
        log_p = -200 + masks @ rng.normal(size=sources) * 4 + rng.normal(size=rows)
        x = scaler.fit_transform(masks.astype(np.float64))
        model = linear.Lasso(alpha=0.01, tol=1e-12, max_iter=100_000)
        odds = log_p - np.log1p(-np.exp(log_p))
        model.fit(x, odds / 12)
        expected = model.coef_ / scaler.scale_ * 12
        np.testing.assert_allclose(lasso(masks, log_p, 12), expected, atol=1e-4)


def test_flashtrace_without_its_package_is_one_line(monkeypatch, smollm2, tmp_path):
    monkeypatch.setitem(sys.modules, "flashtrace", None)
    data = tmp_path / "questions.jsonl"
    data.write_text(json.dumps({"question": QUESTION, "sources": SOURCES}) + "\n")
    with pytest.raises(MissingDependencyError, match="pip install flashtrace"):
        normlens.evaluate(
            smollm2, data, tmp_path / "run", methods=["flashtrace"], protocols=["citations"]
        )
    assert not (tmp_path / "run").exists()


def test_attention_is_the_mean_over_layers_and_heads(smollm2, trial, plain):
    ids, answer, places = plain
    model = smollm2.adapter.whole
    with torch.no_grad():
        weights = model(torch.tensor([ids + answer]), output_attentions=True).attentions
    mean = torch.cat(weights)[:, :, len(ids) - 1 : -1].double().mean((0, 1, 2))
    expected = [float(mean[own].sum()) for own in places]
    np.testing.assert_allclose(attention(trial.prompt), expected, rtol=1e-4)


def test_gradients_times_inputs(smollm2, trial, plain):
    ids, answer, places = plain
    model = smollm2.adapter.whole
    x = model.get_input_embeddings()(torch.tensor([ids + answer])).detach().requires_grad_()
    rows = model(inputs_embeds=x).logits[0, len(ids) - 1 : -1].double().log_softmax(-1)
    (gradient,) = torch.autograd.grad(rows[range(len(answer)), answer].sum(), x)
    products = (gradient * x).detach().sum(-1)[0].abs()
    expected = [float(products[own].sum()) for own in places]
    np.testing.assert_allclose(gradient_x_input(trial.prompt), expected, rtol=1e-3)


def test_values_of_known_scores(trial):
    right, wrong = np.array([0.0, 2.0, 1.0]), np.array([0.0, -2.0, 1.0])
    values = trial.values(right, gold=[1])
    kept = np.array([[True, False, True]])
    assert values["drop-1"] == pytest.approx(trial.whole - float(trial.log_p(kept)[0]))
    assert values["drop-3"] is values["drop-5"] is None  # no source would be left
    assert (values["gold"], values["first"]) == (1, 1)
    assert values["lds"] == pytest.approx(
        spearmanr(trial.held @ right, trial.log_p(trial.held)).statistic
    )
    assert values["lds"] > 0.5 > trial.values(wrong, gold=[1])["lds"]
    assert trial.values(wrong, gold=[1])["gold"] == pytest.approx(1 / 3)
    assert trial.values(np.zeros(3), gold=[])["lds"] == 0
    assert trial.values(right, gold=[])["gold"] is None


def test_names_and_what_they_cost():
    assert [ablations_of(name) for name in CITATION_METHODS] == [0, 8, 32, 8, 16, 32, 0, 0, 0, 0]
    assert passes("normlens+8", 5) == (9, 1)
    assert passes("contextcite-8", 5) == (8, 0)
    assert passes("leave-one-out", 5) == (6, 0)
    assert passes("flashtrace", 3) == (1, 0)
    for name in ("normlens+2", "contextcite-", "shap", "normlens+x"):
        with pytest.raises(InputError):
            ablations_of(name)


@pytest.mark.usefixtures("undrawn")
def test_an_evaluation_of_citations(smollm2, tmp_path, monkeypatch):
    monkeypatch.setattr(citations, "SUBSETS", 8)
    rows = [
        {"question": QUESTION, "sources": SOURCES, "gold": [1], "answer": ANSWER},
        {"question": QUESTION, "sources": SOURCES[::-1], "gold": [1], "answer": ANSWER},
        {"question": QUESTION, "sources": SOURCES[:1], "gold": [], "answer": ANSWER},
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out"
    asked = {"protocols": "citations", "methods": "normlens,leave-one-out,random"}
    with pytest.warns(SomeFailedWarning):
        run = normlens.evaluate(smollm2, data, out, **asked)
    values = run.sql("SELECT * FROM faithfulness WHERE protocol = 'citations-first'")
    by_method = values.groupby("method")["value"].mean()
    assert by_method["normlens"] == by_method["leave-one-out"] == 1
    sources = run.sql("SELECT * FROM attributions WHERE method = 'normlens' AND evidence")
    assert sources["token"].tolist() == [SOURCES[1]] * 2
    assert len(run.sql("SELECT * FROM failures")) == 1
    page = (out / "report" / "report.html").read_text()
    assert "Citations: LDS" in page
    assert "leave-one-out" in page


@pytest.mark.parametrize(
    ("rows", "asked"),
    [
        ([{"question": "a", "text": "b"}] * 2, {}),
        ([{"question": "a", "sources": ["b", "c"]}] * 2, {"label_column": "x"}),
        ([{"question": "a", "sources": ["b", "c"]}] * 2, {"methods": "vectors"}),
        ([{"question": "a", "sources": ["b", "c"]}] * 2, {"protocols": "citations,evidence"}),
    ],
)
def test_what_citations_cannot_be_made_of(smollm2, tmp_path, rows, asked):
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError):
        normlens.evaluate(smollm2, data, tmp_path / "out", **{"protocols": "citations", **asked})
