"""``normlens rank`` and ``score``: what they print and write."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch
from search_models import DOCUMENT, QUERY, tiny_of
from shell import Shell
from test_loading import save_tiny, tiny_tokenizer

import normlens
from normlens.cli import common

DOCUMENTS = (DOCUMENT, "a mat", "on the cats")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("search") / "tiny")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reranker") / "tiny"
    tiny_of("BertForSequenceClassification", torch.float32, num_labels=1).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def shell(capsys, monkeypatch):
    monkeypatch.setattr(common, "is_piped", lambda: False)
    return Shell(capsys)


def number(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def test_a_ranking_says_why_the_first_is_above_the_second(model, shell):
    out = shell("rank", QUERY, *DOCUMENTS, "-m", model)
    ranking: Any = normlens.load(model).rank(QUERY, DOCUMENTS).words()
    lines = [line.split() for line in out.splitlines()]
    for rank, score in enumerate(ranking, start=1):
        assert [str(rank), number(score.value), *score.document.split()] in lines
    above = ranking.why_above()
    assert f"1 is above 2 by {number(above.value)} because" in out
    strongest = above.by_query().sort_values("difference", key=abs).iloc[-1]
    assert [*strongest["token"].split(), number(strongest["difference"])] in lines


def test_a_score_is_printed_by_words(model, shell):
    out = shell("score", QUERY, DOCUMENT, "-m", model)
    score: Any = normlens.load(model).score(QUERY, DOCUMENT)
    assert f"cosine {number(score.value)}" in out
    assert "What each word of the query has of the score" in out
    assert "cats" in out
    assert "##s" not in out


def test_a_reranker_has_parts_without_pairs(reranker, shell, tmp_path):
    out = shell("score", QUERY, DOCUMENT, "-m", reranker)
    score: Any = normlens.load(reranker).score(QUERY, DOCUMENT)
    assert f"cross-encoder {number(score.value)}" in out
    assert "(neither text)" in out
    table = tmp_path / "score.csv"
    shell("score", QUERY, DOCUMENT, "-m", reranker, "--out", table)
    no_token = score.remainder["no token"]
    assert pd.read_csv(table)["value"].sum() + no_token == pytest.approx(score.value, abs=1e-5)
    picture = tmp_path / "score.png"
    line = shell.error("score", QUERY, DOCUMENT, "-m", reranker, "--out", picture)
    assert "has no pairs to draw" in line


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (("rank", QUERY), "rank compares documents"),
        (("rank", QUERY, " "), "the text is empty"),
        (("score", QUERY), "score compares a query with a document"),
        (("score", QUERY, " "), "the text is empty"),
        (("score", " ", DOCUMENT), "the text is empty"),
        (("score", QUERY, "a", "b"), "unexpected extra argument"),
        (("rank", QUERY, "a", "b", "--out", "ranking.png"), "a ranking has no picture"),
        (("rank", QUERY, "a", "--out", "ranking.txt"), "the ending chooses the format"),
    ],
)
def test_mistakes_are_one_line(typed, line, model, shell):
    assert line in shell.error(*typed, "-m", model)
