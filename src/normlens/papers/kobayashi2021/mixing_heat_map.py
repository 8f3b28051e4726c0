"""The heat maps of mixing ratios: layer by category of tokens, a panel per method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normlens.figures.canvas import INK
from normlens.reports import words
from normlens.reports.drawing import SMALL, TEXT, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def draw_grid(grid: pd.DataFrame, scopes: list[str]) -> Drawing:
    """Draw layer × category heat maps, one panel per method; with one category, layer × method."""
    categories = list(grid)[2:]
    if len(categories) == 1:
        methods = grid.pivot(index="method", columns="layer", values=categories[0]).loc[scopes]
        shown = {f"{categories[0]} tokens": methods}
    else:
        by_method = {s: grid[grid["method"] == s].set_index("layer") for s in scopes}
        shown = {scope: rows[categories].T for scope, rows in by_method.items()}
    columns = 1 if len(shown) == 1 else 2
    rows = -(-len(shown) // columns)
    high = len(next(iter(shown.values())))
    width = 4.6 if len(shown) == 1 else 3.4
    figure, axes = panels(columns, rows, width=width, height=0.42 + 0.19 * high)
    image: Any = None
    for place, (panel, title) in enumerate(zip(axes, shown, strict=False)):
        image = _draw_heat_map(panel, shown[title])
        label = words.LAYER if place // columns == rows - 1 else ""
        style(panel, x=label, title=title, grid=False)
        if place % columns:
            panel.set_yticklabels([])
        panel.tick_params(length=0)
        for spine in panel.spines.values():
            spine.set_visible(False)
    for panel in axes[len(shown) :]:
        panel.set_axis_off()
    bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01, aspect=30)
    bar.set_label("mixing ratio (%)", fontsize=TEXT, color=INK)
    bar.ax.tick_params(labelsize=SMALL, width=0.5, length=2)
    bar.outline.set_visible(False)
    return figure


def _draw_heat_map(panel: Any, values: pd.DataFrame) -> Any:
    """Draw one heat map: rows by name, layers from left to right, numbers where they fit."""
    high, n_layers = values.shape
    image = panel.imshow(
        np.ma.masked_invalid(values.to_numpy(float)),
        cmap="cividis",
        vmin=0,
        vmax=100,
        aspect="auto",
        extent=(0.5, n_layers + 0.5, high - 0.5, -0.5),
    )
    if n_layers <= 12:
        _write_values(panel, values)
    panel.set_xticks(range(1, n_layers + 1, max(1, -(-n_layers // 12))))
    panel.set_yticks(range(high), values.index)
    return image


def _write_values(panel: Any, values: pd.DataFrame) -> None:
    for y, row in enumerate(values.to_numpy(float)):
        for layer, value in zip(values.columns, row, strict=True):
            if np.isfinite(value):
                panel.text(
                    layer,
                    y,
                    f"{value:.0f}",
                    ha="center",
                    va="center",
                    fontsize=SMALL - 0.5,
                    color="white" if value < 50 else "black",
                )
