"""The exported file in a real browser, from disk, without network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from viewer_examples import hostile_maps

from normlens.measures.maps import normalise, strongest_pairs
from normlens.results.maps import Maps
from normlens.viewer import to_html

FF, LN1 = "ATTNRESLNFF-N", "ATTNRESLN-N"


def map_of(maps: Maps, scope: str, layer: int, axis: str = "none") -> np.ndarray:
    return normalise(maps[scope][layer].astype(float), axis)


@pytest.mark.guard
def test_the_map_is_pythons_map(viewer, soap, soap_html):
    viewer.open(soap_html, "layer=3&scope=FF")
    assert viewer.root("scope") == FF
    assert viewer.root("layer") == "3"
    assert viewer.texts('[data-control="layer"] button') == ["0", "1", "2", "3", "4", "5"]
    np.testing.assert_allclose(viewer.values(), soap["FF"][3], rtol=1e-6)
    shown = soap.tokens
    assert viewer.svg_texts(".row-labels text") == shown
    assert viewer.svg_texts(".column-labels text") == shown
    text = " ".join(viewer.svg_texts('[data-figure="map"] text'))
    assert "source j (input)" in text
    assert "target i (output)" in text
    assert "After feed-forward (behind attention, residual, norm), layer 3" in text
    assert f"{FF} · minilm" in text
    viewer.choose("names", "papers")
    text = " ".join(viewer.svg_texts('[data-figure="map"] text'))
    assert f"{FF}, layer 3" in text
    assert "names=papers" in viewer.page.url
    viewer.open(soap_html, "layer=0&scope=FF")
    assert viewer.root("layer") == "0"
    np.testing.assert_allclose(viewer.values(), soap["FF"][0], rtol=1e-6)


def test_grow(viewer, soap, soap_html):
    viewer.open(soap_html, "layer=1")
    nodes = viewer.page.locator(".chain .node")
    labels = viewer.texts(".chain .component")
    assert labels == [
        *("weights", "attention", "residual", "norm"),
        *("feed-forward", "residual", "norm", "baseline"),
    ]
    scopes = [s for s in soap.scopes if s != "ATTNRES-W"]
    for k in range(1, 7):
        change = float(nodes.nth(k).get_attribute("data-change"))
        expected = 1 - soap.similarity(scopes[k - 1], scopes[k])[1]
        assert change == pytest.approx(expected, abs=1e-6)
        assert f"{expected:.3f}" in nodes.nth(k).inner_text()
    assert viewer.root("scope") == "ATTN-N"
    viewer.click('[data-action="forward"]')
    assert viewer.root("scope") == "ATTNRES-N"
    viewer.click('[data-action="back"]').click('[data-action="back"]')
    assert viewer.root("scope") == "ATTN-W"
    viewer.click(f'.node[data-scope="{FF}"]')
    np.testing.assert_allclose(viewer.values(), soap[FF][1], rtol=1e-6)
    # Playing goes on by itself, and stops when it is told to.
    viewer.page.click('[data-action="play"]')
    viewer.page.wait_for_selector('.normlens[data-scope="ATTNRESLNFFRESLN-N"]')
    viewer.page.wait_for_selector('.normlens[data-layer="2"]')
    viewer.page.click('[data-action="play"]')
    assert viewer.page.get_attribute('[data-action="play"]', "aria-pressed") == "false"


def test_arrow_keys_walk_through_layers_and_components(viewer, soap_html):
    viewer.open(soap_html, "layer=0&scope=ATTN")
    viewer.key("ArrowDown").key("ArrowDown")
    assert viewer.root("layer") == "2"
    viewer.key("ArrowUp").key("ArrowRight")
    assert (viewer.root("layer"), viewer.root("scope")) == ("1", "ATTNRES-N")
    viewer.key("ArrowLeft").key("ArrowLeft").key("ArrowLeft")
    assert (viewer.root("layer"), viewer.root("scope")) == ("0", "ATTNRESLNFFRESLN-N")
    assert "layer=0" in viewer.page.url
    assert "scope=ATTNRESLNFFRESLN-N" in viewer.page.url


def test_the_address_holds_the_state(viewer, soap_html):
    viewer.open(soap_html)
    viewer.click('[data-layer="4"]').choose("scale", "rank").choose("norm", "target")
    viewer.choose("special", "hide").click(".bars li:first-child button")
    before = viewer.values()
    address = viewer.page.url
    viewer.page.goto("about:blank")
    viewer.page.goto(address)
    viewer.settled()
    assert (viewer.root("layer"), viewer.pressed("scale"), viewer.pressed("norm")) == (
        "4",
        "rank",
        "target",
    )
    np.testing.assert_array_equal(viewer.values(), before)
    assert viewer.page.locator(".pair-mark").count() == 2


def test_scales_ranges_and_sums(viewer, soap, soap_html):
    viewer.open(soap_html, "layer=2&scope=FF")
    pictures = {}
    for scale in ("linear", "sqrt", "rank"):
        viewer.choose("scale", scale)
        pictures[scale] = viewer.pixels()
    assert "square-root" not in " ".join(viewer.svg_texts(".scale"))
    assert (pictures["linear"] != pictures["sqrt"]).any()
    assert (pictures["rank"] != pictures["sqrt"]).any()
    values = soap[FF][2]
    # Colours are equal where ranks are: the largest value has viridis' last colour in all of them.
    top = np.unravel_index(values.argmax(), values.shape)
    for picture in pictures.values():
        np.testing.assert_allclose(picture[top], [253, 231, 37], atol=2)
    viewer.choose("scale", "sqrt").choose("norm", "source")
    np.testing.assert_allclose(viewer.values(), map_of(soap, FF, 2, "source"), atol=1e-6)
    np.testing.assert_allclose(viewer.values().sum(axis=0), 1, atol=1e-5)
    viewer.choose("norm", "target")
    np.testing.assert_allclose(viewer.values().sum(axis=1), 1, atol=1e-5)
    viewer.choose("norm", "none").click('.node[data-scope="ATTN-N"]')
    own = viewer.pixels()
    viewer.choose("range", "layer")
    shared = viewer.pixels()
    assert shared.sum() < own.sum()  # the layer's largest norms are elsewhere
    viewer.choose("scale", "rank")
    assert viewer.page.is_disabled('[data-control="range"] button >> nth=0')


def test_special_tokens_and_words(viewer, soap, soap_html):
    viewer.open(soap_html, "layer=3&scope=FF")
    viewer.choose("special", "hide")
    np.testing.assert_allclose(viewer.values(), soap.without_special_tokens()[FF][3], rtol=1e-6)
    viewer.choose("level", "words")
    words = soap.words().without_special_tokens()
    np.testing.assert_allclose(viewer.values(), words[FF][3], rtol=1e-5)
    assert viewer.svg_texts(".row-labels text") == words.tokens
    assert "soapy" in words.tokens
    change = float(viewer.page.get_attribute(f'.node[data-scope="{FF}"]', "data-change"))
    assert change == pytest.approx(1 - words.similarity(LN1, FF)[3], abs=1e-4)
    viewer.choose("special", "show")
    np.testing.assert_allclose(viewer.values(), soap.words()[FF][3], rtol=1e-5)


def test_hover_pin_pair_and_zoom(viewer, soap, soap_html):
    viewer.open(soap_html, "layer=3&scope=FF")
    shown = soap.tokens
    x, y = viewer.cell(3, 2)
    viewer.page.mouse.move(x, y)
    tip = viewer.page.locator(".tooltip").inner_text()
    assert f"source {shown[2]}" in tip
    assert f"target {shown[3]}" in tip
    assert f"{soap[FF][3, 3, 2]:.3g}" in tip
    viewer.page.mouse.click(x, y)
    viewer.settled()
    assert viewer.page.inner_text(".aside h3") == f"{shown[2]} → {shown[3]}"
    shares = [map_of(soap, s, 3, "source")[3, 2] for s in soap.scopes if s != "ATTNRES-W"]
    listed = [float(text.replace("−", "-")) for text in viewer.texts(".aside .value")]
    np.testing.assert_allclose(listed, shares, rtol=6e-3)
    viewer.key("Escape")
    box = viewer.page.locator(".row-labels text").nth(1).bounding_box()
    viewer.page.mouse.click(box["x"] + 2, box["y"] + box["height"] / 2)
    viewer.settled()
    assert viewer.page.inner_text(".aside h3") == f"What {shown[1]} is made of"
    order = np.argsort(-soap[FF][3, 1])
    assert viewer.texts(".aside .name") == [shown[k] for k in order]
    assert "pin=row%3A1" in viewer.page.url
    viewer.key("Escape")
    box = viewer.page.locator(".column-labels text").nth(4).bounding_box()
    viewer.page.mouse.click(box["x"] + 4, box["y"] + box["height"] - 4)
    viewer.settled()
    assert viewer.page.inner_text(".aside h3").startswith("Where ")
    viewer.key("Escape")
    viewer.page.mouse.move(*viewer.cell(1, 1))
    viewer.page.mouse.down()
    viewer.page.mouse.move(*viewer.cell(3, 4))
    viewer.page.mouse.up()
    viewer.settled()
    assert viewer.pixels().shape[:2] == (3, 4)
    viewer.click('[data-action="zoom-out"]')
    assert viewer.pixels().shape[:2] == soap[FF][3].shape


def test_ff_amp_in_one_click(viewer, soap, soap_html):
    viewer.open(soap_html, "layer=2").click('[data-action="ff-amp"]')
    expected = soap.amplification(LN1, FF)[2]
    np.testing.assert_allclose(viewer.values(), expected, atol=1e-6)
    assert "FF-amp, layer 2" in viewer.svg_texts('[data-figure="difference"] text')
    assert f"A: {LN1}, layer 2" in viewer.svg_texts('[data-figure="a"] text')
    rho = float(viewer.page.get_attribute('[data-role="comparison"]', "data-rho"))
    assert rho == pytest.approx(soap.similarity(LN1, FF)[2], abs=1e-6)
    shown = soap.tokens
    for kind, pairs in zip(
        ("amplified", "damped"),
        strongest_pairs(expected, soap.allowed[2], 10, soap.is_same_token),
        strict=True,
    ):
        names = viewer.texts(f'[data-list="{kind}"] .name')
        assert names == [f"{shown[pair.source]} → {shown[pair.target]}" for pair in pairs]
    # Blue is damped, red is amplified.
    pixels = viewer.pixels("difference").astype(int)
    strong = np.abs(expected) > 0.2 * np.abs(expected).max()
    redder = pixels[..., 0] > pixels[..., 2]
    np.testing.assert_array_equal(redder[strong], (expected > 0)[strong])
    assert viewer.page.locator(".pair-mark").count() == 0
    viewer.click('[data-list="amplified"] li:first-child button')
    assert viewer.page.locator('[data-figure="difference"] .pair-mark').count() == 2


def test_two_texts(viewer, minilm, soap, tmp_path):
    other = minilm.maps("He studies soapy drama theory.")
    longer = minilm.maps("This text has quite another number of tokens.")
    path = to_html([soap, other, longer], tmp_path / "both.html")
    viewer.open(path, "view=compare&a=0:1:FF&b=1:1:FF")
    assert len(other.tokens) == len(soap.tokens)
    expected = normalise(other[FF][1]) - normalise(soap[FF][1])
    np.testing.assert_allclose(viewer.values(), expected, atol=1e-6)
    labels = viewer.svg_texts('[data-figure="difference"] .row-labels text')
    assert labels[1] == "she / he"
    viewer.page.select_option('[data-control="b-item"]', "2")
    viewer.settled()
    # Texts of different lengths stand side by side, without a difference.
    said = viewer.page.inner_text('[data-role="comparison"]')
    assert f"A has {len(soap.tokens)} tokens, B has {len(longer.tokens)} tokens" in said
    assert "without a difference" in said
    for name, tokens in (("a", soap.tokens), ("b", longer.tokens)):
        assert viewer.svg_texts(f'[data-figure="{name}"] .row-labels text') == tokens
    assert viewer.page.locator('[data-figure="difference"]').is_hidden()
    assert viewer.page.locator(".lists").is_hidden()
    x, y = cell_of(viewer, "b", 2, 1, len(longer.tokens))
    viewer.page.mouse.move(x, y)
    value = normalise(longer[FF][1])[2, 1]
    assert f"B {value:.3g}" in viewer.page.inner_text(".tooltip")
    table = viewer.save("csv", tmp_path).read_text().splitlines()
    assert len(table) == 1 + len(soap.tokens) ** 2 + len(longer.tokens) ** 2
    assert b"<svg" in viewer.save("svg", tmp_path).read_bytes()


def cell_of(viewer: Any, figure: str, target: int, source: int, n: int) -> tuple[float, float]:
    box = viewer.page.locator(f'[data-figure="{figure}"] canvas').bounding_box()
    return (
        box["x"] + (source + 0.5) * box["width"] / n,
        box["y"] + (target + 0.5) * box["height"] / n,
    )


def test_heads(viewer, minilm, soap, tmp_path):
    maps = minilm.maps(soap.text, heads=True)
    viewer.open(maps.to_html(tmp_path / "heads.html"), "view=heads&layer=2")
    assert viewer.page.locator("[data-head]").count() == 12
    assert viewer.page.locator(".missing").is_hidden()
    captions = viewer.texts("[data-head] .caption:last-child")
    first = viewer.page.locator(".labelled").first
    for axis in ("rows", "columns"):
        assert first.locator(f".names.{axis} span").all_inner_texts() == soap.tokens
    largest = maps.heads["ATTN-N"][2].max(axis=(1, 2))
    assert captions == [f"largest {value:.3g}" for value in largest]
    viewer.click('[data-head="2:3"]')
    assert (viewer.root("view"), viewer.root("scope")) == ("map", "ATTN-N")
    np.testing.assert_allclose(viewer.values(), maps.heads["ATTN-N"][2, 3], rtol=1e-6)
    assert "head 3" in viewer.svg_texts('[data-figure="map"] text')[0]
    assert "head=3" in viewer.page.url
    viewer.page.select_option('[data-control="head"]', "7")
    viewer.settled()
    np.testing.assert_allclose(viewer.values(), maps.heads["ATTN-N"][2, 7], rtol=1e-6)
    assert "head,target" in viewer.save("csv", tmp_path).read_text()
    viewer.choose("level", "words")
    np.testing.assert_allclose(viewer.values(), maps.words().heads["ATTN-N"][2, 7], rtol=1e-5)
    viewer.choose("level", "subwords")
    viewer.page.select_option('[data-control="head"]', "")
    viewer.settled()
    np.testing.assert_allclose(viewer.values(), maps["ATTN-N"][2], rtol=1e-6)
    # Other scopes have no single heads.
    viewer.page.select_option('[data-control="head"]', "7")
    viewer.settled().click(f'.node[data-scope="{FF}"]')
    np.testing.assert_allclose(viewer.values(), maps[FF][2], rtol=1e-6)
    assert not viewer.page.locator('[data-control="head"]').is_visible()
    viewer.choose("view", "heads").choose("heads-of", "ATTN-W").choose("layers", "all")
    assert viewer.page.locator("[data-head]").count() == 6 * 12
    assert viewer.page.locator(".names.columns").count() == 12
    assert viewer.page.locator(".names.rows").count() == 6
    for kind in ("svg", "png", "csv"):
        assert viewer.save(kind, tmp_path).stat().st_size > 10_000
    viewer.click('[data-head="5:11"]')
    np.testing.assert_allclose(viewer.values(), maps.heads["ATTN-W"][5, 11], rtol=1e-6)
    assert viewer.root("layer") == "5"


def test_names_beside_heads_of_a_long_text_do_not_overlap(viewer, minilm, tmp_path):
    maps = minilm.maps(" ".join(["soap"] * 40), layers=[0], heads=True)
    viewer.open(maps.to_html(tmp_path / "long.html"), "view=heads")
    names = viewer.page.locator(".labelled >> nth=0 >> .names.rows span")
    tops = names.evaluate_all("e => e.map((x) => x.getBoundingClientRect().top)")
    assert 5 < len(tops) < len(maps.tokens)
    assert min(np.diff(tops)) >= 10


def test_overview(viewer, soap, soap_html):
    viewer.open(soap_html, "view=overview&layer=1")
    assert viewer.page.locator(".multiples button").count() == 6 * 8
    assert viewer.texts(".multiples .side") == ["0", "1", "2", "3", "4", "5"]
    assert "own clipped square-root scale" in viewer.page.inner_text('[data-role="scale"]')
    assert "Layer 1" in viewer.svg_texts('[data-grid="similarity-layer"] text')
    assert {"0", "5"} <= set(viewer.svg_texts('[data-grid="mixing"] text'))

    def grid(name: str) -> np.ndarray:
        cells = viewer.page.locator(f'[data-grid="{name}"] rect[data-value]')
        return np.array(
            [float(value) for value in cells.evaluate_all("e => e.map((x) => x.dataset.value)")]
        )

    rho = np.array([[soap.similarity(a, b) for b in soap.scopes] for a in soap.scopes])
    np.testing.assert_allclose(grid("similarity-layer"), rho[..., 1].ravel(), atol=1e-6)
    np.testing.assert_allclose(grid("similarity-mean"), rho.mean(axis=-1).ravel(), atol=1e-6)
    viewer.page.select_option('[data-control="mixing-scope"]', "ATTNRESLN-N")
    viewer.settled()
    np.testing.assert_allclose(grid("mixing"), soap.mixing_ratio("LN1").ravel(), atol=1e-6)
    viewer.click(f'[data-open="4:{FF}"]')
    assert (viewer.root("view"), viewer.root("layer"), viewer.root("scope")) == ("map", "4", FF)


def test_take_away(viewer, soap, soap_html, tmp_path):
    import pandas as pd

    viewer.open(soap_html, "layer=3&scope=FF&form=heat")
    figure = viewer.save("svg", tmp_path)
    assert figure.name == f"minilm-{FF}-layer-3.svg"
    text = figure.read_text()
    assert text.count("<rect") > len(soap.tokens) ** 2
    assert "teaches" in text
    assert "completeness" in text
    assert "http" not in text.replace("http://www.w3.org", "")
    picture = viewer.save("png", tmp_path)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    table = pd.read_csv(viewer.save("csv", tmp_path))
    n = len(soap.tokens)
    np.testing.assert_allclose(table["value"].to_numpy().reshape(n, n), soap[FF][3], rtol=1e-6)
    assert set(table["layer"]) == {3}
    page = viewer.save("html", tmp_path)
    viewer.open(page)
    assert (viewer.root("layer"), viewer.root("scope")) == ("3", FF)
    np.testing.assert_allclose(viewer.values(), soap[FF][3], rtol=1e-6)
    for view in ("compare", "overview"):
        viewer.choose("view", view)
        assert b"<svg" in viewer.save("svg", tmp_path).read_bytes()
        assert viewer.save("png", tmp_path).stat().st_size > 10_000
        assert viewer.save("csv", tmp_path).stat().st_size > 1000


def test_tokens_stay_text(viewer, tmp_path):
    alerts: list[str] = []
    viewer.page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    maps = hostile_maps()
    viewer.open(to_html(maps, tmp_path / "hostile.html"))
    labels = viewer.svg_texts(".row-labels text")
    assert labels[0].startswith("<script>alert(1)")
    for view in ("compare", "overview", "map"):
        viewer.choose("view", view)
    viewer.choose("form", "arcs").choose("form", "heat")
    viewer.page.mouse.move(*viewer.cell(0, 1))
    assert maps.tokens[0] in viewer.page.inner_text(".tooltip")
    page = viewer.save("html", tmp_path)
    viewer.open(page)
    found = viewer.page.evaluate(
        """() => {
          const root = document.querySelector('#normlens-page').shadowRoot;
          return [document, root].map((x) => x.querySelectorAll('script, img').length);
        }"""
    )
    assert found == [2, 0]
    assert alerts == []


def test_every_control_has_a_name_and_can_be_reached(viewer, soap_html):
    for view in ("map", "heads", "compare", "overview"):
        viewer.open(soap_html, f"view={view}")
        unnamed = viewer.page.evaluate(
            """() => {
              const root = document.querySelector('#normlens-page').shadowRoot;
              const named = (e) => e.getAttribute('aria-label') || e.textContent.trim() ||
                (e.labels && [...e.labels].some((l) => l.textContent.trim()));
              return [...root.querySelectorAll('button, select, input, textarea, svg[role=img]')]
                .filter((e) => !named(e)).map((e) => e.outerHTML.slice(0, 120));
            }"""
        )
        assert unnamed == []
    viewer.open(soap_html)
    seen = set()
    for _ in range(60):
        viewer.page.keyboard.press("Tab")
        name = viewer.page.evaluate(
            """() => {
              const root = document.querySelector('#normlens-page').shadowRoot;
              const e = root.activeElement;
              return e && (e.dataset.value || e.dataset.layer || e.dataset.scope || e.dataset.save);
            }"""
        )
        seen.add(name)
    assert {"svg", "compare", "3", FF, "clipped", "sqrt", "hide", "words"} <= seen
