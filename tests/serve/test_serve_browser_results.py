"""Explanations and cosines on the served page, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from serving import StepwiseModels, watched

import normlens

DRAWN = '.normlens[data-busy="false"][data-kind="{}"]'


@pytest.fixture
def visit(page):
    """A page that may not complain, for example of what its policy refuses."""
    complaints = watched(page)
    yield page
    assert complaints == []


def ask(visit: Any, **fields: str) -> None:
    for name, text in fields.items():
        visit.fill(f'[data-field="{name}"]', text)
    visit.click('[data-action="analyse"]')


def tokens(visit: Any) -> list[str]:
    return visit.locator(".token:not(.rest) .text").all_inner_texts()


def test_a_prediction_is_explained_and_shared(talking, speaker, visit):
    visit.goto(talking.url)
    visit.click('[data-control="mode"] [data-value="explain"]')
    assert "mode=explain" in visit.url
    ask(visit, text="the cat sat", target="mat", contrast="#5", position="−2")
    visit.wait_for_selector(DRAWN.format("explain"))
    why: Any = normlens.load(speaker, device="cpu").explain(
        "the cat sat", target="mat", contrast="cat", position=-2
    )
    assert tokens(visit) == why.tokens
    assert why.question[1:] in visit.inner_text(".question")
    visit.click('.token[data-token="2"]')
    shared = visit.url
    assert "target=mat" in shared
    assert "token=2" in shared
    visit.goto("about:blank")
    visit.goto(shared)
    visit.wait_for_selector(f'{DRAWN.format("explain")}[data-token="2"]')
    assert tokens(visit) == why.tokens
    assert visit.input_value('[data-field="contrast"]') == "#5"
    assert visit.url == shared


def test_two_texts_are_compared(talking, folder, visit):
    visit.goto(talking.url)
    visit.wait_for_selector('[data-control="model"] option', state="attached")
    visit.select_option('[data-control="model"]', Path(folder).name)
    visit.click('[data-control="mode"] [data-value="cosine"]')
    ask(visit, text="the cat sat")
    visit.get_by_text("a cosine needs two").wait_for()
    ask(visit, second="a mat")
    visit.wait_for_selector(DRAWN.format("cosine"))
    pair = normlens.load(folder, device="cpu").cosine("the cat sat", "a mat")
    assert tokens(visit) == [*pair.tokens_a, *pair.tokens_b]
    assert visit.locator(".token.rest").count() == 3
    visit.click('[data-control="view"] [data-value="matrix"]')
    visit.wait_for_selector('[data-cells="matrix"]')
    # The other kinds are still there, each with what was asked of it.
    visit.click('[data-control="mode"] [data-value="maps"]')
    ask(visit, text="the mat")
    visit.wait_for_selector('.normlens[data-busy="false"] [data-figure="map"]')
    visit.click('[data-control="mode"] [data-value="cosine"]')
    visit.wait_for_selector('[data-cells="matrix"]')
    assert "pair=a+mat" in visit.url


@pytest.mark.parametrize("mode", ["explain", "cosine"])
def test_it_is_cancelled_from_the_page(mode, slow, visit):
    models: StepwiseModels = slow.models  # type: ignore[assignment]
    words = {"mode": mode, "model": models.names[0], "text": "the cat", "pair": "a mat"}
    visit.goto(f"{slow.url}#{urlencode(words)}")
    models.reached()
    other = visit.locator('[data-control="mode"] [data-value="maps"]')
    assert other.is_disabled()
    with visit.expect_response(lambda answer: answer.request.method == "DELETE"):
        visit.locator("[data-action=cancel]").click()
    models.let_go()
    visit.get_by_text("Cancelled.").wait_for()
    assert other.is_enabled()
