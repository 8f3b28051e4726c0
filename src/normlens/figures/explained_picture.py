"""An explanation of a picture: contributions laid over it, and the strongest as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normlens.figures.canvas import LARGEST_TICK, MARGIN, NOTE, Head, Notes, Sheet
from normlens.figures.captions import made, model_name
from normlens.figures.colour_bar import BAR_GAP, BAR_TICKS, BAR_WIDTH, colour_bar
from normlens.figures.contribution_bars import ROW, draw_bars, style_bars
from normlens.figures.fonts import fonts_for
from normlens.figures.patch_overlay import draw_overlay, picture_note, shape_of
from normlens.figures.signed_colours import SignedColours
from normlens.results.contribution_rows import explained_rows
from normlens.results.explanation_words import place_words, score_words, total_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normlens.results.explanation import Explanation
    from normlens.results.patches import PatchGrid

_SIDE = 3.4  # inches of the picture's longer side
_BARS = 2.6
_LONGEST = 18  # bars
_AXIS_WORDS = 0.42


def plot_explained_picture(why: Explanation, grid: PatchGrid, cmap: str) -> Figure:
    """Draw what each patch contributes to the score, over the picture.

    The bars beside it sum to the score: the strongest tokens, all others, and what no token owns.
    """
    colours = SignedColours(why.contributions, cmap)
    bars = explained_rows(why, _LONGEST)
    heading = f"{model_name(why)}: {why.question}"
    about = [score_words(why), f"{place_words(why)}; {total_words(why)}"]
    notes = [
        "Colour and bars: what each patch contributes to the score, red above 0, blue below.",
        *picture_note(grid),
        made(why.provenance, why.completeness),
    ]
    fonts = fonts_for([*why.tokens, heading, *about, *notes, "□…−–"])
    width, height = (_SIDE * share for share in shape_of(grid))
    labels = max(fonts.width(bar.label, LARGEST_TICK) for bar in bars) + 0.08
    left = MARGIN + width + BAR_GAP + BAR_WIDTH + BAR_TICKS + 0.25 + labels
    sheet_width = left + _BARS + MARGIN
    head, foot = Head(heading, about, fonts, sheet_width), Notes(notes, fonts, sheet_width)
    top = MARGIN + head.height + 0.1
    tall = ROW * len(bars)
    bottom = top + max(height, tall + _AXIS_WORDS)
    sheet = Sheet(sheet_width, bottom + foot.height + MARGIN, fonts)
    head.draw(sheet)
    axes = sheet.axes(MARGIN, top, width, height)
    image = draw_overlay(axes, grid, grid.of(why.contributions), colours.norm, cmap)
    colour_bar(sheet, image, MARGIN + width + BAR_GAP, top, height)
    axes = sheet.axes(left, top, _BARS, tall)
    draw_bars(axes, bars, colours, fonts, _BARS)
    style_bars(axes)
    axes.set_xlabel("contribution to the score", fontproperties=fonts.properties(NOTE), labelpad=2)
    foot.draw(sheet, bottom)
    return sheet.figure
