"""Pictures of explanations: their numbers are the explanation's, and nothing in them is cut off."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from explanation_examples import LONG, SCRIPTS, SHORT, explanation, explanations
from one_case import in_one_case
from tidy import assert_tidy, words

from normlens.errors import InputError, MissingDependencyError
from normlens.figures.explanations import FEW, Edges
from normlens.results.words import LONGEST, explained_rows

pytest.importorskip("matplotlib")
TEXTS = {"short": SHORT, "long": LONG, "scripts": SCRIPTS, "one": ["Hi"]}


def bars(figure):
    """The lengths of the bars, from the top."""
    return [bar.get_width() for bar in figure.axes[-1].patches]


# The strip and its bars ---------------------------------------------------------------------------


@in_one_case("tokens", TEXTS.values(), ids=TEXTS)
def test_strip_is_tidy_and_says_what_it_shows(tokens):
    why = explanation(tokens)
    figure = why.plot()
    assert_tidy(figure)
    written = words(figure)
    assert "tiny: why '␣are' and not '␣is'" in written
    assert "probability of '␣are' 16 %, of '␣is' 0.53 %" in written
    assert "completeness 3.0e-07 · float32 · rule ig · normlens 0.1.0" in written
    chips = [text.get_text() for text in figure.axes[0].texts]
    assert len(chips) == len(tokens) + 1
    assert chips[-1].startswith("no token (biases)")


@in_one_case("tokens", TEXTS.values(), ids=TEXTS)
def test_bars_sum_to_the_score(tokens):
    why = explanation(tokens)
    lengths = bars(why.plot())
    assert sum(lengths) == pytest.approx(why.value)
    assert lengths[-1] == pytest.approx(why.remainder)
    assert len(lengths) <= LONGEST + 1


def test_bars_of_a_long_text_are_its_strongest_tokens_in_order():
    why = explanation(LONG)
    made = explained_rows(why)
    places = [bar.token for bar in made if bar.token is not None]
    assert places == sorted(places)
    strongest = set(np.argsort(-np.abs(why.contributions))[: len(places)])
    assert set(places) == strongest
    assert [bar.label for bar in made][-2:] == ["55 other tokens", "no token (biases)"]
    assert made[0].label == f"{places[0]}: ␣word{places[0]}"


def test_colours_tell_signs_apart_and_are_white_at_zero():
    nodes = np.array([[2.0, -2.0, 0.0]])
    why = explanation(["a", "b", "c"], layers=1)
    chips = replace(why, nodes=nodes).plot().axes[0].patches
    positive, negative, zero = (chip.get_facecolor()[:3] for chip in chips[:3])
    assert positive[0] > positive[2]
    assert negative[2] > negative[0]
    assert min(zero) > 0.95


def test_the_token_where_the_score_is_read_is_framed():
    chips = explanation(SHORT, position=1).plot().axes[0].patches
    widths = [chip.get_linewidth() for chip in chips[:-1]]
    assert max(widths) == widths[1] > max(widths[:1] + widths[2:])
    widths = [c.get_linewidth() for c in explanation(SHORT, position=None).plot().axes[0].patches]
    assert len(set(widths[:-1])) == 1


# The flow -----------------------------------------------------------------------------------------


@in_one_case("layers", [1, 30])
@in_one_case("tokens", TEXTS.values(), ids=TEXTS)
def test_flow_is_tidy(tokens, layers):
    why = explanation(tokens, layers)
    figure = why.plot_flow()
    assert_tidy(figure)
    axes = figure.axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[-1] == "no token"
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first token stands on top
    assert [label.get_text() for label in axes.get_xticklabels()][-1] == "end"


def test_every_edge_of_a_small_picture_is_drawn_as_wide_as_what_it_carries():
    why = explanation(SHORT)
    figure = why.plot_flow()
    assert "Every edge is drawn." in words(figure)
    edges = figure.axes[0].collections[0]
    there = np.abs(why.flow[why.flow != 0])
    assert len(edges.get_paths()) == there.size
    widths = np.asarray(edges.get_linewidths())
    wide = widths > 0.2  # a hair line is not thinner
    np.testing.assert_allclose(
        (widths / widths.max())[wide], (np.sort(there) / there.max())[wide], rtol=1e-5
    )


def test_weak_edges_are_left_out_and_counted():
    why = explanation(LONG, 12)
    edges = Edges.of(why.flow)
    drawn = len(edges.value)
    assert FEW <= drawn <= 1500
    assert drawn + edges.left_out == np.count_nonzero(why.flow)
    share = 1 - np.abs(edges.value).sum() / np.abs(why.flow).sum()
    assert edges.share_left_out == pytest.approx(share)
    assert np.abs(edges.value).min() >= np.sort(np.abs(why.flow).ravel())[-drawn]
    written = words(why.plot_flow())
    assert f"the {edges.left_out} left out carry {100 * share:.1f} %" in written.replace("\n", " ")
    assert len(why.plot_flow(max_edges=7).axes[0].collections[0].get_paths()) == 7


# Components ---------------------------------------------------------------------------------------


@in_one_case("layers", [1, 6, 30])
def test_components_and_heads_are_the_explanations_numbers(layers):
    why = explanation(SHORT, layers)
    figure = why.plot_components()
    assert_tidy(figure)
    bars, heads, _ = figure.axes
    lengths = np.array([bar.get_width() for bar in bars.patches]).reshape(3, layers + 1)
    np.testing.assert_allclose(lengths[:2, :-1].T, why.components[:, :2].sum(-1))
    assert lengths[2].sum() == pytest.approx(why.remainder)
    np.testing.assert_allclose(heads.images[0].get_array(), why.heads.sum(-1))
    said = words(figure).replace("\n", " ")
    assert "the rest passes none of them (RES, not drawn)" in said
    assert "Biases of all layers and what the tokens contribute sum to the score" in said


# Each next token ----------------------------------------------------------------------------------


@in_one_case("tokens", [SHORT, LONG[:40], SCRIPTS], ids=["short", "long", "scripts"])
def test_next_tokens(tokens):
    several = explanations(tokens)
    figure = several.plot()
    assert_tidy(figure)
    shown = figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(shown.filled(0)[:, :-1], several.contributions)
    np.testing.assert_allclose(shown[:, -1], [why.remainder for why in several])
    assert (shown.mask[:, :-1] == ~np.tri(len(tokens) - 1, len(tokens), dtype=bool)).all()
    assert "why each next token" in words(figure)
    assert figure.axes[0].get_ylabel() == "predicted token"
    with pytest.raises(InputError, match="colour scale"):
        several.plot(colour="log")


# All of them --------------------------------------------------------------------------------------


def test_foreign_axes():
    from matplotlib.figure import Figure

    why = explanation(SHORT)
    for draw in (why.plot, why.plot_flow, why.plot_components, explanations(SHORT).plot):
        figure = Figure(figsize=(6, 4))
        assert draw(ax=figure.subplots()) is figure
        figure.canvas.draw()
        assert "why" in figure.axes[0].get_title()


def test_wrong_options():
    why = explanation(SHORT)
    for draw in (why.plot, why.plot_components, explanations(SHORT).plot):
        with pytest.raises(InputError, match="unknown colour map 'nothing'"):
            draw(cmap="nothing")
    for draw in (why.plot, why.plot_flow, explanations(SHORT).plot):
        with pytest.raises(InputError, match="max_label"):
            draw(max_label=0)


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    why = explanation(SHORT)
    for draw in (why.plot, why.plot_flow, why.plot_components, explanations(SHORT).plot):
        with pytest.raises(MissingDependencyError, match="viz"):
            draw()
