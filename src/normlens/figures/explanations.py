"""Pictures of an explanation: tokens on colours, bars, and patches of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from normlens.errors import InputError
from normlens.figures.canvas import (
    FAINT,
    FRAME,
    INK,
    LARGEST_TICK,
    MARGIN,
    NOTE,
    TITLE,
    Fonts,
    Head,
    Notes,
    Sheet,
    cut_label,
    fonts_for,
    made,
    model_name,
    require_matplotlib,
    text_lines,
    tick,
)
from normlens.figures.colours import (
    BAR_GAP,
    BAR_TICKS,
    BAR_WIDTH,
    DIVERGING,
    NO_TOKEN,
    SignedColours,
    colour_bar,
)
from normlens.figures.heat_maps import figure_of
from normlens.figures.patches import draw_overlay, picture_note, shape_of
from normlens.results.words import (
    NO_TOKEN_WORDS,
    Row,
    decimals,
    explained_rows,
    place_words,
    score_words,
    share_words,
    signed_number,
    total_words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normlens.results.explanation import Explanation
    from normlens.results.routing import PatchGrid


# A strip of tokens, each on the colour of its number, broken into lines like a text.


_PAD, _GAP, _HEIGHT, _LINE = 0.045, 0.025, 0.19, 0.235  # inches


@dataclass(frozen=True)
class _Chip:
    label: str
    x: float
    line: int
    width: float


class TokenStrip:
    """Tokens with their numbers as colours; the last field is what no token owns, unless None."""

    def __init__(
        self,
        tokens: Sequence[str],
        values: Sequence[float],
        remainder: float | None,
        colours: SignedColours,
        fonts: Fonts,
        width: float,
        read_at: int | None = None,
    ):
        self.values = list(values)
        self.colours, self.fonts, self.read_at = colours, fonts, read_at
        self.size = 8.5 if len(tokens) <= 400 else 6.5
        self.room = width - 2 * MARGIN
        labels = list(tokens)
        if remainder is not None:
            number = signed_number(remainder, decimals(max(colours.largest, abs(remainder))))
            labels.append(f"{NO_TOKEN_WORDS} {number}")
        self.chips = self._laid_out(labels)
        self.height = _LINE * (self.chips[-1].line + 1) + 0.04

    def _laid_out(self, labels: Sequence[str]) -> list[_Chip]:
        chips, x, line = [], 0.0, 0
        for place, label in enumerate(labels):
            shown = self.fonts.cut(label, self.size, self.room - 2 * _PAD)
            width = self.fonts.width(shown, self.size) + 2 * _PAD
            x += 0.08 if place == len(self.values) and x else 0.0
            if x and x + width > self.room:
                x, line = 0.0, line + 1
            chips.append(_Chip(shown, x, line, width))
            x += width + _GAP
        return chips

    def draw(self, sheet: Sheet, y: float) -> None:
        """Draw it with its upper edge at `y` inches."""
        axes = sheet.axes(MARGIN, y, self.room, self.height)
        axes.set(xlim=(0, self.room), ylim=(self.height, 0))
        axes.set(xticks=[], yticks=[])
        axes.axis("off")
        for place, chip in enumerate(self.chips[: len(self.values)]):
            value = self.values[place]
            read = place == self.read_at
            edge, width = (INK, 1.1) if read else (FRAME, 0.3)
            fill, ink = self.colours.of(value), self.colours.ink(value)
            self._chip(axes, chip, fill, ink, edgecolor=edge, linewidth=width)
        style = {"edgecolor": FAINT, "linewidth": 0.6, "linestyle": (0, (3, 2))}
        for chip in self.chips[len(self.values) :]:
            self._chip(axes, chip, "white", INK, **style)

    def _chip(self, axes: Any, chip: _Chip, fill: Any, ink: str, **edge: Any) -> None:
        from matplotlib.patches import Rectangle

        y = chip.line * _LINE + 0.02
        axes.add_patch(
            Rectangle((chip.x, y), chip.width, _HEIGHT, facecolor=fill, clip_on=False, **edge)
        )
        axes.text(
            chip.x + chip.width / 2,
            y + _HEIGHT / 2,
            self.fonts.drawable(chip.label),
            ha="center",
            va="center_baseline",
            color=ink,
            fontproperties=self.fonts.properties(self.size),
            parse_math=False,
        )


# Bars of signed contributions: one per token, and always one for what no token owns.


ROW = 0.165  # inches


def draw_bars(
    axes: Any,
    bars: Sequence[Row],
    colours: SignedColours,
    fonts: Fonts | None,
    width: float,
) -> None:
    """Draw bars from the top down, with their numbers, into axes that are `width` inches wide."""
    values = [bar.value for bar in bars]
    places = decimals(max(map(abs, values)))
    for row, bar in enumerate(bars):
        if bar.is_heading:
            continue
        own = bar.token is not None
        axes.barh(
            row,
            bar.value,
            height=0.78,
            color=colours.of(bar.value) if own else "white",
            edgecolor=FRAME if own else NO_TOKEN,
            linewidth=0.4 if own else 0.8,
            hatch=None if own else "////" if bar.of_no_token else "....",
        )
    _number(axes, bars, places, fonts, width)
    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    labels = [bar.label for bar in bars]
    style: dict[str, Any] = {"parse_math": False, "color": INK}
    if fonts is not None:
        style["fontproperties"] = fonts.properties(LARGEST_TICK)
        labels = [fonts.drawable(label) for label in labels]
    axes.set_yticks(range(len(bars)), labels, **style)
    for label, bar in zip(axes.get_yticklabels(), bars, strict=True):
        if bar.is_heading:
            label.set_fontweight("bold")


def _number(axes: Any, bars: Sequence[Row], places: int, fonts: Fonts | None, width: float) -> None:
    """Numbers at the ends of the bars, and limits that leave room for them."""
    values = [bar.value for bar in bars]
    numbers = [signed_number(value, places) for value in values]
    longest = max(map(len, numbers))
    room = 0.06 + (0.075 * longest if fonts is None else max(fonts.width(n, NOTE) for n in numbers))
    low, high = min(0.0, *values), max(0.0, *values)
    low, high = (low, high) if high > low else (0.0, 1.0)
    left, right = (room if low < 0 else 0.02), (room if high > 0 else 0.02)
    unit = (high - low) / max(width - left - right, 0.2 * width)  # per inch
    axes.set_xlim(low - left * unit, high + right * unit)
    for row, (bar, value, number) in enumerate(zip(bars, values, numbers, strict=True)):
        if bar.is_heading:
            continue
        side = -1 if value < 0 else 1
        axes.annotate(
            number,
            (value, row),
            xytext=(2.5 * side, 0),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="center_baseline",
            fontsize=NOTE,
            color=INK,
        )


def style_bars(axes: Any) -> None:
    """Thin lines, and few numbers below."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(tick))
    axes.tick_params(axis="x", labelsize=NOTE, length=2, width=0.5, color=FRAME, colors=INK)
    axes.tick_params(axis="y", length=0, pad=3)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_linewidth(0.5)
        spine.set_color(FRAME)


# An explanation of a picture: contributions laid over it, and the strongest as bars.


_SIDE = 3.4  # inches of the picture's longer side
_PICTURE_BARS = 2.6
_LONGEST = 18  # bars
_PICTURE_AXIS_WORDS = 0.42


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
    sheet_width = left + _PICTURE_BARS + MARGIN
    head, foot = Head(heading, about, fonts, sheet_width), Notes(notes, fonts, sheet_width)
    top = MARGIN + head.height + 0.1
    tall = ROW * len(bars)
    bottom = top + max(height, tall + _PICTURE_AXIS_WORDS)
    sheet = Sheet(sheet_width, bottom + foot.height + MARGIN, fonts)
    head.draw(sheet)
    axes = sheet.axes(MARGIN, top, width, height)
    image = draw_overlay(axes, grid, grid.of(why.contributions), colours.norm, cmap)
    colour_bar(sheet, image, MARGIN + width + BAR_GAP, top, height)
    axes = sheet.axes(left, top, _PICTURE_BARS, tall)
    draw_bars(axes, bars, colours, fonts, _PICTURE_BARS)
    style_bars(axes)
    axes.set_xlabel("contribution to the score", fontproperties=fonts.properties(NOTE), labelpad=2)
    foot.draw(sheet, bottom)
    return sheet.figure


# An explanation: its tokens on the colours of their contributions, and the same as bars.


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
