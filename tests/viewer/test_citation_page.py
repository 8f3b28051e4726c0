"""The page of a citation in a real browser: what a click on the answer or a source shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normlens.results.citation import ANSWER, PROMPT, Citation
from normlens.viewer.notebook import citation_notebook

SOURCES = ["The capital is <b>Lima</b>.\nIt is old.", "No & never.", "Bananas."]
TEXT = f"Context: {' | '.join(SOURCES)} Q?"
PARTS = ["It is Lima.", "Or </script> not."]


def made(sources: list[str] = SOURCES, parts: list[str] = PARTS, **more: Any) -> Citation:
    """A citation by words, whose numbers are easy to tell."""
    text = f"Context: {' | '.join(sources)} Q?"
    starts = [text.index(source) for source in sources]
    words = [*re.finditer(r"\S+", text)]
    owners = [
        next(
            (k for k, a in enumerate(starts) if a <= word.start() < a + len(sources[k])),
            PROMPT,
        )
        for word in words
    ]
    spans = [word.span() for word in words] + [(0, 0)]
    owners.append(ANSWER)
    scores = np.zeros((len(parts), len(spans)))
    scores[0] = [2.0 if owner == 0 else -0.5 if owner == 1 else 0.25 for owner in owners]
    scores[-1, np.array(owners) == 1] = 1.0
    biases = np.full(len(parts), 0.125)
    return Citation(
        question="What is the <capital>?",
        sources=sources,
        documents=[*range(len(sources))],
        answer=" ".join(parts),
        parts=parts,
        score="log-probability",
        values=scores.sum(1) + biases,
        log_probabilities=np.full(len(parts), -1.0),
        token_scores=scores,
        biases=biases,
        owners=np.array(owners),
        spans=np.array(spans),
        source_spans=np.array([(a, a + len(s)) for a, s in zip(starts, sources, strict=True)]),
        raw_tokens=[word[0] for word in words] + ["x"],
        completeness=1e-7,
        provenance={"model": "tiny", "dtype": "float32"},
        text=text,
        **more,
    )


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Any:
    contexts = []

    def opening(citation: Citation, width: int = 1400, **options: Any) -> Any:
        path = citation.to_html(tmp_path / "cite.html", overwrite=True)
        height = 900 if width > 500 else 844
        context = browser.new_context(
            viewport={"width": width, "height": height}, offline=True, **options
        )
        contexts.append(context)
        page = context.new_page()
        page.problems = []
        page.on("console", lambda message: page.problems.append(message.text))
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.goto(path.resolve().as_uri())
        page.wait_for_selector("article")
        return page

    yield opening
    for context in contexts:
        context.close()


def shades(page: Any, source: int) -> list[str]:
    spans = page.locator("article").nth(source).locator(".text span")
    return [span.evaluate("s => s.style.background") for span in spans.all()]


def test_texts_are_texts(opened):
    page = opened(made())
    assert page.inner_text("#question") == "What is the <capital>?"
    shown = page.locator("article .text").all_text_contents()
    assert [text.strip() for text in shown] == SOURCES
    assert page.locator("#answer button").first.inner_text() == PARTS[0]
    assert page.problems == []


def test_a_sentence_lights_its_sources(opened):
    page = opened(made())
    first, second = page.locator("#answer button").all()
    first.click()
    assert first.get_attribute("aria-pressed") == "true"
    numbers = page.locator("article .head .n:not(.soft)").all_text_contents()
    assert numbers == ["+14.0", "−1.5", "+0.3"]
    assert all("--up" in colour for colour in shades(page, 0))
    assert all("--down" in colour for colour in shades(page, 1))
    second.click()
    assert page.locator("article .head .n:not(.soft)").all_text_contents() == ["0.0", "+3.0", "0.0"]
    assert shades(page, 0)[0] == ""
    page.keyboard.press("Escape")
    assert second.get_attribute("aria-pressed") == "false"
    assert page.problems == []


def test_a_source_shows_what_it_supports(opened):
    page = opened(made())
    page.locator("article .head").nth(1).click()
    assert "Source 1 supports sentence 2 and speaks against sentence 1." in page.inner_text("#hint")
    assert page.locator("#answer small").all_inner_texts() == ["−1.5", "+3.0"]
    rest = page.locator("#rest .row").all_inner_texts()
    citation = made()
    numbers = [float(row.split("\n")[1].replace("−", "-")) for row in rest]
    assert numbers[-1] == pytest.approx(citation.value, abs=0.06)
    assert sum(numbers[:-1]) == pytest.approx(citation.value, abs=0.3)


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_many_long_sources(opened, width, scheme):
    words = "lorem ipsum dolor sit amet " * 100
    sources = [f"{k} {words.strip()}" for k in range(50)]
    page = opened(made(sources, ["One.", "Two.", "Three."]), width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.locator("#answer button").first.click()
    page.locator("#strip button").nth(30).click()
    assert page.locator("article.chosen b").first.inner_text() == "Source 30"
    assert page.locator("article.chosen").is_visible()
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert page.problems == []


def test_a_notebook_shows_the_page():
    citation = made()
    shown = citation._repr_mimebundle_()
    assert "<iframe" in shown["text/html"]
    assert shown["text/plain"] == repr(citation)
    assert (
        "</script> not"
        not in citation_notebook(citation).page(None, "").split('id="data"')[1][:5000]
    )
