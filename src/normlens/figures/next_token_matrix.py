"""What made each token of a text likely: predicted tokens × source tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from normlens.errors import InputError
from normlens.figures.canvas import MARGIN, Head, Notes, Sheet, require_matplotlib
from normlens.figures.captions import cut_label, made, model_name, text_lines
from normlens.figures.colour_scales import SIGNED_SCALES
from normlens.figures.fonts import fonts_for
from normlens.figures.foreign_axes import figure_of
from normlens.figures.signed_colours import DIVERGING, SignedColours
from normlens.figures.signed_matrix import SignedMatrix
from normlens.figures.ticks import left_out_note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.explanations import Explanations

_NO_TOKEN = "no token"


def plot_explanations(
    explanations: Explanations,
    *,
    colour: str = "sqrt",
    cmap: str = DIVERGING,
    max_label: int = 14,
    ax: Axes | None = None,
) -> Figure:
    """Draw what each token (columns) contributes to the score of each next token (rows).

    The last column is what no token owns; tokens that come later stay blank. `colour` "sqrt" brings
    out small contributions beside large ones; the other choice is "linear". `ax` takes the matrix
    alone into axes of yours.
    """
    require_matplotlib()
    if max_label < 1:
        raise InputError(f"max_label must be at least 1, not {max_label}")
    contributions = np.asarray(explanations.contributions, dtype=float)
    remainders = np.array([each.remainder for each in explanations])
    later = np.zeros(contributions.shape, dtype=bool)
    for row, each in enumerate(explanations):
        later[row, len(explanations.tokens) if each.read_at is None else each.read_at + 1 :] = True
    values = np.ma.masked_where(
        np.column_stack([later, np.zeros(len(later), dtype=bool)]),
        np.column_stack([contributions, remainders]),
    )
    colours = SignedColours(values.compressed(), cmap, colour)
    rows = [cut_label(token, max_label) for token in explanations.predicted]
    columns = [*(cut_label(token, max_label) for token in explanations.tokens), _NO_TOKEN]
    words = ("predicted token", "source j (input)")
    first = explanations[0]
    sources, title = first.encoder_tokens or 0, "why each next token"
    if sources:
        words = ("generated token", "source, then prefix of the target")
        title = "why each token of the target"
    if ax is not None:
        ax.imshow(values, norm=colours.norm, cmap=cmap, interpolation="nearest", aspect="auto")
        ax.set_xticks(range(len(columns)), columns, rotation=90, parse_math=False)
        ax.set_yticks(range(len(rows)), rows, parse_math=False)
        ax.set(xlabel=words[1], ylabel=words[0], title=title)
        if sources:
            ax.axvline(sources - 0.5, color="black", linewidth=0.8)
        return figure_of(ax)

    heading = f"{model_name(first)}: {title}"
    fonts = fonts_for([*rows, *columns, heading, *text_lines(first), "□…−–"])
    matrix = SignedMatrix.fitting(
        values, rows, columns, words, colours, fonts, apart=(0, 1), first=sources
    )
    notes = [
        "Colour: contribution to the predicted token's score, red above 0, blue below, on a "
        f"{SIGNED_SCALES[colour]} scale; each row sums to the score. Last column: what no token "
        "owns (biases). Blank: tokens that come later.",
        *left_out_note(matrix.rows, matrix.columns),
        made(first.provenance, explanations.completeness),
    ]
    width = max(MARGIN + matrix.width + MARGIN, 5.0)
    head, foot = Head(heading, text_lines(first), fonts, width), Notes(notes, fonts, width)
    top = MARGIN + head.height + 0.05
    bottom = top + matrix.size[1] + matrix.below
    sheet = Sheet(width, bottom + foot.height + MARGIN, fonts)
    head.draw(sheet)
    matrix.draw(sheet, MARGIN + matrix.left, top)
    foot.draw(sheet, bottom)
    return sheet.figure
