"""Pictures of an encoder–decoder's maps: both sequences told apart, both stacks or one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_case import in_one_case
from pair_examples import fast_tokenizer, with_head
from tidy import assert_tidy, panels, shown, words

import normlens
from normlens.errors import InputError
from normlens.measures.maps import normalise
from normlens.results.words import choose_in_stacks
from normlens.scopes import consecutive

pytest.importorskip("matplotlib")
SOURCE, TARGET = "the house is small and green", "la maison est petite"


@pytest.fixture(scope="module")
def lens():
    return normlens.load(with_head("bart"), fast_tokenizer())


@pytest.fixture(scope="module")
def maps(lens):
    return lens.maps(SOURCE, TARGET)


def lines(axes: Any) -> list[float]:
    return [float(line.get_xdata()[0]) for line in axes.lines]


def ticks(axes: Any) -> tuple[list[str], list[str]]:
    return (
        [label.get_text() for label in axes.get_yticklabels()],
        [label.get_text() for label in axes.get_xticklabels()],
    )


# One layer ----------------------------------------------------------------------------------------


def test_a_line_divides_the_sequences_and_the_axes_are_named(maps):
    k = len(maps.encoder.tokens)
    figure = maps.plot(1, ["ATTN-N", "CROSS-N", "FF"])
    assert_tidy(figure)
    for axes in panels(figure):
        assert lines(axes) == [k - 0.5]
        assert axes.get_xlabel() == "source j: encoder | decoder"
    first = panels(figure)[0]
    assert first.get_ylabel() == "target i (decoder)"
    assert "BartForConditionalGeneration, decoder layer 1" in words(figure)


def test_what_a_scope_has_no_parts_of_stays_blank(maps):
    other = np.array(maps.source_sequences) == "encoder"
    figure = maps.plot(1, ["CROSS-W", "ATTN-N", "CROSS-N", "FF"])
    blank = [np.ma.getmaskarray(shown(axes)) for axes in panels(figure)]
    for mask, columns in zip(blank, [other, ~other, other, other | True], strict=True):
        np.testing.assert_array_equal(mask, ~(maps.allowed[1] & columns))


@in_one_case("sources", ["encoder", "decoder"])
def test_one_sequence_is_hidden_and_the_numbers_stay(maps, sources):
    columns = np.array(maps.source_sequences) == sources
    figure = maps.plot(2, ["LN2", "FF"], sources=sources, normalise="target")
    assert_tidy(figure)
    for axes, scope in zip(panels(figure), ["LN2", "FF"], strict=True):
        expected = normalise(maps[scope][2], "target")[:, columns]
        np.testing.assert_allclose(shown(axes).filled(0), expected)
        assert lines(axes) == []
        assert axes.get_xlabel() == f"source j ({sources})"
        assert ticks(axes)[1] == [t for t, c in zip(maps.source_tokens, columns, strict=True) if c]


@in_one_case(
    "wrong",
    [
        lambda maps: maps.plot(sources="both"),
        lambda maps: maps.encoder.plot(sources="encoder"),
        lambda maps: maps.plot_overview(stack="both"),
        lambda maps: maps.decoder.plot_overview(stack="encoder"),
        lambda maps: maps.plot_overview(stack="encoder", sources="encoder"),
        lambda maps: maps.plot_similarity(stack="both"),
        lambda maps: maps.plot_amplification("ATTN", "RES1", sources="encoder"),
    ],
)
def test_wrong_choices_are_one_line(wrong, maps):
    with pytest.raises(InputError):
        wrong(maps)


# Overview -----------------------------------------------------------------------------------------


def test_an_overview_has_the_encoder_above_the_decoder(maps):
    figure = maps.plot_overview(scopes=["ATTN-N", "CROSS-N", "FF"])
    maps = choose_in_stacks(maps, scopes=["ATTN-N", "CROSS-N", "FF"])
    assert_tidy(figure)
    every = panels(figure)
    of_encoder = len(maps.encoder.layers) * len(maps.encoder.scopes)
    assert len(every) == of_encoder + len(maps.layers) * len(maps.scopes)
    for number, axes in enumerate(every):
        one = maps.encoder if number < of_encoder else maps
        place = number if number < of_encoder else number - of_encoder
        layer, scope = divmod(place, len(one.scopes))
        values = shown(axes)
        mask = np.ma.getmaskarray(values)
        np.testing.assert_array_equal(values.data[~mask], one[one.scopes[scope]][layer][~mask])
        assert bool(lines(axes)) == (one is maps)
    written = words(figure).splitlines()
    assert {"encoder layer 0", "encoder layer 1", "decoder layer 0", "decoder layer 2"} <= set(
        written
    )
    assert "encoder layers 0–1 and decoder layers 0–2" in written[0]
    lower = [axes.get_position().y0 for axes in every]
    assert min(lower[:of_encoder]) > max(lower[of_encoder:])
    assert ticks(every[0])[0] == maps.encoder.tokens
    assert ticks(every[of_encoder])[0] == maps.tokens


# Similarity and amplification ---------------------------------------------------------------------


def test_similarity_has_a_plot_for_each_stack(maps):
    figure = maps.plot_similarity()
    assert_tidy(figure)
    assert len(figure.axes) == 2
    assert {"encoder", "decoder"} <= set(words(figure).splitlines())
    for axes, one in zip(figure.axes, (maps.encoder, maps), strict=True):
        steps = consecutive(one.scopes)
        for line, step in zip(axes.lines, steps, strict=True):
            expected = one.similarity(step.before, step.after)
            np.testing.assert_array_equal(line.get_ydata(), expected)
    (alone,) = maps.plot_similarity(stack="encoder").axes
    assert len(alone.lines) == len(consecutive(maps.encoder.scopes))
