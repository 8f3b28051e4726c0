"""Shared parts of the experiments' figures: panels, axes, legends and lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd

from normlens.figures.canvas import COLOURS, FRAME, INK, MARKERS, families_for, require_matplotlib
from normlens.studies.reports.words import LAYER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawing: TypeAlias = "Figure"
GREY = "#8c8c8c"
TEXT, SMALL = 8.0, 7.0  # points
#: How every figure looks, as Matplotlib's settings.
STYLE: dict[str, Any] = {
    "font.size": SMALL,
    "axes.labelsize": TEXT,
    "axes.titlesize": TEXT,
    "axes.titlelocation": "left",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": FRAME,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.4,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
}
_TICKS = {
    "color": INK,
    "major.width": 0.6,
    "major.size": 2.5,
    "minor.width": 0.4,
    "minor.size": 1.5,
}
STYLE |= {f"{axis}tick.{name}": value for axis in "xy" for name, value in _TICKS.items()}


def styled(texts: Iterable[str] = ()) -> AbstractContextManager[None]:
    """Draw as in every figure, in fonts that have all letters of `texts`."""
    require_matplotlib()
    from matplotlib import rc_context

    return rc_context(STYLE | {"font.family": families_for(texts)})


def panels(
    columns: int = 1, rows: int = 1, width: float = 3.4, height: float = 2.5, **options: Any
) -> tuple[Figure, list[Any]]:
    """Make a figure with a grid of panels, row by row; `width` and `height` are a panel's."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = (columns * width, rows * height)
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.ravel())


def tiles(
    count: int, columns: int, width: float, height: float, **options: Any
) -> tuple[Figure, list[Any]]:
    """Make a figure with so many panels in rows of at most `columns`."""
    columns = min(columns, count)
    figure, axes = panels(columns, -(-count // columns), width, height, **options)
    for spare in axes[count:]:
        spare.set_visible(False)
    return figure, axes[:count]


def bare(axes: Any) -> None:
    """Remove spines, ticks and grid, for heat maps."""
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.grid(False)


def colour_bar(figure: Figure, image: Any, label: str, **options: Any) -> Any:
    """Draw the key of a heat map's colours."""
    bar = figure.colorbar(image, label=label, **options)
    bar.ax.tick_params(width=0.5, length=2)
    bar.outline.set_visible(False)
    return bar


def style(axes: Any, *, x: str = "", y: str = "", title: str = "", grid: bool = True) -> None:
    """Label the axes."""
    axes.set(xlabel=x, ylabel=y, title=title)
    if not grid:
        axes.grid(False)


def layer_ticks(axes: Any, layers: int) -> None:
    """Tick the horizontal axis with layers from 1, as the papers count, no more than fit."""
    step = max(1, -(-layers // 12))
    axes.set_xticks(range(1, layers + 1, step))
    axes.set_xlim(0.6, layers + 0.4)


def legend(figure: Figure, axes: Iterable[Any], where: str = "lower", **options: Any) -> None:
    """Draw one legend for all panels, above ("upper") or below ("lower") them."""
    handles: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    place = {"loc": f"outside {where} center", "ncols": min(3, len(handles))}
    figure.legend(handles.values(), handles.keys(), **{**place, **options})


def line(
    axes: Any, x: Any, y: Any, low: Any = None, high: Any = None, *, place: int, label: str = ""
) -> None:
    """Draw the `place`-th line of a panel, with its interval as a band if it has one."""
    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
    if low is not None:
        axes.fill_between(x, low, high, color=colour, alpha=0.25, lw=0)
    axes.plot(x, y, marker=marker, color=colour, ms=3.5, lw=1.2, label=label or None)


def layer_lines(
    curves: Mapping[str, pd.DataFrame], y: str, width: float = 3.8, height: float = 2.5
) -> tuple[Figure, Any]:
    """Draw curves over layers in one panel: frames of layer, value, low and high by label."""
    figure, (axes,) = panels(width=width, height=height)
    for place, (label, frame) in enumerate(curves.items()):
        line(axes, *frame.to_numpy(float).T, place=place, label=label)
    layer_ticks(axes, max(int(frame.iloc[:, 0].max()) for frame in curves.values()))
    style(axes, x=LAYER, y=y)
    return figure, axes


def correlation_limits(axes: Any, lowest: float) -> None:
    """Let the vertical axis of correlations go from 0, or from `lowest` if it is below, to 1."""
    axes.set_ylim(min(0.0, lowest - 0.03), 1.03)


def bars(axes: Any, places: Any, frame: pd.DataFrame, **options: Any) -> None:
    """Draw bars of the column rho, with whiskers from low to high if there are such columns."""
    axes.bar(places, frame["rho"], **options)
    if {"low", "high"} <= set(frame):
        error = [frame["rho"] - frame["low"], frame["high"] - frame["rho"]]
        axes.errorbar(places, frame["rho"], error, fmt="none", ecolor="#1a1a1a", elinewidth=0.8)


def heat_map(axes: Any, values: pd.DataFrame, form: str | None = ".2f", **options: Any) -> Any:
    """Draw a table as a heat map with its labels; `form` formats the numbers in its cells."""
    cells = np.ma.masked_invalid(values.to_numpy(float))
    image = axes.imshow(cells, cmap="cividis", aspect="auto", **options)
    for (row, column), value in np.ndenumerate(cells):
        if form is not None and np.isfinite(value):
            how = {"ha": "center", "va": "center", "fontsize": SMALL - 0.5}
            ink = "white" if image.norm(value) < 0.5 else "black"
            axes.text(column, row, format(value, form), color=ink, **how)
    step = -(-len(values.columns) // 12)
    axes.set_xticks(range(0, len(values.columns), step), values.columns[::step])
    axes.set_yticks(range(len(values)), values.index)
    bare(axes)
    return image
