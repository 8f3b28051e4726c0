"""Captions that are read to their end, right-to-left tokens, and narrow pages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from viewer_examples import hostile_maps

from normlens.results.maps import Maps
from normlens.viewer import to_html

HEBREW = ["שלום", "עולם", "טוב", "מאוד"]
LONG = "一个没有空格的很长的句子" * 12
# Where texts of a saved figure end, beside its size.
ENDS = """async (source) => {
  const box = document.createElement("div");
  box.innerHTML = source.slice(source.indexOf("<svg"));
  document.body.append(box);
  const figure = box.firstElementChild;
  const all = [...figure.querySelectorAll("text.caption")];
  const outer = figure.getBoundingClientRect();
  const ends = all.map((text) => text.getBoundingClientRect());
  const result = {
    count: all.length,
    text: all.map((text) => text.textContent).join(" "),
    right: outer.right - Math.max(...ends.map((end) => end.right)),
    bottom: outer.bottom - Math.max(...ends.map((end) => end.bottom)),
  };
  box.remove();
  return result;
}"""


def with_heads(maps: Maps) -> Maps:
    return replace(maps, heads={"ATTN-N": np.stack([maps["ATTN-N"]] * 2, axis=1)})


@pytest.fixture
def two_texts(tmp_path):
    first = with_heads(replace(hostile_maps(), text=LONG))
    second = replace(hostile_maps(), text="a much shorter text")
    return to_html([first, second], tmp_path / "two.html")


@pytest.mark.parametrize(
    "state", ["", "form=arcs", "view=heads", "view=overview", "view=compare&a=0:0:FF&b=1:0:FF"]
)
def test_a_saved_caption_is_inside_its_figure(state, viewer, two_texts, tmp_path):
    viewer.open(two_texts, state)
    found = viewer.page.evaluate(ENDS, viewer.save("svg", tmp_path).read_text())
    assert found["count"] >= 1
    assert found["right"] >= 0
    assert found["bottom"] >= 0
    assert "completeness error 2.0e−6" in found["text"].replace("-6", "−6")
    # Of a comparison, both sides are named.
    assert ("a much shorter text" in found["text"]) == ("compare" in state)


@pytest.fixture
def hebrew(tmp_path):
    maps = replace(hostile_maps(), raw_tokens=HEBREW, text=" ".join(HEBREW))
    return maps.to_html(tmp_path / "hebrew.html")


def test_the_arrow_points_from_source_to_target(viewer, hebrew):
    viewer.open(hebrew)
    name = viewer.page.locator(".aside .bars .name").first
    source, target = name.locator("bdi").all_text_contents()
    assert name.text_content() == f"{source} → {target}"
    first, second = (name.locator("bdi").nth(k).bounding_box()["x"] for k in (0, 1))
    assert first < second  # in Hebrew's own order the arrow would point at the source
    viewer.page.mouse.move(*viewer.cell(1, 2))
    tip = viewer.texts(".tooltip")[0]
    assert f"\u2068{HEBREW[2]}\u2069 (2)" in tip
