"""What the source and the prefix supply of each generated token's score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from normlens.errors import InputError
from normlens.figures.canvas import (
    COLOURS,
    FRAME,
    INK,
    LARGEST_TICK,
    MARGIN,
    NOTE,
    TITLE,
    Head,
    Notes,
    Sheet,
    require_matplotlib,
)
from normlens.figures.captions import cut_label, made, model_name, text_lines, tick
from normlens.figures.fonts import Fonts, fonts_for
from normlens.figures.foreign_axes import figure_of
from normlens.figures.signed_colours import NO_TOKEN
from normlens.figures.ticks import Ticks, left_out_note
from normlens.results.contribution_rows import NO_TOKEN_WORDS
from normlens.results.explanation_words import PREFIX, SOURCE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.explanations import Explanations

_SUMS, _SHARES, _GAP = 3.0, 2.4, 0.35  # inches
_HEIGHT = 30.0  # at most; rows of very long targets are thinner
_OF = {SOURCE: COLOURS[0], PREFIX: COLOURS[4]}


def plot_shares(
    explanations: Explanations, *, max_label: int = 24, ax: Axes | None = None
) -> Figure:
    """Draw how much of each generated token's score comes from the source and from the prefix.

    Left: the sums of both sequences' contributions, and the biases, which make the score. Right:
    the share of each, ``|source| / (|source| + |prefix|)``, with a mark at the share of the
    absolute sums, ``Σ|c|``. `ax` takes the shares alone into axes of yours.
    """
    require_matplotlib()
    if max_label < 1:
        raise InputError(f"max_label must be at least 1, not {max_label}")
    table = explanations.shares()
    labels = [cut_label(str(token), max_label) for token in table["token"]]
    if ax is not None:
        _draw_shares(ax, table)
        ax.set_yticks(range(len(labels)), labels, parse_math=False)
        ax.set(xlabel="share", ylabel="generated token", title="source against prefix")
        return figure_of(ax)

    first = explanations[0]
    heading = f"{model_name(first)}: what source and prefix supply of each token"
    fonts = fonts_for([*labels, heading, *text_lines(first), "□…−–"])
    row = min(0.2, _HEIGHT / len(labels))
    height = row * len(labels)
    ticks = Ticks.fitting(labels, height, fonts, LARGEST_TICK)
    notes = [
        "Left: contributions of the source's tokens, of the target's tokens before the generated "
        "one, and of no token (biases); they sum to the token's score. Right: "
        "|Σ source| / (|Σ source| + |Σ prefix|); black marks: the same of Σ|contribution|.",
        *left_out_note(ticks, ticks),
        made(first.provenance, explanations.completeness),
    ]
    left = MARGIN + ticks.room + 0.1
    width = left + _SUMS + _GAP + _SHARES + MARGIN
    head, foot = Head(heading, text_lines(first), fonts, width), Notes(notes, fonts, width)
    top = MARGIN + head.height + 0.22
    sheet = Sheet(width, top + height + 0.42 + foot.height + MARGIN, fonts)
    head.draw(sheet)
    _legend(sheet, left, top - 0.22)
    sums = sheet.axes(left, top, _SUMS, height)
    _draw_sums(sums, table)
    _style(sums, fonts, "part of the score")
    properties = fonts.properties(ticks.size)
    sums.set_yticks(
        ticks.positions, ticks.labels, fontproperties=properties, parse_math=False, color=INK
    )
    shares = sheet.axes(left + _SUMS + _GAP, top, _SHARES, height)
    _draw_shares(shares, table)
    _style(shares, fonts, "share of source and prefix")
    shares.set_yticks([])
    foot.draw(sheet, top + height + 0.42)
    return sheet.figure


def _draw_sums(axes: Any, table: pd.DataFrame) -> None:
    """Three thin bars for each token."""
    rows = np.arange(len(table))
    parts = (("source", _OF[SOURCE]), ("prefix", _OF[PREFIX]), ("bias", NO_TOKEN))
    for place, (name, colour) in enumerate(parts):
        axes.barh(rows + 0.26 * (place - 1), table[name], height=0.26, color=colour, linewidth=0)
    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_ylim(len(table) - 0.5, -0.5)


def _draw_shares(axes: Any, table: pd.DataFrame) -> None:
    """One bar for each token, divided between source and prefix."""
    rows = np.arange(len(table))
    share = table["source_share"].to_numpy()
    style: dict[str, Any] = {"height": 0.78, "linewidth": 0}
    axes.barh(rows, share, color=_OF[SOURCE], label=SOURCE, **style)
    axes.barh(rows, 1 - share, left=share, color=_OF[PREFIX], label=PREFIX, **style)
    absolute = table["source_share_absolute"]
    axes.scatter(absolute, rows, marker="|", s=60, color="black", linewidths=1.4, zorder=3)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(table) - 0.5, -0.5)


def _legend(sheet: Sheet, x: float, y: float) -> None:
    from matplotlib.patches import Rectangle

    for name, colour in {**_OF, NO_TOKEN_WORDS: NO_TOKEN}.items():
        corner = (x / sheet.width, 1 - (y + 0.13) / sheet.height)
        size = (0.1 / sheet.width, 0.1 / sheet.height)
        sheet.figure.add_artist(Rectangle(corner, *size, facecolor=colour, linewidth=0))
        sheet.text(x + 0.14, y + 0.02, name, TITLE)
        x += 0.34 + sheet.fonts.width(name, TITLE)


def _style(axes: Any, fonts: Fonts, words: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(tick))
    axes.tick_params(labelsize=NOTE, length=2, width=0.5, color=FRAME, labelcolor=INK)
    axes.tick_params(axis="y", length=0, pad=3)
    axes.set_xlabel(words, fontproperties=fonts.properties(NOTE), labelpad=2)
    for spine in axes.spines.values():
        spine.set_linewidth(0.5)
        spine.set_color(FRAME)
