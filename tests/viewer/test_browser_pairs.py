"""A translation in a real browser: two token axes, two stacks, either group of columns hidden."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from normlens.measures.maps import normalise

CROSS, BOTH = "ATTNRESLNCROSS-N", "ATTNRESLNCROSSRES-N"


@pytest.fixture(scope="module")
def path(translated, tmp_path_factory):
    return translated.to_html(tmp_path_factory.mktemp("pairs") / "translation.html")


def rows(viewer: Any) -> list[str]:
    return viewer.svg_texts(".row-labels text")


def columns(viewer: Any) -> list[str]:
    return viewer.svg_texts(".column-labels text")


def group_names(viewer: Any) -> list[str]:
    return viewer.svg_texts(".group-name")


def test_two_axes_a_dividing_line_and_either_group_hidden(viewer, path, translated):
    encoder = translated.source_sequences.count("encoder")
    viewer.open(path, "layer=1")
    assert viewer.root("scope") == BOTH  # the first that has parts of both sequences
    assert rows(viewer) == translated.tokens
    assert columns(viewer) == translated.source_tokens
    assert group_names(viewer) == ["encoder", "decoder"]
    divider = viewer.page.locator('[data-figure="map"] .divider')
    assert divider.get_attribute("data-column") == str(encoder)
    # The line stands where the last of the encoder's columns ends.
    box = viewer.page.locator('[data-figure="map"] canvas').bounding_box()
    expected = box["x"] + box["width"] * encoder / len(translated.source_tokens)
    assert divider.bounding_box()["x"] == pytest.approx(expected, abs=2)
    np.testing.assert_allclose(viewer.values(), translated[BOTH][1], rtol=1e-6)
    for group in ("encoder", "decoder"):
        viewer.choose("sources", group)
        alone = translated.sources_of(group)
        assert columns(viewer) == alone.source_tokens
        assert rows(viewer) == translated.tokens
        np.testing.assert_allclose(viewer.values(), alone[BOTH][1], rtol=1e-6)
        assert group_names(viewer) == [group]
        assert divider.count() == 0
        assert f"sources={group}" in viewer.page.url
    viewer.choose("sources", "both").choose("special", "hide").choose("level", "words")
    words = translated.words().without_special_tokens()
    assert (rows(viewer), columns(viewer)) == (words.tokens, words.source_tokens)
    np.testing.assert_allclose(viewer.values(), words[BOTH][1], rtol=1e-5)


def test_a_cell_of_cross_attention_is_pythons(viewer, path, translated):
    viewer.open(path, "layer=1&scope=CROSS-N")
    assert viewer.root("scope") == CROSS
    np.testing.assert_allclose(viewer.values(), translated["CROSS-N"][1], rtol=1e-6)
    viewer.page.mouse.move(*viewer.cell(3, 2))
    tip = viewer.page.inner_text(".tooltip")
    assert f"source encoder: {translated.source_tokens[2]} (2)" in tip
    assert f"target decoder: {translated.tokens[3]} (3)" in tip
    assert f"{translated['CROSS-N'][1, 3, 2]:.3g}" in tip
    # The decoder's tokens are no sources of CROSS: they are blank, and not zeros.
    encoder = translated.source_sequences.count("encoder")
    viewer.page.mouse.move(*viewer.cell(3, encoder + 1))
    tip = viewer.page.inner_text(".tooltip")
    assert f"source decoder: {translated.source_tokens[encoder + 1]} (1)" in tip
    assert "not a source of this scope" in tip
    viewer.page.mouse.move(*viewer.cell(0, len(translated.source_tokens) - 1))
    assert "no attention" in viewer.page.inner_text(".tooltip")
    viewer.page.mouse.move(2, 2)
    assert (viewer.pixels()[:, encoder:] == [239, 240, 243]).all()
    viewer.page.mouse.click(*viewer.cell(3, 2))
    viewer.settled()
    heading = f"encoder: {translated.source_tokens[2]} → {translated.tokens[3]}"
    assert viewer.page.inner_text(".aside h3") == heading
    names = viewer.texts(".aside .name")
    assert names[:2] == ["CROSS-W", "CROSS"]
    assert "ATTN" not in names
    share = normalise(translated["CROSS-N"][1].astype(float), "source")[3, 2]
    listed = float(viewer.texts(".aside .value")[1].replace("−", "-"))
    assert listed == pytest.approx(share, rel=6e-3)


def test_the_encoders_own_maps_are_in_the_same_page(viewer, path, translated):
    assert translated.encoder is not None
    viewer.open(path, "layer=1&scope=FF")
    viewer.choose("stack", "encoder")
    encoder = translated.encoder
    assert (viewer.root("stack"), viewer.root("layer")) == ("encoder", "1")
    assert viewer.root("scope") == "ATTNRESLNFF-N"  # the same component
    np.testing.assert_allclose(viewer.values(), encoder["FF"][1], rtol=1e-6)
    assert rows(viewer) == columns(viewer) == encoder.tokens
    assert viewer.page.is_hidden('[data-control="sources"]')
    assert "encoder layer 1" in " ".join(viewer.svg_texts('[data-figure="map"] text'))
    address = viewer.page.url
    assert "stack=encoder" in address
    viewer.page.goto("about:blank")
    viewer.page.goto(address)
    viewer.settled()
    np.testing.assert_allclose(viewer.values(), encoder["FF"][1], rtol=1e-6)
    viewer.key("ArrowUp")
    assert (viewer.root("stack"), viewer.root("layer")) == ("encoder", "0")
    viewer.choose("view", "compare").choose("stack", "decoder")
    assert viewer.root("stack") == "decoder"
    assert "A: ATTNRESLNCROSSRESLN-N, decoder layer 0" in viewer.svg_texts('[data-figure="a"] text')
    # A map of the encoder beside one of the decoder: other tokens, so no difference.
    viewer.page.select_option('[data-control="a-stack"]', "encoder")
    viewer.settled()
    assert "without a difference" in viewer.page.inner_text('[data-role="comparison"]')
    assert viewer.page.locator('[data-figure="difference"]').is_hidden()
    assert viewer.svg_texts('[data-figure="a"] .row-labels text') == encoder.tokens


def test_keys_pins_and_files(viewer, path, translated, tmp_path):
    encoder = translated.source_sequences.count("encoder")
    viewer.open(path, f"layer=1&pin=column:{encoder + 2}")
    name = f"decoder: {translated.source_tokens[encoder + 2]}"
    assert viewer.page.inner_text(".aside h3") == f"Where {name} goes"
    viewer.key("Escape")
    for key in ("Shift+ArrowDown", "Shift+ArrowDown", "Shift+ArrowRight"):
        viewer.page.keyboard.press(key)
    said = viewer.page.locator('[role="status"].unseen').text_content()
    assert f"encoder: {translated.source_tokens[1]}" in said
    assert f"{translated[BOTH][1, 1, 1]:.3g}" in said
    viewer.key("r")
    assert "pin=row%3A1" in viewer.page.url
    made_of = viewer.texts(".aside .name")
    assert any(label.startswith("encoder: ") for label in made_of)
    assert any(label.startswith("decoder: ") for label in made_of)
    viewer.key("Escape")
    figure = viewer.save("svg", tmp_path)
    assert figure.name.endswith(f"-decoder-{BOTH}-layer-1.svg")
    text = figure.read_text()
    assert 'class="divider"' in text
    assert text.index('class="cells"') < text.index('class="divider"')  # in front of the cells
    assert viewer.save("png", tmp_path).read_bytes()[:4] == b"\x89PNG"
    table = pd.read_csv(viewer.save("csv", tmp_path), keep_default_na=False)
    shape = translated[BOTH][1].shape
    values = table["value"].to_numpy().reshape(shape)
    np.testing.assert_allclose(values, translated[BOTH][1], rtol=1e-6)
    assert list(table["source_sequence"][: shape[1]]) == translated.source_sequences
    frame = translated.to_pandas().query(f"stack == 'decoder' and scope == '{BOTH}' and layer == 1")
    assert list(table) == list(frame)
    for name in ("stack", "target", "target_token", "source", "source_sequence", "source_token"):
        assert list(table[name]) == list(frame[name])
    page = viewer.save("html", tmp_path)
    viewer.open(page, "stack=encoder&layer=0&scope=ATTN")
    assert translated.encoder is not None
    np.testing.assert_allclose(viewer.values(), translated.encoder["ATTN"][0], rtol=1e-6)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(browser, path, theme):
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=theme)
    page = context.new_page()
    for state in ("", "form=arcs", "view=compare", "view=overview", "stack=encoder"):
        page.goto("about:blank")
        page.goto(f"{path.as_uri()}#{state}")
        page.wait_for_selector('.normlens[data-busy="false"]')
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, state
        unnamed = page.evaluate(
            """() => {
              const root = document.querySelector('#normlens-page').shadowRoot;
              const named = (e) => e.getAttribute('aria-label') || e.textContent.trim() ||
                (e.labels && [...e.labels].some((l) => l.textContent.trim()));
              return [...root.querySelectorAll('button, select')].filter((e) => !named(e)).length;
            }"""
        )
        assert unnamed == 0
    context.close()
