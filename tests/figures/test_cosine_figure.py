"""The picture of a cosine: its cells and strips sum to it, and nothing in it is cut off."""

from __future__ import annotations

import numpy as np
import pytest
from explanation_examples import LONG, SCRIPTS, SHORT
from tidy import assert_tidy, words

from normlens.figures.matrices import with_biases
from normlens.results.axes import TokenAxis
from normlens.results.explanation import Cosine

pytest.importorskip("matplotlib")


def cosine(a: list[str], b: list[str]) -> Cosine:
    random = np.random.default_rng(0)
    matrix = random.normal(size=(len(a), len(b))) / len(a)
    of_a, of_b = random.normal(size=len(a)) / len(a), random.normal(size=len(b)) / len(b)
    return Cosine(
        value=float(matrix.sum() + of_a.sum() + of_b.sum() + 0.2),
        matrix=matrix,
        a_with_bias=of_a,
        b_with_bias=of_b,
        bias=0.2,
        a=TokenAxis(a),
        b=TokenAxis(b),
        completeness=2e-8,
        provenance={"model": "tiny", "dtype": "float32", "note": "mean of all tokens"},
        text_a=" ".join(a),
        text_b=" ".join(b),
    )


PAIRS = {"short": (SHORT, ["Hi"]), "long": (LONG, SHORT), "scripts": (SCRIPTS, LONG[:40])}


@pytest.mark.parametrize("texts", PAIRS.values(), ids=PAIRS)
def test_it_is_tidy_and_all_cells_sum_to_the_cosine(texts):
    pair = cosine(*texts)
    figure = pair.plot()
    assert_tidy(figure)
    strips, matrix = figure.axes[:2], figure.axes[2]
    shown = matrix.images[0].get_array()
    np.testing.assert_array_equal(shown[:-1, :-1], pair.matrix)
    assert shown.sum() == pytest.approx(pair.value)
    assert with_biases(pair)[-1, -1] == pair.bias
    for strip, tokens in zip(strips, texts, strict=True):
        assert len(strip.texts) == len(tokens) + 1
    written = words(figure)
    assert f"tiny: cosine {pair.value:+.3f}".replace("-", "−") in written
    assert "completeness 2.0e-08 · float32 · mean of all tokens" in written
    for name, value in pair.remainder.items():
        assert f"{name} {value:+.3f}".replace("-", "−") in written.replace("\n", " ")
