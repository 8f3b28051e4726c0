"""A colour bar beside a panel."""

from __future__ import annotations

from typing import Any

from normlens.figures.canvas import INK, NOTE, Sheet
from normlens.figures.captions import tick

BAR_GAP, BAR_WIDTH, BAR_TICKS = 0.06, 0.07, 0.36  # inches


def colour_bar(
    sheet: Sheet,
    image: Any,
    x: float,
    y: float,
    height: float,
    name: str = "",
    *,
    beyond: str = "",
) -> None:
    """Draw the colours of an image with their numbers, and what they measure.

    `beyond` is the colour of what is beyond the scale, if anything is; it stands at the end.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes = sheet.axes(x, y, BAR_WIDTH, height)
    palette = image.cmap.with_extremes(over=beyond) if beyond else image.cmap
    extend = "max" if beyond else "neither"
    shown = ScalarMappable(image.norm, palette)
    bar = sheet.figure.colorbar(shown, cax=axes, extend=extend, extendrect=True)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(tick))
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=NOTE, length=1.5, width=0.5, pad=1.5, colors=INK)
    bar.outline.set_linewidth(0.4)
    if name:
        bar.set_label(name, fontsize=NOTE, color=INK)
