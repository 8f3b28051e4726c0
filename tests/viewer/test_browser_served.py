"""The served page from end to end, with the embedded model: two texts, and a shared view."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from normlens.measures.maps import normalise

pytest.importorskip("fastapi", reason="the page needs normlens[serve]")
pytest.importorskip("uvicorn", reason="the page needs normlens[serve]")
FF = "ATTNRESLNFF-N"
TEXTS = ("She teaches soap opera history.", "He studies soap drama theory.")


@pytest.fixture(scope="module")
def address(minilm):
    command = [sys.executable, "-m", "normlens", "serve", "--model", "minilm", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    # Tests read values through scripts that the page's own policy would refuse.
    context = browser.new_context(viewport={"width": 1300, "height": 900}, bypass_csp=True)
    opened = context.new_page()
    opened.set_default_timeout(120_000)
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    yield opened
    context.close()
    assert problems == []


def difference(page: Any) -> np.ndarray:
    page.wait_for_function(
        "() => document.querySelector('#normlens-page').viewer.views.compare.current !== null"
    )
    rows, columns, values = page.evaluate(
        """() => {
          const heat = document.querySelector('#normlens-page').viewer.views.compare.current;
          return [heat.rows.length, heat.columns.length, [...heat.map]];
        }"""
    )
    return np.array(values).reshape(rows, columns)


def test_two_texts_are_analysed_compared_and_shared(minilm, address, page, tmp_path):
    page.goto(address)
    for number, text in enumerate(TEXTS, start=1):
        page.fill('[data-field="text"]', text)
        page.click('[data-action="analyse"]')
        page.wait_for_selector(f'.normlens[data-busy="false"][data-items="{number}"]')
    page.click('[data-layer="2"]')
    page.click('[data-action="ff-amp"]')
    page.select_option('[data-control="a-item"]', "0")
    page.select_option('[data-control="a-scope"]', FF)
    page.wait_for_selector('.normlens[data-busy="false"][data-view="compare"]')
    first, second = (minilm.maps(text) for text in TEXTS)
    expected = normalise(second[FF][2]) - normalise(first[FF][2])
    np.testing.assert_allclose(difference(page), expected, atol=1e-4)
    shared = page.url
    page.goto("about:blank")
    page.goto(shared)
    page.wait_for_selector('.normlens[data-busy="false"][data-items="2"][data-view="compare"]')
    np.testing.assert_allclose(difference(page), expected, atol=1e-4)
    assert page.url == shared
    with page.expect_download() as download:
        page.click('[data-save="html"]')
    path = tmp_path / "saved.html"
    download.value.save_as(path)
    page.goto(path.as_uri())
    page.wait_for_selector('.normlens[data-busy="false"][data-items="2"][data-view="compare"]')
    np.testing.assert_allclose(difference(page), expected, atol=1e-4)
