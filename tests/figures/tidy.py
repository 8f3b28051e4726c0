"""What is written in a picture, and whether anything in it overlaps or is cut off."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg


def words(figure: Any) -> str:
    """Everything written outside the panels, and what panels are called."""
    texts = list(figure.texts)
    for axes in figure.axes:
        texts += [axes._left_title, axes._right_title, *axes.texts]
        texts += [axes.xaxis.label, axes.yaxis.label]
    return "\n".join(text.get_text() for text in texts)


def panels(figure: Any) -> list[Any]:
    """The panels that have a picture."""
    return [axes for axes in figure.axes if axes.images]


def shown(axes: Any) -> Any:
    """The numbers that a panel shows."""
    return axes.images[0].get_array()


def every_text(figure: Any) -> list[Any]:
    """All text that is drawn; an axis also has labels for ticks beyond its ends."""
    figure.canvas.draw()
    texts = list(figure.texts)
    for axes in figure.axes:
        texts += [axes.xaxis.label, axes.yaxis.label, *axes.texts]
        texts += [axes.title, axes._left_title, axes._right_title]
        if axes.get_legend() is not None:
            texts += axes.get_legend().get_texts()
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True):
                if low <= place <= high:
                    texts.append(label)
    return [text for text in texts if text.get_visible() and text.get_text().strip()]


def colour_at(axes: Any, x: float, y: float) -> Any:
    """The colour (red, green, blue) that is seen at a place of the axes, 0 to 1."""
    canvas = FigureCanvasAgg(axes.figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    column, row = axes.transData.transform((x, y))
    return pixels[len(pixels) - 1 - int(row), int(column), :3] / 255


def assert_tidy(figure: Any) -> None:
    """No text leaves the figure and no two texts overlap."""
    texts = every_text(figure)
    renderer = figure.canvas.get_renderer()
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in texts]
    width, height = figure.canvas.get_width_height()
    for text, box in boxes:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= width, text
        assert box.y1 <= height, text
    for (a, first), (b, second) in combinations(boxes, 2):
        # Half a pixel: boxes are rounded to whole pixels.
        apart = (
            first.x1 <= second.x0 + 0.5
            or second.x1 <= first.x0 + 0.5
            or first.y1 <= second.y0 + 0.5
            or second.y1 <= first.y0 + 0.5
        )
        assert apart, f"{a!r} overlaps {b!r}"
