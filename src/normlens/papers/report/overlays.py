"""Tables of several reports, laid over each other: one colour per model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd

from normlens.errors import InputError, reason_of
from normlens.figures.fonts import Fonts, fonts_for
from normlens.papers.base import Figure
from normlens.papers.drawing import COLOURS, MARKERS, panels, style
from normlens.papers.report.layout import is_numeric
from normlens.papers.report.words import slug, unique
from normlens.papers.words import LAYER

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

COLUMNS = 3  # panels in a row
MOST = 12  # panels in a figure
_BOUND = re.compile(r"(^|[ _])(low|high)$")
_LABELS = {"rho": "Spearman's ρ"}


class Report(Protocol):
    """A report that was read: its folder, its results, its label and its number of layers."""

    @property
    def folder(self) -> Path: ...
    @property
    def results(self) -> dict[str, Any]: ...
    @property
    def label(self) -> str: ...
    @property
    def layers(self) -> int: ...


@dataclass(frozen=True)
class Own:
    """A table of one report."""

    label: str
    data: str
    layers: int
    frame: pd.DataFrame
    caption: str


#: A curve: depth from 0 to 1, value, and the interval's bounds or None.
Curve = tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]


def drawings(reports: Sequence[Report]) -> dict[str, Figure]:
    """Similarity by component, and every table by layer, where several reports have it."""
    found: dict[str, Figure] = {}
    taken: set[str] = set()
    for name, tables in _shared(reports):
        data = tables[0].data if len({own.data for own in tables}) == 1 else ""
        file = unique(slug(f"compare-{name}-{data}" if data else f"compare-{name}"), taken)
        on = f" On {data}." if data else ""
        if "layer" in tables[0].frame:
            curves = _curves(tables)
            if curves:
                labels = [own.label for own in tables]
                words = [word for what in curves for word in what]
                found[file] = Figure(
                    partial(_drawn, [*labels, *words], partial(_draw_curves, curves, labels)),
                    "By depth (layer, counted from 1, ÷ number of layers): "
                    f"{_beginning(tables[0].caption)}{on}",
                )
        elif all({"component", "rho"} <= set(own.frame) for own in tables):
            words = [word for own in tables for word in (own.label, *own.frame["component"])]
            draw = partial(_drawn, words, partial(_draw_bars, tables))
            found[file] = Figure(draw, f"{_beginning(tables[0].caption)}{on}")
    return found


def _beginning(caption: str) -> str:
    """A caption's first sentence; the rest may be about one report alone."""
    return re.split(r"(?<!\bal)\. (?=[A-Z])", caption)[0].rstrip(".") + "."


def _shared(reports: Sequence[Report]) -> list[tuple[str, list[Own]]]:
    """Tables that several reports have, on the same data if any data set is the same."""
    tables: dict[tuple[str, str], dict[str, list[Own]]] = {}
    for report in reports:
        for experiment in report.results["experiments"]:
            for result in experiment["results"]:
                for name, table in result["tables"].items():
                    columns = table["columns"]
                    if not {LAYER, "component"} & set(columns):
                        continue
                    own = Own(
                        report.label,
                        result["data"],
                        report.layers,
                        _table(report.folder / table["csv"]),
                        table["caption"],
                    )
                    by_data = tables.setdefault((experiment["name"], name), {})
                    by_data.setdefault(result["data"], []).append(own)
    found: list[tuple[str, list[Own]]] = []
    for (_, name), by_data in tables.items():
        same = [(name, owns) for owns in by_data.values() if len(owns) > 1]
        first: dict[str, Own] = {}
        for own in (own for owns in by_data.values() for own in owns):
            first.setdefault(own.label, own)
        if not same and len(first) > 1:
            mixed = [
                Own(f"{own.label} on {own.data}", own.data, own.layers, own.frame, own.caption)
                for own in first.values()
            ]
            same = [(name, mixed)]
        found += same
    return found


def _table(path: Path) -> pd.DataFrame:
    try:
        found = pd.read_csv(path, keep_default_na=False, na_values=[""])
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {str(path)!r} of a report: {reason_of(error)}") from error
    return found.rename(columns={LAYER: "layer"})


def _drawn(words: Sequence[str], draw: Callable[[Fonts], Drawing]) -> Drawing:
    """A drawing in fonts that have all letters of `words`."""
    import matplotlib

    fonts = fonts_for(words)
    with matplotlib.rc_context({"font.family": list(fonts.families)}):
        return draw(fonts)


# Lines by layer ----------------------------------------------------------------------------------


def _curves(tables: Sequence[Own]) -> dict[tuple[str, str], dict[str, Curve]]:
    """Curves of several reports, by what they show: a series and a column."""
    found: dict[tuple[str, str], dict[str, Curve]] = {}
    for own in tables:
        for what, curve in _own_curves(own).items():
            found.setdefault(what, {})[own.label] = curve
    several = [(what, curves) for what, curves in found.items() if len(curves) > 1]
    return dict(several[:MOST])


def _own_curves(own: Own) -> dict[tuple[str, str], Curve]:
    """A table's curves, if it has one row per layer or per series and layer.

    Columns with an interval are what a table is about; other columns are drawn only if none has.
    """
    frame = own.frame.assign(layer=pd.to_numeric(own.frame["layer"], errors="coerce"))
    frame = frame.dropna(subset=["layer"])
    rest = [name for name in frame if name != "layer"]
    words = [name for name in rest if not is_numeric(frame[name])]
    keys = [name for name in words if frame[name].nunique() > 1 and not _varies(frame, name)][:1]
    if frame["layer"].nunique() < 2 or frame.duplicated([*keys, "layer"]).any():
        return {}
    groups = list(frame.groupby(keys[0], sort=False)) if keys else [("", frame)]
    values = [name for name in rest if name not in words and not _BOUND.search(str(name))]
    certain = [name for name in values if _bounds(frame, name)]
    found: dict[tuple[str, str], Curve] = {}
    for key, rows in groups:
        rows = rows.sort_values("layer")
        for name in certain or (values[:1] if keys else values):
            bounds = _bounds(frame, name)
            found[str(key), str(name)] = (
                rows["layer"].to_numpy(float) / own.layers,
                rows[name].to_numpy(float),
                *((rows[end].to_numpy(float) for end in bounds) if bounds else (None, None)),
            )
    return found


def _varies(frame: pd.DataFrame, name: str) -> bool:
    """Whether some of a column's words stand in some layers only, as words of a text do."""
    return bool(frame.groupby(name)["layer"].nunique().lt(frame["layer"].nunique()).any())


def _bounds(frame: pd.DataFrame, name: str) -> tuple[str, str] | None:
    """Columns of a value's interval: "x low" and "x high", or "low" and "high" of the first."""
    first = next(column for column in frame if column != "layer" and is_numeric(frame[column]))
    pairs = [(f"{name} low", f"{name} high"), (f"{name}_low", f"{name}_high")]
    pairs += [("low", "high"), ("95 % low", "95 % high")] if name == first else []
    return next((pair for pair in pairs if set(pair) <= set(frame)), None)


def _draw_curves(
    curves: Mapping[tuple[str, str], Mapping[str, Curve]], labels: Sequence[str], fonts: Fonts
) -> Drawing:
    columns = min(COLUMNS, len(curves))
    rows = -(-len(curves) // columns)
    alike = len({name for _, name in curves}) == 1
    width = 2.4 if columns > 1 else 4.0
    figure, axes = panels(columns, rows, width=width, height=2.1, sharey=alike)
    series = {series for series, _ in curves}
    for place, (panel, ((key, name), own)) in enumerate(zip(axes, curves.items(), strict=False)):
        for label, (depth, value, low, high) in own.items():
            number, text = labels.index(label), fonts.drawable(label)
            colour = COLOURS[number % len(COLOURS)]
            if low is not None and high is not None:
                panel.fill_between(depth, low, high, color=colour, alpha=0.2, lw=0)
            marker = MARKERS[number % len(MARKERS)]
            panel.plot(depth, value, color=colour, marker=marker, ms=3, lw=1.2, label=text)
        panel.set_xlim(0, 1.03)
        shown = _LABELS.get(name, fonts.drawable(name.replace("_", " ")))
        title = fonts.drawable(key) if len(series) > 1 else ""
        style(
            panel,
            x="layer (counted from 1) ÷ layers" if place >= len(curves) - columns else "",
            y=shown if not alike or place % columns == 0 else "",
            title=title,
        )
    for panel in axes[len(curves) :]:
        panel.set_visible(False)
    _legend(figure, axes)
    return figure


# Bars by component -------------------------------------------------------------------------------


def _draw_bars(tables: Sequence[Own], fonts: Fonts) -> Drawing:
    components = list(dict.fromkeys(name for own in tables for name in own.frame["component"]))
    width = 0.8 / len(tables)
    figure, axes = panels(width=max(3.6, 0.5 + len(components) * (0.3 + 0.16 * len(tables))))
    lowest = 0.0
    for number, own in enumerate(tables):
        frame = own.frame.set_index("component")
        places = [
            components.index(name) + (number - (len(tables) - 1) / 2) * width
            for name in frame.index
        ]
        lowest = min(lowest, float(frame["rho"].min()) - 0.05)
        colour = COLOURS[number % len(COLOURS)]
        axes[0].bar(
            places, frame["rho"], width=0.9 * width, color=colour, label=fonts.drawable(own.label)
        )
        if {"low", "high"} <= set(frame):
            error = [frame["rho"] - frame["low"], frame["high"] - frame["rho"]]
            axes[0].errorbar(places, frame["rho"], error, fmt="none", ecolor="#1a1a1a", lw=0.8)
    axes[0].set_xticks(range(len(components)), map(fonts.drawable, components))
    axes[0].set_ylim(lowest, 1.03)
    style(axes[0], x="component", y="Spearman's ρ before / after")
    _legend(figure, axes)
    return figure


def _legend(figure: Drawing, axes: Sequence[Any]) -> None:
    """One legend above all panels."""
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
