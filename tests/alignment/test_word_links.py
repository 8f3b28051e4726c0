"""Links from a model whose cross-attention points where it was told to."""

from __future__ import annotations

import numpy as np
import pytest
from alignment_examples import pointing

from normlens.errors import InputError
from normlens.studies.alignment.links import WordPlaces, word_links

SOURCE, TARGET = ["a", "b", "c"], ["x", "y", "z"]  # one token each; encoder: a b c </s>


@pytest.fixture(scope="module")
def reads_along():
    """Decoder place 0 is the start token, so place i reads target word i − 1: links by input."""
    return pointing(shift=-1)


@pytest.fixture(scope="module")
def looks_ahead():
    """Decoder place i attends to source word i, which is the translation of what it predicts."""
    return pointing(shift=0)


@pytest.mark.parametrize("scope", ["CROSS-W", "CROSS-N"])
def test_the_way_by_input_reads_the_row_of_the_word(scope, reads_along, looks_ahead):
    maps = reads_along.maps(SOURCE, TARGET, scopes=[scope])
    assert word_links(maps, scope, way="input") == [(0, 0), (1, 1), (2, 2)]
    ahead = looks_ahead.maps(SOURCE, TARGET, scopes=[scope])
    # z is read where the end of the source is attended to: no link.
    assert word_links(ahead, scope, way="input") == [(1, 0), (2, 1)]


@pytest.mark.parametrize("scope", ["CROSS-W", "CROSS-N"])
def test_the_way_by_output_reads_the_row_that_predicts_the_word(scope, reads_along, looks_ahead):
    maps = looks_ahead.maps(SOURCE, TARGET, scopes=[scope])
    assert word_links(maps, scope, way="output") == [(0, 0), (1, 1), (2, 2)]
    along = reads_along.maps(SOURCE, TARGET, scopes=[scope])
    links = word_links(along, scope, way="output")
    # The row that predicts x would attend to a place before the first one.
    assert [link for link in links if link[1] > 0] == [(0, 1), (1, 2)]


def test_words_of_several_tokens(reads_along):
    """Encoder: a b | c | </s>. Decoder: start | x y | z: places 1 and 2 read the first word."""
    maps = reads_along.maps(["ab", "c"], ["xy", "z"], scopes=["CROSS-W"])
    assert word_links(maps, "CROSS-W") == [(0, 0), (1, 1)]


def test_every_deeper_scope_gives_links(reads_along):
    maps = reads_along.maps(SOURCE, TARGET)
    deeper = [scope for scope in maps.scopes if "CROSS" in scope]
    assert len(deeper) == 7
    for scope in deeper:
        # Residuals, norms and a feed-forward block of 0 do not move what came from the source.
        if not scope.endswith("FF-N"):
            assert word_links(maps, scope) == [(0, 0), (1, 1), (2, 2)], scope


def test_places_of_words_with_and_without_tokens(reads_along):
    (pair,) = reads_along.encode_pairs(("ab c", "x yz"))
    places = WordPlaces.of(pair.source.words, pair.words)
    assert (places.columns, places.no_word) == ([[0, 1], [2]], [3])
    assert places.rows("input") == [[1], [2, 3]]
    assert places.rows("output") == [[0], [1, 2]]
    with pytest.raises(InputError):
        places.rows("sideways")


def test_a_word_that_nothing_predicts_has_no_row():
    places = WordPlaces(columns=[[0]], no_word=[], tokens=[[0], [1]])
    assert places.rows("output") == [[], [0]]
    scores = np.ones((1, 2, 1))
    assert places.links(scores, "output") == [[(0, 1)]]


def test_maps_of_one_sequence_have_no_links(tiny):
    import normlens

    maps = normlens.load(tiny("bert")).maps(input_ids=[2, 5, 6, 3])
    with pytest.raises(InputError):
        word_links(maps, "ATTN-N")
