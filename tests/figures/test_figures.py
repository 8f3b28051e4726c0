"""Pictures: what they show is the maps' numbers, and nothing in them overlaps or is cut off."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from one_case import in_one_case
from tidy import assert_tidy, panels, shown, words

import normlens
from normlens import figures
from normlens.errors import InputError
from normlens.figures import canvas
from normlens.figures.colours import clipped_end
from normlens.models.tiny import tiny_model
from normlens.results.axes import readable_tokens
from normlens.scopes import consecutive

pytest.importorskip("matplotlib")
TEXT = "She teaches soap opera history."


@cache
def tiny_maps(model_type: str, n: int) -> normlens.Maps:
    model = tiny_model(model_type, max_position_embeddings=80)
    maps: Any = normlens.load(model).maps(input_ids=[3 + k % 60 for k in range(n)])
    return replace(maps, text=TEXT)


@pytest.fixture(scope="module")
def bert():
    return tiny_maps("bert", 7)


@pytest.fixture(scope="module")
def second_layer(bert):
    return figures.plot_layer(bert, 1)


@pytest.fixture(scope="module")
def llama():
    return tiny_maps("llama", 6)


# One layer ---------------------------------------------------------------------------------------


def test_layer_has_one_panel_per_scope_with_its_numbers(bert, second_layer):
    assert [axes.get_title(loc="left") for axes in panels(second_layer)] == bert.scopes
    for axes, scope in zip(panels(second_layer), bert.scopes, strict=True):
        np.testing.assert_array_equal(shown(axes), bert[scope][1])


def test_layer_says_what_it_shows(bert, second_layer):
    written = words(second_layer)
    assert "BertModel, layer 1" in written.splitlines()
    assert TEXT in written
    assert f"completeness {bert.completeness:.1e}" in written
    assert "float32" in written
    assert "rule ig" in written


def test_axes_are_labelled_at_the_edges(bert, second_layer):
    first, last = panels(second_layer)[0], panels(second_layer)[-1]
    assert first.get_ylabel() == "target i (output)"
    assert last.get_xlabel() == "source j (input)"
    assert [t.get_text() for t in first.get_yticklabels()] == bert.tokens
    assert [t.get_text() for t in last.get_xticklabels()] == bert.tokens
    assert list(first.get_yticks()) == list(range(len(bert.tokens)))


def test_pairs_that_attention_forbids_stay_blank(llama):
    above = np.triu(np.ones((6, 6), dtype=bool), k=1)
    for figure in (
        figures.plot_layer(llama, 1, ["ATTN-W", "FF"]),
        figures.plot_overview(llama, scopes=["ATTN-N", "RES2"]),
        figures.plot_amplification(llama, "LN", "FF", 1, diagonal=True),
    ):
        for axes in panels(figure):
            np.testing.assert_array_equal(np.ma.getmaskarray(shown(axes)), above)
            assert axes.images[0].get_cmap().get_bad()[3] == 0


def test_scale_of_each_map_or_of_all(bert, second_layer):
    own = [axes.images[0].norm.vmax for axes in panels(second_layer)]
    others = ~np.eye(len(bert.tokens), dtype=bool)
    ends = [clipped_end(bert[scope][1][others]) for scope in bert.scopes]
    np.testing.assert_array_equal(own, ends)
    whole = figures.plot_layer(bert, 1, colour="sqrt")
    largest = [bert[scope][1].max() for scope in bert.scopes]
    np.testing.assert_allclose([axes.images[0].norm.vmax for axes in panels(whole)], largest)
    shared = figures.plot_layer(bert, scale="shared", colour="sqrt")
    tops = dict(zip(bert.scopes, [a.images[0].norm.vmax for a in panels(shared)], strict=True))
    norms = [scope for scope in bert.scopes if scope.endswith("-N")]
    assert {tops[scope] for scope in norms} == {max(bert[scope][0].max() for scope in norms)}
    assert tops["ATTN-W"] == tops["ATTNRES-W"] <= 1
    assert all(axes.images[0].norm.vmin == 0 for axes in panels(shared))


@in_one_case(("normalise", "axis"), [("source", 0), ("target", 1)])
def test_normalised_maps_sum_to_one(llama, normalise, axis):
    for axes in panels(figures.plot_layer(llama, 0, ["ATTN-N", "FF"], normalise=normalise)):
        np.testing.assert_allclose(shown(axes).sum(axis=axis), 1, rtol=1e-5)


def test_colour_scales(bert):
    for colour, middle in (("linear", 0.25), ("sqrt", 0.5), ("clipped", 0.5)):
        figure = figures.plot_layer(bert, scopes="FF", colour=colour)
        norm = panels(figure)[0].images[0].norm
        assert norm(norm.vmax / 4) == pytest.approx(middle)
    assert "square-root" in words(figure)


@in_one_case(
    "options",
    [
        {"scale": "row"},
        {"normalise": "rows"},
        {"colour": "log"},
        {"cmap": "greenish"},
        {"max_label": 0},
        {"scopes": []},
    ],
)
def test_wrong_options_are_named(bert, options):
    with pytest.raises(InputError):
        figures.plot_layer(bert, **options)


# Layout and labels -------------------------------------------------------------------------------


@in_one_case("n", [1, 8, 64])
def test_nothing_overlaps_at_any_length(n):
    maps = tiny_maps("bert", n)
    maps = replace(maps, raw_tokens=["unbelievable"[: 1 + k % 12] for k in range(n)], text=TEXT * 9)
    assert_tidy(figures.plot_layer(maps, 1, ["ATTN-W", "FF"]))
    assert_tidy(figures.plot_overview(maps, scopes=["ATTN-W", "LN2"]))
    assert_tidy(figures.plot_amplification(maps, "LN1", "FF", 1, top=0))


def test_long_sequences_label_some_tokens_and_say_so():
    figure = figures.plot_layer(tiny_maps("bert", 64), scopes="FF")
    axes = panels(figure)[0]
    assert 16 <= len(axes.get_xticklabels()) < 64
    assert "token is labelled" in words(figure)
    positions = [int(tick) for tick in axes.get_xticks()]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == [str(3 + k % 60) for k in positions]


def test_odd_tokens_are_shown_as_they_are(bert):
    odd = ["$x_1$", "_", "<script>", "日本", "😀", "\n", "a" * 40]
    maps = replace(bert, raw_tokens=odd, text="$\\frac{1}{ <b>日本</b> _x_")
    figure = figures.plot_layer(maps, scopes="FF")
    figure.canvas.draw()  # a character without a glyph, or mathtext, would warn or raise here
    labels = panels(figure)[0].get_yticklabels()
    assert [label.get_text() for label in labels[:3]] == odd[:3]
    assert not any(label.get_parse_math() for label in labels)
    assert labels[5].get_text() == "↵"
    assert labels[6].get_text() == "a" * 13 + "…"


@in_one_case(
    ("tokens", "expected"),
    [
        (["She", "Ġteaches", "Ċ"], ["She", "␣teaches", "↵"]),
        (["Caf", "Ã©", "Ġx"], ["Caf", "é", "␣x"]),
        (["Ġ", "æĹ", "¥"], ["␣", "日₁", "日₂"]),
        (["Ġ", "æĹ"], ["␣", "\\xe6\\x97"]),
        (["▁soap", "<0x0A>", "café"], ["␣soap", "<0x0A>", "café"]),
        (["[CLS]", "naïve", "##s", "日"], ["[CLS]", "naïve", "##s", "日"]),
        (["a\tb", "", "\x07"], ["a⇥b", "∅", "\\u0007"]),
    ],
)
def test_readable_tokens(tokens, expected):
    assert readable_tokens(tokens) == expected


# The other pictures ------------------------------------------------------------------------------


def test_overview_has_layers_as_rows_and_scopes_as_columns(bert):
    figure = figures.plot_overview(bert)
    grid = panels(figure)
    assert len(grid) == len(bert.layers) * len(bert.scopes)
    assert [axes.get_title(loc="left") for axes in grid[: len(bert.scopes)]] == bert.scopes
    for number, axes in enumerate(grid):
        layer, scope = divmod(number, len(bert.scopes))
        np.testing.assert_array_equal(shown(axes), bert[bert.scopes[scope]][layer])
    assert {"layer 0", "layer 1"} <= set(words(figure).splitlines())
    assert "layers 0–1" in words(figure)


def test_amplification_is_signed_and_symmetric(bert):
    difference = bert.amplification("LN1", "FF")[1]
    full = panels(figures.plot_amplification(bert, "LN1", "FF", 1, diagonal=True))[0]
    np.testing.assert_array_equal(shown(full), difference)
    norm = full.images[0].norm
    assert norm.vmax == -norm.vmin == np.abs(difference).max()
    without = shown(panels(figures.plot_amplification(bert, "LN1", "FF", 1))[0])
    np.testing.assert_array_equal(np.ma.getmaskarray(without), np.eye(len(bert.tokens), dtype=bool))


def test_amplification_marks_and_lists_the_strongest_pairs(bert):
    figure = figures.plot_amplification(bert, "LN1", "FF", 1, top=3)
    difference = bert.amplification("LN1", "FF")[1]
    np.fill_diagonal(difference, 0)
    target, source = np.unravel_index(np.argmax(difference), difference.shape)
    marks = {text.get_text(): text.xy for text in panels(figure)[0].texts if text.get_text()}
    assert marks["1"] == (source, target)
    weakened = np.count_nonzero(difference < 0)
    assert set(marks) == {"1", "2", "3", *"abc"[:weakened]}
    assert f"{bert.tokens[source]} → {bert.tokens[target]}" in words(figure)
    assert f"+{difference.max():.3f}" in words(figure)
    assert "layer 1" in words(figure)


def test_similarity_draws_rho_over_layers(bert):
    figure = figures.plot_similarity(bert)
    axes = figure.axes[0]
    steps = consecutive(bert.scopes)
    assert [name for name, _, _ in steps] == ["ATTN", "RES1", "LN1", "FF", "RES2", "LN2"]
    assert len(axes.lines) == len(steps)
    for line, (name, before, after) in zip(axes.lines, steps, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), [0, 1])
        np.testing.assert_array_equal(line.get_ydata(), bert.similarity(before, after))
        assert line.get_label() == f"{name}:  {before} → {after}"
    assert axes.get_xlabel() == "layer"
    assert axes.get_ylabel() == "Spearman's ρ"
    low, high = axes.get_ylim()
    assert high == 1
    assert low <= min(line.get_ydata().min() for line in axes.lines)


# Surroundings ------------------------------------------------------------------------------------


def test_pictures_work_without_pyplot(bert, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for draw, suffix in (
        (lambda: figures.plot_layer(bert, scopes="FF"), "svg"),
        (lambda: figures.plot_overview(bert, scopes="FF"), "pdf"),
        (lambda: figures.plot_amplification(bert, "LN1", "FF"), "png"),
        (lambda: figures.plot_similarity(bert), "png"),
    ):
        path = tmp_path / f"picture.{suffix}"
        draw().savefig(path)
        assert path.stat().st_size > 1000


def test_characters_without_a_font_are_drawn_as_boxes(monkeypatch):
    monkeypatch.setattr(canvas, "_letters", lambda path: frozenset(map(ord, "abc □")))
    canvas._font_with.cache_clear()
    with pytest.warns(UserWarning, match="no installed font has some characters"):
        assert canvas.drawable("a 他说") == "a □□"
    canvas.drawable("abc\n")  # which has nothing to draw
    canvas._font_with.cache_clear()
