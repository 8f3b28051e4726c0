"""The page of a ranking in a real browser: what is shown is what Python computed."""

from __future__ import annotations

import pytest

QUERY = "How many people live in Berlin?"
DOCUMENTS = [
    "Berlin had a population of 3,520,031 <b>registered</b> inhabitants.",
    "Berlin is well known for its museums, and many people visit it every year.",
    "Paris is the capital of France.",
]


@pytest.fixture(scope="module")
def ranking(minilm):
    return minilm.rank(QUERY, DOCUMENTS)


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_words_are_shaded_by_the_chosen_word(width, height, ranking, browser, tmp_path):
    page = browser.new_page(viewport={"width": width, "height": height})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(ranking.to_html(tmp_path / "ranking.html").as_uri())
    words = ranking.words()
    first = page.locator("article").first.locator(".words button")
    assert first.all_inner_texts() == words[0].tokens_b

    def titles() -> list[float]:
        shown = [button.get_attribute("title") for button in first.all()]
        return [float(title.replace("−", "-")) for title in shown]

    assert titles() == pytest.approx(words[0].by_document.tolist(), abs=6e-4)
    chosen = words[0].tokens_a.index("Berlin")
    page.locator("#query button").nth(chosen).click()
    assert titles() == pytest.approx(words[0].pairs[chosen].tolist(), abs=6e-4)
    assert "“Berlin” alone" in page.locator("#hint").inner_text()
    page.keyboard.press("Escape")
    page.mouse.move(0, 0)
    assert titles() == pytest.approx(words[0].by_document.tolist(), abs=6e-4)

    above = ranking.why_above(0, 2)
    page.locator(".pick").nth(2).click()
    heading = page.locator("#why h2").inner_text()
    assert heading == f"Document 1 is above 3 by {above.value:.3f} because"
    assert page.locator("#why .columns > div").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert problems == []
    page.close()
