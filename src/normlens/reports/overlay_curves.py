"""Tables by layer as curves over depth, one colour per report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normlens.figures.canvas import COLOURS, MARKERS, drawable
from normlens.reports.drawing import panels, style
from normlens.reports.layout import is_numeric

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

COLUMNS = 3  # panels in a row
MOST = 12  # panels in a figure
_BOUND = re.compile(r"(^|[ _])(low|high)$")
_LABELS = {"rho": "Spearman's ρ"}
#: A curve: depth from 0 to 1, value, and the interval's bounds or None.
Curve = tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]


@dataclass(frozen=True)
class ReportTable:
    """A table of one report."""

    label: str
    data: str
    layers: int
    frame: pd.DataFrame
    caption: str


def curves_of(tables: Sequence[ReportTable]) -> dict[tuple[str, str], dict[str, Curve]]:
    """Collect the curves that several reports share, by series and column."""
    by_content: dict[tuple[str, str], dict[str, Curve]] = {}
    for table in tables:
        for content, curve in _table_curves(table).items():
            by_content.setdefault(content, {})[table.label] = curve
    several = [(content, curves) for content, curves in by_content.items() if len(curves) > 1]
    return dict(several[:MOST])


def _table_curves(table: ReportTable) -> dict[tuple[str, str], Curve]:
    """Read a table's curves, if it has one row per layer or per series and layer.

    Columns with an interval are what a table is about; other columns are drawn only if none has.
    """
    frame = table.frame.assign(layer=pd.to_numeric(table.frame["layer"], errors="coerce"))
    frame = frame.dropna(subset=["layer"])
    rest = [name for name in frame if name != "layer"]
    words = [name for name in rest if not is_numeric(frame[name])]
    keys = [name for name in words if frame[name].nunique() > 1 and not _varies(frame, name)][:1]
    if frame["layer"].nunique() < 2 or frame.duplicated([*keys, "layer"]).any():
        return {}
    groups = list(frame.groupby(keys[0], sort=False)) if keys else [("", frame)]
    values = [name for name in rest if name not in words and not _BOUND.search(str(name))]
    certain = [name for name in values if _bounds(frame, name)]
    curves: dict[tuple[str, str], Curve] = {}
    for key, rows in groups:
        rows = rows.sort_values("layer")
        for name in certain or (values[:1] if keys else values):
            bounds = _bounds(frame, name)
            curves[str(key), str(name)] = (
                rows["layer"].to_numpy(float) / table.layers,
                rows[name].to_numpy(float),
                *((rows[end].to_numpy(float) for end in bounds) if bounds else (None, None)),
            )
    return curves


def _varies(frame: pd.DataFrame, name: str) -> bool:
    """Whether some of a column's words occur in some layers only, as words of a text do."""
    return bool(frame.groupby(name)["layer"].nunique().lt(frame["layer"].nunique()).any())


def _bounds(frame: pd.DataFrame, name: str) -> tuple[str, str] | None:
    """Find a value's interval: columns "x low" and "x high", or "low" and "high" of the first."""
    first = next(column for column in frame if column != "layer" and is_numeric(frame[column]))
    pairs = [(f"{name} low", f"{name} high"), (f"{name}_low", f"{name}_high")]
    pairs += [("low", "high"), ("95 % low", "95 % high")] if name == first else []
    return next((pair for pair in pairs if set(pair) <= set(frame)), None)


def draw_curves(
    curves: Mapping[tuple[str, str], Mapping[str, Curve]], labels: Sequence[str]
) -> Drawing:
    columns = min(COLUMNS, len(curves))
    rows = -(-len(curves) // columns)
    alike = len({name for _, name in curves}) == 1
    width = 2.4 if columns > 1 else 4.0
    figure, axes = panels(columns, rows, width=width, height=2.1, sharey=alike)
    series = {series for series, _ in curves}
    for place, (panel, ((key, name), by_label)) in enumerate(
        zip(axes, curves.items(), strict=False)
    ):
        for label, (depth, value, low, high) in by_label.items():
            place, text = labels.index(label), drawable(label)
            colour = COLOURS[place % len(COLOURS)]
            if low is not None and high is not None:
                panel.fill_between(depth, low, high, color=colour, alpha=0.2, lw=0)
            marker = MARKERS[place % len(MARKERS)]
            panel.plot(depth, value, color=colour, marker=marker, ms=3, lw=1.2, label=text)
        panel.set_xlim(0, 1.03)
        shown = _LABELS.get(name, drawable(name.replace("_", " ")))
        title = drawable(key) if len(series) > 1 else ""
        style(
            panel,
            x="layer (counted from 1) ÷ layers" if place >= len(curves) - columns else "",
            y=shown if not alike or place % columns == 0 else "",
            title=title,
        )
    for panel in axes[len(curves) :]:
        panel.set_visible(False)
    legend_above(figure, axes)
    return figure


def legend_above(figure: Drawing, axes: Sequence[Any]) -> None:
    """Draw one legend above all panels."""
    handles: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside upper center",
        ncols=min(3, len(handles)),
        fontsize=7.0,
        frameon=False,
    )
