"""Bars of signed contributions: one per token, and always one for what no token owns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normlens.figures.canvas import FRAME, INK, LARGEST_TICK, NOTE
from normlens.figures.captions import tick
from normlens.figures.fonts import Fonts
from normlens.figures.signed_colours import NO_TOKEN, SignedColours
from normlens.results.contribution_rows import Row
from normlens.results.explanation_words import decimals, signed_number

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
