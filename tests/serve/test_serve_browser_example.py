"""The served page in a browser: its example, its comparison, its history, heads, a phone."""

from __future__ import annotations

import pytest
from serving import ON_CPU, Site, watched

from normlens.serve.analyses import TEXT, Limits, ServedModels

SHOWN = '.normlens[data-busy="false"][data-items="{}"]'
# The contrast of a button's text with its ground, after WCAG 2.
CONTRAST = """(button) => {
  const light = (colour) => {
    const channels = colour.match(/[\\d.]+/g).slice(0, 3).map((each) => {
      const c = Number(each) / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2];
  };
  const style = getComputedStyle(button);
  const [a, b] = [light(style.color), light(style.backgroundColor)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""


@pytest.fixture(scope="module")
def opened(folder, decoder):
    models = ServedModels([folder, decoder], Limits(), loading=ON_CPU)
    with Site(models, example=True) as running:
        yield running


@pytest.fixture
def example(opened, page):
    """The page as it opens, with its example."""
    page.goto(opened.url)
    page.wait_for_selector(SHOWN.format(1))
    return page


def test_the_page_opens_on_an_example_and_says_so(example):
    assert example.locator('[data-field="text"]').input_value() == TEXT
    note = example.locator('[data-role="example"]')
    assert note.is_visible()
    assert note.inner_text().startswith("An example: how one layer")
    example.fill('[data-field="text"]', "the cat sat")
    example.click('[data-action="analyse"]')
    example.wait_for_selector(SHOWN.format(2))
    assert note.is_hidden()


def test_two_texts_are_compared_with_one_press(example):
    complaints = watched(example)
    example.click('[data-action="beside"]')
    example.fill('[data-field="text"]', "the cat sat")
    example.fill('[data-field="second"]', "a cat sat")
    example.click('[data-action="analyse"]')
    example.wait_for_selector(SHOWN.format(3) + '[data-view="compare"]')
    shown = [example.locator(f'[data-control="{side}-item"]').input_value() for side in "ab"]
    assert shown == ["1", "2"]
    address = example.url
    example.goto("about:blank")
    example.goto(address)
    example.wait_for_selector(SHOWN.format(2) + '[data-view="compare"]')
    assert complaints == []


def test_the_history_outlives_a_reload(example):
    example.fill('[data-field="text"]', "the cat sat")
    example.press('[data-field="text"]', "Enter")
    example.wait_for_selector(SHOWN.format(2))
    example.reload()
    example.wait_for_selector(SHOWN.format(1))
    entries = example.locator('[data-role="history"] button')
    assert entries.all_text_contents()[0].startswith("the cat sat")
    example.click('[data-role="history"] summary')
    entries.filter(has_text=TEXT).click()
    example.wait_for_selector(SHOWN.format(2))
    assert example.locator('[data-field="text"]').input_value() == TEXT
    assert example.locator('[data-role="example"]').is_visible()


def test_heads_are_computed_on_request(example):
    example.click('[data-control="view"] [data-value="heads"]')
    example.click('[data-action="heads"]')
    example.wait_for_selector('[data-head="0:1"]')
    assert "with_heads=1" in example.url
    example.wait_for_selector(SHOWN.format(1))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_button_is_readable_under_the_pointer(scheme, opened, browser):
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto(opened.url)
    page.wait_for_selector(SHOWN.format(1))
    button = page.locator('[data-action="analyse"]')
    button.hover()
    assert button.evaluate(CONTRAST) >= 4.5
    context.close()


def test_on_a_phone_the_map_is_in_the_first_screen(opened, browser):
    context = browser.new_context(viewport={"width": 390, "height": 844}, bypass_csp=True)
    page = context.new_page()
    page.goto(opened.url)
    page.wait_for_selector(SHOWN.format(1) + '[data-narrow="true"]')
    box = page.locator(".figure canvas").first.bounding_box()
    assert box["y"] + box["height"] <= 844
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    model = page.locator('[data-control="model"]')
    assert model.is_hidden()
    page.click('[data-action="options"]')
    assert model.is_visible()
    context.close()
