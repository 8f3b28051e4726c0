"""Shared parts of the experiments' figures: panels, axes, legends and lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normlens.figures.canvas import COLOURS, FAINT, FRAME, INK, MARKERS, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREY = "#8c8c8c"
TEXT, SMALL = 8.0, 7.0  # points

__all__ = [
    "COLOURS",
    "FAINT",
    "GREY",
    "INK",
    "MARKERS",
    "SMALL",
    "TEXT",
    "layer_ticks",
    "legend",
    "panels",
    "style",
]


def panels(
    columns: int = 1, rows: int = 1, width: float = 3.4, height: float = 2.5, **options: Any
) -> tuple[Figure, list[Any]]:
    """Make a figure with a grid of panels, row by row; `width` and `height` are a panel's."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(columns * width, rows * height), facecolor="white", layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.ravel())


def style(axes: Any, *, x: str = "", y: str = "", title: str = "", grid: bool = True) -> None:
    """Label the axes, and draw thin lines and small ticks."""
    axes.set_xlabel(x, fontsize=TEXT, color=INK)
    axes.set_ylabel(y, fontsize=TEXT, color=INK)
    if title:
        axes.set_title(title, fontsize=TEXT, color=INK, loc="left")
    axes.tick_params(labelsize=SMALL, colors=INK, width=0.6, length=2.5)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(FRAME)
        spine.set_linewidth(0.6)
    if grid:
        axes.grid(axis="y", linewidth=0.4, color="#dddddd")
        axes.set_axisbelow(True)


def layer_ticks(axes: Any, layers: int) -> None:
    """Tick the horizontal axis with layers from 1, as the papers count, no more than fit."""
    step = max(1, -(-layers // 12))
    axes.set_xticks(range(1, layers + 1, step))
    axes.set_xlim(0.6, layers + 0.4)


def legend(axes: Any, **options: Any) -> None:
    """Draw a frameless legend in small type."""
    axes.legend(fontsize=SMALL, frameon=False, handlelength=1.8, **options)


def line(axes: Any, x: Any, y: Any, low: Any, high: Any, place: int, label: str = "") -> None:
    """Draw the `place`-th line of a panel, with its interval as a band."""
    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
    axes.fill_between(x, low, high, color=colour, alpha=0.25, lw=0)
    axes.plot(x, y, marker=marker, color=colour, ms=3.5, lw=1.2, label=label or None)
