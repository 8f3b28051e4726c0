"""A cosine's parts as tables, by words and on disk."""

from __future__ import annotations

import numpy as np
import pytest

from normlens.errors import InputError
from normlens.results.axes import TokenAxis
from normlens.results.explanation import Cosine


@pytest.fixture
def pair() -> Cosine:
    generator = np.random.default_rng(0)
    matrix = generator.normal(size=(4, 3))
    a_with_bias, b_with_bias = generator.normal(size=4), generator.normal(size=3)
    return Cosine(
        value=float(matrix.sum() + a_with_bias.sum() + b_with_bias.sum() + 0.25),
        matrix=matrix,
        a_with_bias=a_with_bias,
        b_with_bias=b_with_bias,
        bias=0.25,
        a=TokenAxis(
            ["[CLS]", "fl", "##ute", "."],
            [1, 2, 3, 4],
            [True, False, False, False],
            [None, 0, 0, 1],
            ["flute", "."],
        ),
        b=TokenAxis(["[CLS]", "drum", "!"], [1, 5, 6], [True, False, False], [None, 0, 1],
                    ["drum", "!"]),
        completeness=1e-8,
        provenance={"model": "m", "note": "a note"},
        text_a="flute.",
        text_b="drum!",
    )  # fmt: skip


def test_margins_with_and_without_the_other_texts_bias(pair):
    margins = pair.margins
    np.testing.assert_allclose(margins.a_without_bias, pair.matrix.sum(1))
    np.testing.assert_allclose(margins.b_without_bias, pair.matrix.sum(0))
    unowned_by_a = pair.b_with_bias.sum() + pair.bias
    assert margins.a.sum() + unowned_by_a == pytest.approx(pair.value)
    unowned_by_b = pair.a_with_bias.sum() + pair.bias
    assert margins.b.sum() + unowned_by_b == pytest.approx(pair.value)


def test_the_remainder_is_named(pair):
    assert list(pair.remainder) == [
        "tokens of A × bias of B",
        "bias of A × tokens of B",
        "bias of A × bias of B",
    ]
    assert pair.matrix.sum() + sum(pair.remainder.values()) == pytest.approx(pair.value)


def test_words_keep_every_sum(pair):
    merged = pair.words()
    assert merged.tokens_a == ["[CLS]", "flute", "."]
    assert merged.tokens_b == ["[CLS]", "drum", "!"]
    np.testing.assert_allclose(merged.matrix[1], pair.matrix[1] + pair.matrix[2])
    assert merged.matrix.sum() == pytest.approx(pair.matrix.sum())
    assert merged.remainder == pytest.approx(pair.remainder)
    assert merged.words() == merged
    with pytest.raises(InputError, match="fast tokenizer"):
        Cosine(**{**vars(pair), "a": TokenAxis(["x", "y", "z", "w"])}).words()


def test_tables(pair):
    frame = pair.to_pandas()
    assert list(frame.columns) == ["a", "a_token", "b", "b_token", "value"]
    assert len(frame) == 12
    row = frame[(frame.a == 2) & (frame.b == 1)].iloc[0]
    assert (row.a_token, row.b_token, row.value) == ("##ute", "drum", pair.matrix[2, 1])
    best = pair.top(3)
    assert len(best) == 3
    assert abs(best.value[0]) == np.abs(pair.matrix).max()
