"""Maps and explanations laid over the picture that they are of."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from picture_examples import classifier, processor, scene
from tidy import assert_tidy, colour_at, panels, words

import normlens
from normlens.errors import InputError
from normlens.figures.heat_maps import COVER, Panel, draw_patches
from normlens.models.tiny import tiny_model
from normlens.results.axes import PatchGrid


@pytest.fixture(scope="module")
def lens():
    return normlens.load(classifier(), processor())


@pytest.fixture(scope="module")
def maps(lens):
    return lens.maps(scene())


def test_colours_lie_over_the_picture_in_grey():
    black, white = np.zeros((4, 6, 3), np.uint8), np.full((4, 6, 3), 255, np.uint8)
    panel = Panel(np.arange(6.0).reshape(2, 3), Normalize(0, 5), "viridis")
    seen = []
    for picture in (black, white, None):
        axes = Figure().subplots()
        draw_patches(axes, PatchGrid(2, 3, 0, picture), panel)
        seen.append(colour_at(axes, 2.5, 1.5))
    dark, bright, unknown = seen
    yellow = np.array(colormaps["viridis"](1.0)[:3])
    np.testing.assert_allclose(bright, 1 - COVER + COVER * yellow, atol=0.01)
    np.testing.assert_allclose(unknown, bright, atol=0.01)
    assert (dark < bright).all()


@pytest.mark.parametrize("line", [{"target": "2,3"}, {"source": "2,3"}])
def test_one_layer_shows_a_row_or_a_column(maps, line):
    figure = maps.plot_patches(1, "ATTN-N", **line)
    assert_tidy(figure)
    (panel,) = panels(figure)
    (frame,) = {p.get_xy() for p in panel.patches if isinstance(p, Rectangle)}
    assert frame == (2, 1)
    place = maps.tokens.index("2,3")
    array = maps.at("ATTN-N", 1)
    values = array[place] if "target" in line else array[:, place]
    said = words(figure)
    assert f"[CLS] {values[0]:.2g}" in said
    what = "what patch 2,3 receives from each patch"
    assert (what if "target" in line else "what each patch receives from patch 2,3") in said
    assert "ATTN-N" in said
    assert "square-root scale" in said
    patches = maps.grid.of(values)
    np.testing.assert_array_equal(panel.images[1].get_array().data, patches)
    row, column = np.unravel_index(patches.argmax(), patches.shape)
    yellow = colour_at(panel, column + 0.5, row + 0.5)
    assert yellow[0] > yellow[2]  # viridis ends in yellow


def test_all_layers_stand_side_by_side(maps):
    figure = maps.plot_patches()
    assert_tidy(figure)
    assert len(panels(figure)) == 2
    said = words(figure)
    assert "layer 0" in said
    assert "ATTNRESLNFFRES-N: what [CLS] receives" in said
    largest = maps.grid.of(maps.at("ATTNRESLNFFRES-N", 1)[0]).max()
    assert f"max {largest:.2g}" in said
    shared = maps.plot_patches(scale="shared", colour="linear")
    assert_tidy(shared)
    assert "linear scale" in words(shared)
    assert "share" not in words(shared)


def test_what_cannot_be_drawn(maps, lens):
    with pytest.raises(InputError, match="a target or a source, not both"):
        maps.plot_patches(target=0, source=1)
    with pytest.raises(InputError, match="there is no token '9,9'"):
        maps.plot_patches(target="9,9")
    text = normlens.load(tiny_model("bert")).maps(input_ids=[3, 4, 5])
    with pytest.raises(InputError, match="of no picture"):
        text.plot_patches()


def test_an_explanation_lies_over_its_picture(lens):
    why = lens.explain(scene(), target="tabby cat", contrast="dog")
    figure = why.plot()
    assert_tidy(figure)
    said = words(figure)
    assert "why 'tabby cat' and not 'dog'" in said
    assert "read at position 0 ('[CLS]')" in said
    labels = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
    assert {"[CLS]", "1,1", "3,3", "no token (biases)"} <= set(labels)
    (panel,) = panels(figure)
    patches = why.grid.of(why.contributions)
    for place, is_red in ((patches.argmax(), True), (patches.argmin(), False)):
        row, column = divmod(int(place), 3)
        red, _, blue = colour_at(panel, column + 0.5, row + 0.5)
        assert (red > blue) == is_red
