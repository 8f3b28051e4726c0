"""A colour bar beside a panel."""

from __future__ import annotations

from typing import Any

from normlens.figures.canvas import INK, NOTE, Sheet
from normlens.figures.captions import tick

BAR_GAP, BAR_WIDTH, BAR_TICKS = 0.06, 0.07, 0.36  # inches


def colour_bar(sheet: Sheet, image: Any, x: float, y: float, height: float, name: str = "") -> None:
    """Draw the colours of an image with their numbers, and what they measure."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes = sheet.axes(x, y, BAR_WIDTH, height)
    bar = sheet.figure.colorbar(image, cax=axes)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(tick))
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=NOTE, length=1.5, width=0.5, pad=1.5, colors=INK)
    bar.outline.set_linewidth(0.4)
    if name:
        bar.set_label(name, fontsize=NOTE, color=INK)
