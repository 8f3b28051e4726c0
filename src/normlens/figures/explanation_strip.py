"""An explanation: its tokens on the colours of their contributions, and the same as bars."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from normlens.errors import InputError
from normlens.figures.canvas import (
    LARGEST_TICK,
    MARGIN,
    NOTE,
    TITLE,
    Head,
    Notes,
    Sheet,
    require_matplotlib,
)
from normlens.figures.captions import cut_label, made, model_name, text_lines
from normlens.figures.contribution_bars import ROW, draw_bars, style_bars
from normlens.figures.explained_picture import plot_explained_picture
from normlens.figures.fonts import Fonts, fonts_for
from normlens.figures.foreign_axes import figure_of
from normlens.figures.signed_colours import DIVERGING, SignedColours
from normlens.figures.token_strip import TokenStrip
from normlens.results.contribution_rows import explained_rows
from normlens.results.explanation_words import (
    place_words,
    score_words,
    share_words,
    total_words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.explanation import Explanation

_WIDTH = 6.6
_AXIS_WORDS = 0.42
_LABEL = 0.16  # above the strip of one of two sequences


def plot_explanation(
    why: Explanation, *, cmap: str = DIVERGING, max_label: int = 24, ax: Axes | None = None
) -> Figure:
    """Draw what each token contributes to the score: a strip of tokens, and bars below it.

    The bars sum to the score, with what no token owns among them. A long text has bars for its
    strongest tokens, and one for all others together. `cmap` is a diverging colour map of
    matplotlib; labels longer than `max_label` characters are cut. `ax` takes the bars into axes of
    yours. Of a picture the contributions of its patches are laid over it.
    """
    require_matplotlib()
    if max_label < 1:
        raise InputError(f"max_label must be at least 1, not {max_label}")
    colours = SignedColours(why.contributions, cmap)
    bars = [
        row if row.token is None else replace(row, label=cut_label(row.label, max_label))
        for row in explained_rows(why)
    ]
    if ax is not None:
        draw_bars(ax, bars, colours, None, ax.get_window_extent().width / figure_of(ax).dpi)
        ax.set_title(why.question, parse_math=False)
        ax.set_xlabel("contribution to the score")
        return figure_of(ax)

    if why.grid is not None:
        return plot_explained_picture(why, why.grid, cmap)
    heading = f"{model_name(why)}: {why.question}"
    about = [score_words(why), f"{place_words(why)}; {total_words(why)}"]
    if why.has_two_sequences:
        about.append(share_words(why))
    notes = [
        "Colour and bars: what each token contributes to the score, red above 0, blue below."
        + ("" if why.position is None else " A dark frame marks the token where it is read."),
        made(why.provenance, why.completeness),
    ]
    fonts = fonts_for([*why.tokens, heading, *text_lines(why), *about, *notes, "□…−–"])
    head = Head(heading, [*text_lines(why), *about], fonts, _WIDTH)
    strips = _strips(why, colours, fonts)
    strips_height = sum(strip.height + (_LABEL if name else 0) for name, strip in strips)
    foot = Notes(notes, fonts, _WIDTH)
    left = MARGIN + max(fonts.width(bar.label, LARGEST_TICK) for bar in bars) + 0.08
    height = ROW * len(bars)
    top = MARGIN + head.height + strips_height + 0.12
    sheet = Sheet(_WIDTH, top + height + _AXIS_WORDS + foot.height + MARGIN, fonts)
    head.draw(sheet)
    y = MARGIN + head.height
    for name, strip in strips:
        if name:
            sheet.text(MARGIN, y, name, TITLE, "bold")
            y += _LABEL
        strip.draw(sheet, y)
        y += strip.height
    width = _WIDTH - left - MARGIN
    axes = sheet.axes(left, top, width, height)
    draw_bars(axes, bars, colours, fonts, width)
    style_bars(axes)
    axes.set_xlabel("contribution to the score", fontproperties=fonts.properties(NOTE), labelpad=2)
    foot.draw(sheet, top + height + _AXIS_WORDS)
    return sheet.figure


def _strips(why: Explanation, colours: SignedColours, fonts: Fonts) -> list[tuple[str, TokenStrip]]:
    """A strip for each sequence, with its name where there are two."""
    strips = []
    for part in why.sequences:
        last = part is why.sequences[-1]
        read_at = None if why.read_at is None else why.read_at - part.first
        values = list(map(float, part.contributions))
        remainder = why.remainder if last else None
        read_here = read_at if last else None
        strip = TokenStrip(part.tokens, values, remainder, colours, fonts, _WIDTH, read_here)
        strips.append((part.name, strip))
    return strips
