"""Explanations and cosines in a real browser: what is shown is what Python computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from picture_examples import classifier, processor, scene
from viewer_examples import hostile_cosine, hostile_explanation

import normlens
from normlens.results.explanation import Explanations

SHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
UNNAMED = """() => {
  const root = document.querySelector('#normlens-page').shadowRoot;
  const named = (e) => e.getAttribute('aria-label') || e.textContent.trim() ||
    (e.labels && [...e.labels].some((l) => l.textContent.trim()));
  return [...root.querySelectorAll('button, select, input, textarea, svg[role=img]')]
    .filter((e) => !named(e)).map((e) => e.outerHTML.slice(0, 120));
}"""


@pytest.fixture(scope="module")
def why():
    return hostile_explanation()


@pytest.fixture(scope="module")
def why_html(why, tmp_path_factory):
    return why.to_html(tmp_path_factory.mktemp("why") / "why.html")


@pytest.fixture(scope="module")
def pair_html(tmp_path_factory):
    return hostile_cosine().to_html(tmp_path_factory.mktemp("pair") / "pair.html")


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", "").replace(",", ""))


# An explanation ----------------------------------------------------------------------------------


def test_tokens_remainder_and_question(viewer, why, why_html):
    viewer.open(why_html)
    assert viewer.texts(".token:not(.rest) .text") == why.tokens
    shares = [number(text) for text in viewer.texts(".token:not(.rest) .share")]
    np.testing.assert_allclose(shares, why.contributions, atol=6e-3, rtol=6e-2)
    assert number(viewer.texts(".token.rest .share")[0]) == pytest.approx(why.remainder, abs=6e-3)
    question = viewer.page.inner_text(".question")
    assert question == "Why '<b>are</b>' and not '␣is' after “is” (5)?"
    facts = viewer.page.inner_text(".facts")
    assert "p = 25.0 %" in facts
    assert "p = 1.0e−4" in facts
    assert "completeness error 3.0e−7 (tolerance 1.0e−5)" in viewer.page.inner_text(".trust")
    # Colours tell the sign, and so does the text.
    grounds = viewer.page.eval_on_selector_all(
        ".token:not(.rest)", "tokens => tokens.map((t) => getComputedStyle(t).backgroundColor)"
    )
    for ground, value in zip(grounds, why.contributions, strict=True):
        red, _, blue = json.loads(f"[{ground[4:-1]}]")
        assert (red > blue) == (value > 0)


def test_edges_are_as_wide_as_what_they_carry(viewer, why, why_html):
    viewer.open(why_html, "share=95")
    edges = viewer.page.evaluate(
        """() => {
          const app = document.querySelector('#normlens-page').viewer;
          const root = document.querySelector('#normlens-page').shadowRoot;
          return [...root.querySelectorAll('[data-edge]')].map((path) => ({
            ...app.drawnFor.drawn.edges[path.dataset.edge], sign: path.dataset.sign,
            width: Number(path.getAttribute('stroke-width')),
          }));
        }"""
    )
    widest = max(edge["width"] for edge in edges)
    largest = max(abs(edge["value"]) for edge in edges)
    for edge in edges:
        value = why.flow[edge["layer"], edge["target"], edge["source"]]
        assert edge["value"] == pytest.approx(value, rel=1e-6)
        assert edge["sign"] == ("plus" if value > 0 else "minus")
        assert edge["width"] == pytest.approx(max(0.7, widest * abs(value) / largest), abs=0.011)
    drawn = sum(abs(edge["value"]) for edge in edges) / np.abs(why.flow).sum()
    note = viewer.page.inner_text(".result > .note")
    assert f"{len(edges)} of {np.count_nonzero(why.flow)} edges are drawn" in note
    assert f"{100 * drawn:.0f} % of all that flows" in note


def test_a_token_shows_its_way_and_arrow_keys_go_on(viewer, why, why_html):
    viewer.open(why_html)
    assert viewer.page.locator("[data-faded]").count() == 0
    viewer.click('.token[data-token="3"]')
    assert "token=3" in viewer.page.url
    assert viewer.page.get_attribute('.token[data-token="3"]', "aria-pressed") == "true"
    faded, strong = (
        viewer.page.locator(f"[data-edge]{which}").count()
        for which in ("[data-faded]", ":not([data-faded])")
    )
    assert faded > 0
    assert strong > 0
    value = viewer.page.inner_text(".aside .pair-value")
    assert number(value.split()[-1]) == pytest.approx(why.contributions[3], rel=6e-3)
    viewer.key("ArrowRight")
    assert viewer.root("token") == "4"
    assert f"{why.tokens[4]}, contributes" in viewer.page.inner_text(".unseen")
    root = "document.querySelector('#normlens-page').shadowRoot"
    assert viewer.page.evaluate(f"() => {root}.activeElement.dataset.token") == "4"
    viewer.key("Escape")
    assert viewer.root("token") == ""
    viewer.click('.row-labels [data-token="2"]')
    assert viewer.root("token") == "2"


def test_components_and_heads(viewer, why, why_html):
    viewer.open(why_html, "view=components&heads=1")
    read = """panel => {
      const root = document.querySelector('#normlens-page').shadowRoot;
      const marks = root.querySelectorAll(`[data-panel="${panel}"] [data-value]`);
      return [...marks].map((mark) => Number(mark.dataset.value));
    }"""
    for place, name in enumerate(["ATTN", "FF"]):
        np.testing.assert_allclose(
            viewer.page.evaluate(read, name), why.components[:, place].sum(-1), rtol=1e-5
        )
    by_layer = why.bias.groupby(level="layer").sum()
    expected = [by_layer[key] for key in (0, 1, 2, "head")]
    np.testing.assert_allclose(viewer.page.evaluate(read, "biases"), expected, rtol=1e-6)
    heads = np.array(viewer.page.evaluate(read, "heads")).reshape(2, 3).T
    np.testing.assert_allclose(heads, why.heads.sum(-1), rtol=1e-5)


def test_everything_can_be_saved(viewer, why, why_html, tmp_path):
    viewer.open(why_html, "token=3")
    for view in ("components", "flow"):
        viewer.choose("view", view)
        figure = viewer.save("svg", tmp_path).read_text()
        assert "no token" in figure
        assert "&lt;b&gt;are" in figure
        assert viewer.save("png", tmp_path).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    table = pd.read_csv(viewer.save("csv", tmp_path))
    own = table[table["layer"] == "contribution"]["value"]
    np.testing.assert_allclose(own.to_numpy(float), why.contributions, rtol=1e-6)
    document = json.loads(viewer.save("json", tmp_path).read_text())
    found = [token["contribution"] for token in document["tokens"]]
    assert sum(found) + document["remainder"] == pytest.approx(document["value"], rel=1e-6)
    viewer.open(viewer.save("html", tmp_path))
    assert viewer.root("token") == "3"
    assert viewer.texts(".token:not(.rest) .text") == why.tokens


# A cosine ----------------------------------------------------------------------------------------


def test_two_texts_with_lines_margins_and_remainder(viewer, pair_html):
    pair = hostile_cosine()
    viewer.open(pair_html)
    assert number(viewer.page.inner_text(".question").split()[-1]) == pytest.approx(
        pair.value, rel=6e-3
    )
    shown = viewer.texts(".token:not(.rest) .text")
    assert shown == [*pair.a.tokens, *pair.b.tokens]
    margins = [number(text) for text in viewer.texts(".token:not(.rest) .share")]
    expected = [*(pair.matrix.sum(1) + pair.a_with_bias), *(pair.matrix.sum(0) + pair.b_with_bias)]
    np.testing.assert_allclose(margins, expected, atol=6e-3)
    assert viewer.texts(".token.rest .text") == list(pair.remainder)
    rest = [number(text) for text in viewer.texts(".token.rest .share")]
    np.testing.assert_allclose(rest, list(pair.remainder.values()), atol=6e-3)
    lines = viewer.page.locator("[data-edge]").count()
    assert f"{lines} of 20 pairs are drawn" in viewer.page.inner_text(".result > .note")
    viewer.click('.side-b [data-token="2"]')
    assert viewer.root("token") == "b:2"
    assert viewer.page.locator("[data-edge]:not([data-faded])").count() <= len(pair.a)
    viewer.key("ArrowLeft")
    assert viewer.root("token") == "b:1"
    viewer.key("ArrowUp")
    assert viewer.root("token") == "a:1"


def test_the_matrix_and_its_files(viewer, pair_html, tmp_path):
    pair = hostile_cosine()
    viewer.open(pair_html, "view=matrix")
    cells = [number(text) for text in viewer.svg_texts(".numbers text")]
    np.testing.assert_allclose(cells[:20], pair.matrix.ravel(), atol=6e-3)
    assert len(cells) == 6 * 5
    box = viewer.page.locator('[data-cells="matrix"]').bounding_box()
    viewer.page.mouse.move(box["x"] + box["width"] * 2.5 / 4, box["y"] + box["height"] * 1.5 / 5)
    tip = viewer.page.inner_text(".tooltip").splitlines()
    assert tip[1] == "B <b> (2)"
    assert number(tip[2]) == pytest.approx(pair.matrix[1, 2], rel=6e-3)
    document = json.loads(viewer.save("json", tmp_path).read_text())
    np.testing.assert_allclose(document["matrix"], pair.matrix, rtol=1e-6)
    table = pd.read_csv(viewer.save("csv", tmp_path))
    assert table["value"].sum() == pytest.approx(pair.value, rel=1e-5)
    assert "<image" in viewer.save("svg", tmp_path).read_text()
    viewer.open(viewer.save("html", tmp_path))
    assert viewer.root("view") == "matrix"


# Both --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [400, 1300])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_fit_their_windows(browser, why_html, pair_html, width, theme):
    """Nothing is wider than the window; pictures for people are in build/screenshots."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    context = browser.new_context(viewport={"width": width, "height": 860}, color_scheme=theme)
    page = context.new_page()
    for path, views in ((why_html, ("flow", "components")), (pair_html, ("lines", "matrix"))):
        for view in views:
            page.goto("about:blank")
            page.goto(f"{path.as_uri()}#view={view}")
            page.wait_for_selector('.normlens[data-busy="false"]')
            assert page.evaluate("() => document.documentElement.scrollWidth") <= width
            page.screenshot(path=SHOTS / f"{view}-{width}-{theme}.png", full_page=True)
    context.close()


# An encoder–decoder's explanations ----------------------------------------------------------------


@pytest.fixture(scope="module")
def translation():
    from pair_examples import fast_tokenizer, with_head

    import normlens

    lens = normlens.load(with_head("bart"), fast_tokenizer())
    made = lens.explain("the house is small", target="la maison est petite", token="all")
    assert isinstance(made, Explanations)
    return made


@pytest.fixture(scope="module")
def translation_html(translation, tmp_path_factory):
    return translation.to_html(tmp_path_factory.mktemp("translation") / "all.html")


def test_both_sequences_are_shown_with_a_line_between_them(viewer, translation, translation_html):
    viewer.open(translation_html, "item=3")
    why = translation[3]
    assert viewer.texts(".sequence") == ["source", "prefix"]
    assert viewer.texts(".token:not(.rest) .text") == [*why.source.tokens, *why.prefix.tokens]
    shares = [number(text) for text in viewer.texts(".token:not(.rest) .share")]
    contributions = why.to_pandas()["contribution"]
    np.testing.assert_allclose(shares, contributions, atol=6e-3, rtol=6e-2)
    sentence = viewer.page.inner_text(".sum")
    assert "from the source" in sentence
    assert "from the prefix" in sentence
    layers = viewer.svg_texts("svg.flow .layers text")
    assert layers == ["enc. 0", "enc. 1", "dec. 0", "dec. 1", "dec. 2"]
    assert viewer.page.eval_on_selector_all("svg.flow [data-between]", "lines => lines.length") == 2
    viewer.choose("view", "components").choose("heads", "1")
    for panel, rows in (("heads", why.heads), ("CROSS heads", why.cross_heads)):
        cells = viewer.page.eval_on_selector_all(
            f'[data-panel="{panel}"] rect[data-head]',
            "cells => cells.map(({dataset: d}) => [d.layer, d.head, d.value].map(Number))",
        )
        found = {(int(layer), int(head)): value for layer, head, value in cells}
        sums = rows.sum(-1)
        expected = {place: value for place, value in np.ndenumerate(sums) if np.isfinite(value)}
        assert found == pytest.approx(expected, abs=1e-5)


def test_shares_of_every_token(viewer, translation, translation_html, tmp_path):
    viewer.open(translation_html, "view=shares")
    table = translation.shares()
    drawn = viewer.page.eval_on_selector_all(
        "svg.shares g[data-item]", "rows => rows.map((row) => Number(row.dataset.sourceShare))"
    )
    np.testing.assert_allclose(drawn, table["source_share"], atol=1e-6)
    written = pd.read_csv(viewer.save("csv", tmp_path))
    np.testing.assert_allclose(written["source_share"], table["source_share"], atol=1e-6)
    assert written["token"].tolist() == translation.predicted
    # A row leads to its token's explanation.
    viewer.click('svg.shares text[data-item="2"]')
    assert f"'{translation[2].target}'" in viewer.page.inner_text(".question")
    assert viewer.page.evaluate(UNNAMED) == []


def test_an_image_is_explained_over_its_picture(viewer, tmp_path):
    why: Any = normlens.load(classifier(), processor()).explain(scene())
    page = viewer.open(why.to_html(tmp_path / "why.html"))
    assert page.root("view") == "picture"
    patches = page.page.locator('[data-figure="picture"] .patch')
    values = [float(patches.nth(k).get_attribute("data-value")) for k in range(patches.count())]
    np.testing.assert_allclose(values, why.grid.of(why.contributions).ravel(), rtol=1e-5)
    assert page.page.locator('[data-figure="picture"] image').count() == 1
    # The row of tokens leaves the patches to the picture.
    assert page.texts(".tokens .token .text") == ["[CLS]", "… 9 tokens", "no token"]
    patches.nth(4).click()
    page.settled()
    assert page.root("token") == str(why.grid.first + 4)
    page.choose("reading", "layers")
    over = [float(patches.nth(k).get_attribute("data-value")) for k in range(patches.count())]
    np.testing.assert_allclose(over, why.grid.of(why.read("layers")).ravel(), rtol=1e-4, atol=1e-6)
    assert page.choose("view", "flow").root("view") == "flow"
