"""A cosine of two texts: both strips of tokens, and the matrix of their pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normlens.errors import InputError
from normlens.figures.canvas import MARGIN, TITLE, Head, Notes, Sheet, require_matplotlib
from normlens.figures.captions import cut_label, made, model_name
from normlens.figures.colour_scales import SIGNED_SCALES
from normlens.figures.fonts import fonts_for
from normlens.figures.foreign_axes import figure_of
from normlens.figures.signed_colours import DIVERGING, SignedColours
from normlens.figures.signed_matrix import SignedMatrix
from normlens.figures.ticks import left_out_note
from normlens.figures.token_strip import TokenStrip
from normlens.results.cosine_words import cosine_words, parts_words
from normlens.wording import quoted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.cosine import Cosine

_NO_TOKEN = "no token"
_NARROWEST = 6.0
_LABEL, _GAP = 0.16, 0.06


def plot_cosine(
    pair: Cosine,
    *,
    colour: str = "sqrt",
    cmap: str = DIVERGING,
    max_label: int = 14,
    ax: Axes | None = None,
) -> Figure:
    """Draw which tokens made a cosine: each text's tokens, and the matrix of their pairs.

    A token's colour in a strip is what it has with all of the other text. The matrix's last row and
    column are what a token has with the other text's biases, and their corner what the biases have
    with each other, so that all cells sum to the cosine. `colour` "sqrt" brings out small parts of
    the matrix; the other choice is "linear". `ax` takes the matrix alone into axes of yours.
    """
    require_matplotlib()
    if max_label < 1:
        raise InputError(f"max_label must be at least 1, not {max_label}")
    values = with_biases(pair)
    colours = SignedColours(values, cmap, colour)
    rows, columns = (
        [*(cut_label(token, max_label) for token in tokens), _NO_TOKEN]
        for tokens in (pair.tokens_a, pair.tokens_b)
    )
    words = ("text A", "text B")
    if ax is not None:
        ax.imshow(values, norm=colours.norm, cmap=cmap, interpolation="nearest", aspect="auto")
        ax.set_xticks(range(len(columns)), columns, rotation=90, parse_math=False)
        ax.set_yticks(range(len(rows)), rows, parse_math=False)
        ax.set(ylabel=words[0], xlabel=words[1], title=cosine_words(pair))
        return figure_of(ax)

    heading = f"{model_name(pair)}: {cosine_words(pair)}"
    texts = {"A": pair.text_a, "B": pair.text_b}
    about = [f"{name}: {line}" for name, text in texts.items() for line in quoted(text)]
    about.append(parts_words(pair))
    tokens = [*pair.tokens_a, *pair.tokens_b]
    fonts = fonts_for([*tokens, heading, *about, "□…−–×"])
    apart = (1, 1)
    matrix = SignedMatrix.fitting(values, rows, columns, words, colours, fonts, apart)
    width = max(MARGIN + matrix.width + MARGIN, _NARROWEST)
    margins = pair.margins
    of_strips = SignedColours(np.concatenate([margins.a, margins.b]), cmap)
    strips = [
        TokenStrip(tokens, list(map(float, own)), pair.value - own.sum(), of_strips, fonts, width)
        for tokens, own in ((pair.tokens_a, margins.a), (pair.tokens_b, margins.b))
    ]
    notes = [
        "Strips: what a token has of the cosine with all of the other text. Matrix: the pairs of "
        f"tokens, on a {SIGNED_SCALES[colour]} scale; last row and column: with the other text's "
        "biases; all cells sum to the cosine. Red above 0, blue below.",
        *left_out_note(matrix.rows, matrix.columns),
        made(pair.provenance, pair.completeness, "parts"),
    ]
    head, foot = Head(heading, about, fonts, width), Notes(notes, fonts, width)
    top = MARGIN + head.height
    strips_height = sum(strip.height + _LABEL + _GAP for strip in strips)
    bottom = top + strips_height + 0.15 + matrix.size[1] + matrix.below
    sheet = Sheet(width, bottom + foot.height + MARGIN, fonts)
    head.draw(sheet)
    y = top
    for word, strip in zip(words, strips, strict=True):
        sheet.text(MARGIN, y, word, TITLE, "bold")
        strip.draw(sheet, y + _LABEL)
        y += _LABEL + strip.height + _GAP
    matrix.draw(sheet, MARGIN + matrix.left, y + 0.15)
    foot.draw(sheet, bottom)
    return sheet.figure


def with_biases(pair: Cosine) -> NDArray[np.float64]:
    """The matrix with a row and a column for the biases, which sums to the cosine."""
    return np.block(
        [
            [pair.matrix, pair.a_with_bias[:, None]],
            [pair.b_with_bias[None], np.array([[pair.bias]])],
        ]
    )
