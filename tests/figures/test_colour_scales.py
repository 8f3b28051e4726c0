"""Where colour scales end: outliers and i = j do not stretch the usual one, and are marked."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from one_case import in_one_case
from tidy import assert_tidy, words

import normlens
from normlens import figures
from normlens.errors import InputError
from normlens.figures.colours import SignedColours, clipped_end, scale_end
from normlens.figures.explanations import folded
from normlens.models.tiny import tiny_model
from normlens.results.maps import Maps
from normlens.scopes import resolve

sizes = st.floats(0, 1e6, width=32)
lists = st.integers(1, 300).flatmap(lambda n: arrays(np.float32, n, elements=sizes))


@cache
def tiny_maps(model_type: str) -> Maps:
    maps: Any = normlens.load(tiny_model(model_type)).maps(input_ids=list(range(3, 12)))
    return maps


def with_outlier(maps: Maps, scope: str, place: tuple[int, int], value: float) -> Maps:
    array = maps[scope].copy()
    array[0][place] = value
    return replace(maps, arrays={**maps.arrays, resolve(scope, maps.scopes): array})


def said(figure: Any) -> str:
    """Everything written, as if no line were broken."""
    return " ".join(words(figure).split())


def panel(figure: Any) -> Any:
    return next(axes for axes in figure.axes if axes.images)


@given(lists)
def test_few_values_are_beyond_the_end(values):
    end = clipped_end(values)
    assert 0 <= end <= values.max()
    assert (values > end).sum() <= max(3, len(values) // 50)
    # As many as lie above nine tenths can be beyond it, and no more.
    assert (values > end).sum() <= len(values) - -(-9 * len(values) // 10)
    assert end > 0 or not values.any()


@given(lists, st.floats(1, 1e6, width=32))
def test_an_outlier_does_not_move_the_end(values, times):
    assert clipped_end(values[::-1].copy()) == clipped_end(values)
    if len(values) < 20:
        return
    largest = int(values.argmax())
    end = clipped_end(values)
    further = values.copy()
    further[largest] *= times
    if values[largest] > end:
        assert clipped_end(further) == end


@in_one_case(
    ("values", "end"),
    [
        ([], 0.0),
        ([3.0], 3.0),
        ([0.0] * 99 + [5.0], 5.0),  # nothing but one value: it is all there is to see
        ([1.0] * 19 + [100.0], 4.0),
        ([1.0] * 60 + [100.0] * 4, 100.0),  # four of 64 are more than a few
        ([1.0] * 61 + [100.0] * 3, 4.0),
        # one in fifty
    ],
)
def test_ends_of_the_clipped_scale(values, end):
    assert clipped_end(np.array(values)) == end


def test_the_diagonal_does_not_count_unless_it_is_alone():
    values = np.ma.masked_array(np.diag([5.0, 9.0, 2.0]) + 1)
    same = np.eye(3, dtype=bool)
    assert scale_end(values, same, "clipped") == 1
    assert scale_end(values, same, "sqrt") == scale_end(values, same, "linear") == 10
    assert scale_end(np.ma.masked_where(~same, values), same, "clipped") == 10
    assert scale_end(values * 0, same, "clipped") == 1
    with pytest.raises(InputError, match="colour scale"):
        scale_end(values, same, "log")


def test_what_is_beyond_is_marked_and_nothing_else():
    maps = tiny_maps("bert")
    for draw in (figures.plot_layer, figures.plot_overview):
        figure = draw(maps, 0, "FF")
        image, marked = panel(figure).images
        beyond = maps["FF"][0] > image.norm.vmax
        np.testing.assert_array_equal(~marked.get_array().mask, beyond)
        assert beyond.any()
        end = f"end {image.norm.vmax:.2g}, max {maps['FF'][0].max():.2g}"
        if draw is figures.plot_overview:
            assert panel(figure).texts[0].get_text() == end
        assert len(panel(draw(maps, 0, "FF", colour="sqrt")).images) == 1
    assert len(panel(figures.plot_layer(maps, 0, "ATTN-W", colour="linear")).images) == 1


def test_the_diagonal_can_be_left_out():
    maps = tiny_maps("bert")
    same = np.eye(len(maps.tokens), dtype=bool)
    for draw in (figures.plot_layer, figures.plot_overview):
        figure = draw(maps, 0, "FF", colour="linear", diagonal=False)
        image, grey = panel(figure).images
        np.testing.assert_array_equal(np.ma.getmaskarray(image.get_array()), same)
        np.testing.assert_array_equal(~grey.get_array().mask, same)
        assert image.norm.vmax == maps["FF"][0][~same].max()
        assert "Grey: i = j, left out." in said(figure)
        assert_tidy(figure)
    drawn, ax = plt.subplots()
    maps.plot(0, "FF", diagonal=False, ax=ax)
    np.testing.assert_array_equal(np.ma.getmaskarray(ax.images[0].get_array()), same)
    plt.close(drawn)


def test_numbers_of_both_signs_have_the_scale_of_maps():
    values = np.array([*np.full(20, 0.1), -50.0])
    colours = SignedColours(values)
    assert colours.end == clipped_end(np.abs(values)) == pytest.approx(0.4)
    assert colours.words == "clipped square-root scale up to ±0.4 (1 beyond it, up to 50)"
    assert float(colours.norm(0.1)) == pytest.approx(0.75)  # a square root, from the middle
    assert colours.of(-50.0) == colours.of(-0.4) == colours.palette(0.0)[:3]
    assert SignedColours(values, scale="linear").end == 50


def test_long_texts_fold_runs_of_tokens_that_contribute_next_to_nothing():
    values = np.where(np.arange(1000) % 100 == 50, 1.0, 0.001)
    runs = folded(values, 1.0, 7)
    assert runs[:3] == [(0, 7), (8, 50), (51, 150)]
    assert runs[-1] == (951, 1000)
    hidden = sum(end - first for first, end in runs)
    assert len(values) - hidden == 11
    assert folded(values[:200], 1.0) == []
    # However alike the numbers, about as many fields are left as tokens that are shown.
    assert sum(b - a for a, b in folded(np.linspace(1, 2, 1000), 2.0)) == 800
