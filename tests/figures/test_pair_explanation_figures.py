"""Pictures of an encoder–decoder's explanations: two sequences, two stacks, and their shares."""

from __future__ import annotations

import numpy as np
import pytest
from pair_examples import fast_tokenizer, with_head
from tidy import assert_tidy, words

import normlens

pytest.importorskip("matplotlib")
SOURCE, TARGET = "the house is small and green", "la maison est petite et verte"


@pytest.fixture(scope="module")
def lens():
    return normlens.load(with_head("bart"), fast_tokenizer())


@pytest.fixture(scope="module")
def why(lens):
    return lens.explain(SOURCE, target=TARGET, token=3)


@pytest.fixture(scope="module")
def every(lens):
    return lens.explain(SOURCE, target=TARGET, token="all")


def test_each_sequence_has_its_strip_and_its_bars(why):
    figure = why.plot()
    assert_tidy(figure)
    source, prefix, bars = figure.axes
    assert [text.get_text() for text in source.texts] == why.source.tokens
    *chips, rest = [text.get_text() for text in prefix.texts]
    assert chips == why.prefix.tokens
    assert rest.startswith("no token (biases)")
    written = words(figure)
    for part in ("source", "prefix", "the source supplies", "of the target"):
        assert part in written
    lengths = [bar.get_width() for bar in bars.patches]
    assert sum(lengths) == pytest.approx(why.value, abs=1e-4)
    labels = [label.get_text() for label in bars.get_yticklabels()]
    assert labels[0] == "source"
    assert labels[1 + len(why.source)] == "prefix"


def test_the_flow_names_both_stacks(why):
    figure = why.plot_flow()
    assert_tidy(figure)
    names = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert names == ["enc. 0", "enc. 1", "dec. 0", "dec. 1", "dec. 2", "end"]
    assert "the source's tokens" in words(figure)
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert rows == [*why.source.tokens, *why.prefix.tokens, "no token"]


def test_heads_of_both_attentions(why):
    figure = why.plot_components()
    assert_tidy(figure)
    heat = np.ma.filled(figure.axes[1].images[0].get_array(), np.nan)
    own = why.heads.sum(-1)
    np.testing.assert_allclose(heat[:, : own.shape[1]], own, rtol=1e-5)
    np.testing.assert_allclose(heat[:, own.shape[1] + 1 :], why.cross_heads.sum(-1), rtol=1e-5)
    assert np.isnan(heat[: why.encoder_layers, own.shape[1] :]).all()


def test_the_matrix_has_source_prefix_and_no_token(every):
    figure = every.plot()
    assert_tidy(figure)
    shown = figure.axes[0].images[0].get_array()
    size = every.contributions.shape[1]
    np.testing.assert_allclose(shown[:, :size].filled(0), every.contributions, rtol=1e-5)
    # What a token's prefix does not hold yet is blank.
    for row, each in enumerate(every):
        assert np.ma.getmaskarray(shown)[row, each.read_at + 1 : size].all()
        assert not np.ma.getmaskarray(shown)[row, : each.read_at + 1].any()
    assert "why each token of the target" in words(figure)


def test_shares_are_the_tables_numbers(every):
    figure = every.plot_shares()
    assert_tidy(figure)
    table = every.shares()
    sums, shares = figure.axes
    count = len(table)
    lengths = np.array([bar.get_width() for bar in sums.patches]).reshape(3, count)
    for row, name in zip(lengths, ("source", "prefix", "bias"), strict=True):
        np.testing.assert_allclose(row, table[name])
    divided = np.array([bar.get_width() for bar in shares.patches]).reshape(2, count)
    np.testing.assert_allclose(divided[0], table["source_share"])
    np.testing.assert_allclose(divided.sum(0), 1)
    marks = shares.collections[0].get_offsets()[:, 0]
    np.testing.assert_allclose(marks, table["source_share_absolute"])
    labels = [label.get_text() for label in sums.get_yticklabels()]
    assert labels == every.predicted
