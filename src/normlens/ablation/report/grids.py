"""Heat maps of layers × components: what each is worth, and how much it changes the map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normlens.figures.canvas import INK
from normlens.figures.colours import SignedColours
from normlens.reports import words
from normlens.reports.drawing import SMALL, TEXT, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

#: More layers leave no room for numbers in the cells.
_NUMBERED = 16
_ABSENT = "#f2f2f2"


def draw_grids(grids: dict[str, pd.DataFrame], labels: dict[str, str]) -> Drawing:
    """Draw tables of layers (rows) × components (columns) side by side, each in its own colours.

    `labels` are those of the colour bars, by the grids' titles. All have the same rows; a component
    that one of them lacks is left grey in it.
    """
    layers = max(len(grid) for grid in grids.values())
    columns = list(dict.fromkeys(name for grid in grids.values() for name in grid))
    width = max(3.0, 0.52 * len(columns) + 1.1)
    high = max(2.4, min(0.28, 6.5 / layers) * layers + 0.9)
    figure, axes = panels(len(grids), 1, width=width, height=high)
    for place, (panel, (title, grid)) in enumerate(zip(axes, grids.items(), strict=True)):
        image = _draw(panel, grid.reindex(columns=columns))
        style(panel, y="" if place else words.LAYER, title=title, grid=False)
        panel.tick_params(length=0)
        for spine in panel.spines.values():
            spine.set_visible(False)
        bar = figure.colorbar(image, ax=panel, fraction=0.05, pad=0.02, aspect=8 * high)
        bar.set_label(labels[title], fontsize=TEXT, color=INK)
        bar.ax.tick_params(labelsize=SMALL, width=0.5, length=2)
        bar.outline.set_visible(False)
        finite = grid.to_numpy(float)[np.isfinite(grid.to_numpy(float))]
        if len(finite) and finite.min() < finite.max():
            # The colours are alike on both sides of 0; the key shows those that occur.
            bar.ax.set_ylim(min(0.0, float(finite.min())), max(0.0, float(finite.max())))
    return figure


def _draw(panel: Any, grid: pd.DataFrame) -> Any:
    values = grid.to_numpy(float)
    # A few large changes beside many small ones: the root brings out the small ones.
    colours = SignedColours(values, scale="sqrt")
    panel.set_facecolor(_ABSENT)
    rows, columns = values.shape
    image = panel.imshow(
        np.ma.masked_invalid(values),
        cmap=colours.cmap,
        norm=colours.norm,
        aspect="auto",
        extent=(-0.5, columns - 0.5, rows + 0.5, 0.5),
    )
    panel.set_xticks(range(columns), list(grid), rotation=45 if columns > 6 else 0)
    panel.xaxis.tick_bottom()
    panel.set_yticks(range(1, rows + 1, max(1, -(-rows // 16))))
    if rows <= _NUMBERED:
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                panel.text(
                    column,
                    row + 1,
                    _short(value),
                    ha="center",
                    va="center",
                    fontsize=SMALL - 1,
                    color=colours.ink(value),
                )
    return image


def _short(value: float) -> str:
    """A number for a small cell: two digits that matter, without a leading 0."""
    size = abs(value)
    text = f"{value:.0f}" if size >= 99.5 else f"{value:.1f}" if size >= 9.95 else f"{value:.2f}"
    if float(text) == 0:
        return "0"
    return text.replace("0.", ".", 1).replace("-", "−") if size < 1 else text.replace("-", "−")
