"""Which sources made an answer, asked of the server: over HTTP and on its page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from serving import ON_CPU, Site, watched

import normlens
from normlens.serve.analyses import Limits, ServedModels

QUESTION, SOURCES, ANSWER = "the cats", ["the cats sat on a mat", "a mat", "a mat"], "on the mat"


@pytest.fixture(scope="module")
def answering(speaker: str, folder: str) -> Iterator[Site]:
    limits = Limits(text_characters=80, tokens=10)
    with Site(ServedModels([speaker, folder], limits, loading=ON_CPU), limits) as running:
        yield running


def asked(site: Site, **more: Any) -> Any:
    body = {"model": "speaker", "text": QUESTION, "sources": SOURCES, "answer": ANSWER} | more
    return site.http.post("api/citations", json=body)


def cited(site: Site, **more: Any) -> Any:
    answer = asked(site, **more)
    assert answer.status_code == 202, answer.text
    return site.wait(answer.json()["id"])


def test_a_citation_is_what_its_page_shows(answering: Site, speaker: str) -> None:
    job = cited(answering)
    assert job["state"] == "done", job
    answer = answering.http.get(f"api/analyses/{job['id']}/result")
    assert answer.headers["content-type"] == "application/json"
    shown, citation = answer.json(), normlens.load(speaker).cite(QUESTION, SOURCES, ANSWER)
    assert shown["scores"] == pytest.approx(citation.scores, abs=1e-4)
    assert shown["parts"] == citation.parts
    assert [source["words"] for source in shown["sources"]] == [text.split() for text in SOURCES]
    total = sum(map(sum, shown["matrix"])) + sum(map(sum, shown["rest"]))
    assert total == pytest.approx(sum(shown["values"]), abs=1e-3)


def test_the_model_answers_where_no_answer_is_given(answering: Site) -> None:
    job = cited(answering, answer=None)
    # A tiny model may have nothing to say, which is said in one line.
    assert job["state"] == "done" or "ends its answer" in job["error"]


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        ({"sources": []}, 422, "sources"),
        ({"sources": ["a mat", " "]}, 422, "empty"),
        ({"sources": "a mat"}, 422, "sources"),
        ({"answer": " "}, 422, "empty"),
        ({"pair": "a mat"}, 422, "pair"),
        ({"text": "cat " * 30}, 422, "at most 80 characters"),
        ({"model": "other"}, 422, "model"),
    ],
)
def test_wrong_questions_are_refused(
    more: dict[str, Any], status: int, said: str, answering: Site
) -> None:
    answer = asked(answering, **more)
    assert (answer.status_code, said in answer.json()["detail"]) == (status, True), answer.text


def test_what_fails_is_one_line(answering: Site) -> None:
    assert "has no head" in cited(answering, model="tiny")["error"]
    long = cited(answering, sources=["a " * 20, "on " * 12])
    assert re.search("the prompt has .* tokens and at most 40 are taken", long["error"])


def test_its_page_loads_nothing_but_its_own_files(answering: Site) -> None:
    page = answering.http.get("cite")
    assert page.status_code == 200
    assert re.findall('(?:src|href)="([^"]+)"', page.text) == [
        *("data:,", "static/cite.css", "./", "static/cite.js"),
    ]
    assert "{{" not in page.text
    for name, kind in (("css", "text/css"), ("js", "text/javascript")):
        answer = answering.http.get(f"static/cite.{name}")
        assert answer.headers["content-type"].startswith(kind)
        assert len(answer.text) > 1000
    assert answering.http.get("static/citation.html").status_code == 404


def test_the_page_asks_and_shows(answering: Site, page: Any) -> None:
    complaints = watched(page)
    page.goto(answering.url)
    page.click("[data-action=cite]")
    page.wait_for_selector("#model option", state="attached")
    assert page.locator("#model option").all_inner_texts() == ["speaker"]
    page.fill("#documents", "\n\n".join(SOURCES))
    page.fill("#asked", QUESTION)
    page.fill("#given", ANSWER)
    for sources in (3, 2):  # again, in the place of the first
        page.click("#start")
        page.wait_for_selector(f"#cited #strip button:nth-child({sources}):last-child")
        page.wait_for_selector("#start:enabled")
        assert page.locator("#cited article").count() == sources
        page.fill("#documents", "\n\n".join(SOURCES[:2]))
    assert "which sources" in page.inner_text("#title")
    assert page.inner_text("form h1") == "Which sources made this answer"
    page.click("#answer button")
    assert page.get_attribute("#answer button", "aria-pressed") == "true"
    page.fill("#asked", "cat " * 30)
    page.click("#start")
    page.wait_for_selector("#message:has-text('at most 80')")
    # The browser itself reports the refusal; nothing else may be wrong.
    assert [said for said in complaints if "422" not in said] == []
