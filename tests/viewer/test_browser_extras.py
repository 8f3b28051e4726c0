"""A picture's patches and a text's experts in a real browser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from picture_examples import classifier, processor, scene

import normlens
from normlens.figures.colours import beyond_colour, clipped_end

LARGEST = "#fde725"  # the last colour of viridis


def shown(viewer: Any) -> dict[str, float]:
    """The value that lies over each patch."""
    patches = viewer.page.locator(".patch").evaluate_all(
        "e => e.map((x) => [x.dataset.patch, Number(x.dataset.value)])"
    )
    return dict(patches)


def chosen(viewer: Any) -> str | None:
    return viewer.page.get_attribute(".chosen", "data-patch")


def test_a_line_of_the_map_lies_over_the_picture(viewer, tmp_path):
    pytest.importorskip("PIL.Image")
    maps = normlens.load(classifier(), processor()).maps(scene())
    assert maps.grid is not None
    patches = maps.grid.labels()
    scope = "ATTNRES-N"
    path = maps.to_html(tmp_path / "scene.html")
    viewer.open(path, f"layer=1&scope={scope}")

    def expect(line: Any) -> None:
        found = shown(viewer)
        assert list(found) == patches
        np.testing.assert_allclose(list(found.values()), line[1:], rtol=1e-6)

    assert viewer.root("view") == "picture"  # what images show first: what [CLS] receives
    expect(maps[scope][1, 0])
    assert viewer.page.locator('[data-figure="picture"] image').count() == 1
    assert viewer.page.locator(".chosen").count() == 0
    viewer.click('.patch[data-patch="2,3"]')
    assert (chosen(viewer), "pin=row%3A6" in viewer.page.url) == ("2,3", True)
    expect(maps[scope][1, 6])
    # Colours end at the largest of the other patches, as in Python; what a patch keeps is beyond.
    others = {name: value for name, value in shown(viewer).items() if name != "2,3"}
    top = max(others, key=lambda name: others[name])
    fills = {name: viewer.page.get_attribute(f'[data-patch="{name}"]', "fill") for name in others}
    assert [name for name, fill in fills.items() if fill == LARGEST] == [top]
    end = clipped_end(np.array(list(others.values())))
    assert max(others.values()) == pytest.approx(end)
    own = viewer.page.get_attribute('.patch[data-patch="2,3"]', "fill")
    assert own == beyond_colour("viridis")
    said = " ".join(viewer.svg_texts(".scale"))
    assert f"clipped square-root scale up to {end:.3g}" in said
    assert "beyond it, red: the outlined patch itself" in said
    viewer.choose("diagonal", "hide")
    assert viewer.page.get_attribute('.patch[data-patch="2,3"]', "fill") != own
    assert "beyond" not in " ".join(viewer.svg_texts(".scale"))
    viewer.choose("diagonal", "show")
    viewer.choose("direction", "column")
    expect(maps[scope][1, :, 6])
    assert viewer.svg_texts(".what") == ["what each patch receives from patch 2,3"]
    viewer.page.hover('.patch[data-patch="1,2"]')
    tip = viewer.page.inner_text(".tooltip")
    assert "target patch 1,2" in tip
    assert f"{maps[scope][1, 2, 6]:.3g}" in tip
    viewer.click('.patch[data-patch="2,3"]')  # the keyboard follows a click; the picture ends above
    viewer.key("ArrowUp").key("ArrowLeft").key("ArrowUp")
    assert chosen(viewer) == "1,2"
    expect(maps[scope][1, :, 2])
    table = pd.read_csv(viewer.save("csv", tmp_path))
    np.testing.assert_allclose(table["value"], maps[scope][1, :, 2], rtol=1e-6)
    assert list(table["patch_row"].dropna()) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    figure = viewer.save("svg", tmp_path)
    assert figure.name.endswith("layer-1-column-1_2.svg")
    text = figure.read_text()
    assert text.count("data-patch=") == 10
    assert "data:image/png" in text
    viewer.click('.token[data-token="0"]').choose("special", "hide")
    assert viewer.page.locator(".token").count() == 0
    viewer.open(path, "layer=1&scope=FF&direction=column&norm=target")
    expect((maps["FF"] / maps["FF"].sum(-1, keepdims=True))[1, :, 0])
    viewer.choose("view", "map")
    assert viewer.values().shape == (10, 10)
    unknown = replace(maps, grid=replace(maps.grid, picture=None))
    viewer.open(unknown.to_html(tmp_path / "unknown.html"), "layer=1&pin=row:1")
    expect(maps["ATTN-N"][1, 1])
    assert viewer.page.locator('[data-figure="picture"] image').count() == 0


def test_experts_of_each_token(viewer, tiny, tmp_path):
    maps = normlens.load(tiny("qwen2_moe", torch.float32)).maps(input_ids=[3, 9, 27, 14, 5])
    assert maps.routing is not None
    viewer.open(maps.to_html(tmp_path / "experts.html"), "layer=0")
    row = viewer.page.locator(".routing")
    assert not row.is_visible()  # this layer has no experts
    viewer.click('[data-layer="1"]')
    assert row.locator(".label").inner_text() == (
        "Experts of layer 1: each token uses 2 of 5 and a shared one"
    )
    expected = []
    for _, used in maps.routing.to_pandas().groupby("position"):
        numbers = [
            f"{name if name == 'shared' else f'e{name}'} {weight:.{2 if weight >= 0.1 else 3}f}"
            for name, weight in zip(used["expert"], used["weight"], strict=True)
        ]
        expected.append(" · ".join(numbers))
    assert viewer.texts(".expert-token .weights") == expected
    assert viewer.texts(".expert-token .text") == maps.tokens
    viewer.click(".routing [role=listitem]:nth-child(3) button")
    assert "pin=row%3A2" in viewer.page.url
    assert viewer.texts('.expert-token[aria-pressed="true"] .text') == [maps.tokens[2]]
    viewer.choose("view", "overview")
    assert not row.is_visible()
