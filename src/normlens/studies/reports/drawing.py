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


def fonts_for(texts: Iterable[str]) -> AbstractContextManager[None]:
    """Draw in fonts that have all letters of `texts`."""
    require_matplotlib()
    from matplotlib import rc_context

    return rc_context({"font.family": families_for(texts)})


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
    """Remove spines and ticks, for heat maps."""
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def colour_bar(figure: Figure, image: Any, label: str, **options: Any) -> Any:
    """Draw the key of a heat map's colours."""
    bar = figure.colorbar(image, **options)
    bar.set_label(label, fontsize=TEXT, color=INK)
    bar.ax.tick_params(labelsize=SMALL, width=0.5, length=2)
    bar.outline.set_visible(False)
    return bar


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


def legend_outside(figure: Figure, handles: Mapping[str, Any], where: str, **options: Any) -> None:
    """Draw one legend for all panels, above ("upper") or below ("lower") them."""
    figure.legend(
        handles.values(),
        handles.keys(),
        loc=f"outside {where} center",
        **{"ncols": len(handles), "fontsize": SMALL, "frameon": False, **options},
    )


def line(axes: Any, x: Any, y: Any, low: Any, high: Any, place: int, label: str = "") -> None:
    """Draw the `place`-th line of a panel, with its interval as a band if it has one."""
    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
    if low is not None and high is not None:
        axes.fill_between(x, low, high, color=colour, alpha=0.25, lw=0)
    axes.plot(x, y, marker=marker, color=colour, ms=3.5, lw=1.2, label=label or None)


def layer_lines(
    curves: Mapping[str, pd.DataFrame], y: str, width: float = 3.8, height: float = 2.5
) -> tuple[Figure, Any]:
    """Draw curves over layers in one panel: frames of layer, value, low and high by label."""
    figure, (axes,) = panels(width=width, height=height)
    for place, (label, frame) in enumerate(curves.items()):
        layer, value, low, high = (frame[column] for column in frame)
        line(axes, layer, value, low, high, place, label)
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
    """Draw a table as a heat map and label its rows; `form` formats the numbers in its cells."""
    cells = np.ma.masked_invalid(values.to_numpy(float))
    image = axes.imshow(cells, cmap="cividis", **options)
    left, right, _, _ = image.get_extent()
    columns = left + (np.arange(len(values.columns)) + 0.5) * (right - left) / len(values.columns)
    if form is not None:
        for (row, column), value in np.ndenumerate(cells):
            if np.isfinite(value):
                how = {"ha": "center", "va": "center", "fontsize": SMALL - 0.5}
                ink = "white" if image.norm(value) < 0.5 else "black"
                axes.text(columns[column], row, format(value, form), color=ink, **how)
    axes.set_yticks(range(len(values)), values.index)
    return image
