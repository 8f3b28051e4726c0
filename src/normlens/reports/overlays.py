"""Tables of several reports, laid over each other: one colour per model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd

from normlens.errors import InputError, reason_of
from normlens.figures.canvas import COLOURS, drawable, families_for
from normlens.reports.base import Figure
from normlens.reports.drawing import panels, style
from normlens.reports.formatting import slug, unique
from normlens.reports.overlay_curves import (
    ReportTable,
    curves_of,
    draw_curves,
    legend_above,
)
from normlens.reports.words import LAYER

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


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


def drawings(reports: Sequence[Report]) -> dict[str, Figure]:
    """Draw similarity by component, and every table by layer, that several reports share."""
    figures: dict[str, Figure] = {}
    taken: set[str] = set()
    for name, tables in _shared_tables(reports):
        data = tables[0].data if len({table.data for table in tables}) == 1 else ""
        file = unique(slug(f"compare-{name}-{data}" if data else f"compare-{name}"), taken)
        on = f" On {data}." if data else ""
        if "layer" in tables[0].frame:
            curves = curves_of(tables)
            if curves:
                labels = [table.label for table in tables]
                words = [word for what in curves for word in what]
                figures[file] = Figure(
                    partial(_in_fonts_for, [*labels, *words], partial(draw_curves, curves, labels)),
                    "By depth (layer, counted from 1, ÷ number of layers): "
                    f"{_beginning(tables[0].caption)}{on}",
                )
        elif all({"component", "rho"} <= set(table.frame) for table in tables):
            words = [word for table in tables for word in (table.label, *table.frame["component"])]
            draw = partial(_in_fonts_for, words, partial(draw_bars, tables))
            figures[file] = Figure(draw, f"{_beginning(tables[0].caption)}{on}")
    return figures


def _beginning(caption: str) -> str:
    """Take a caption's first sentence; the rest may be about one report alone."""
    return re.split(r"(?<!\bal)\. (?=[A-Z])", caption)[0].rstrip(".") + "."


def _shared_tables(reports: Sequence[Report]) -> list[tuple[str, list[ReportTable]]]:
    """Read the tables that several reports share, on the same data if any data set is the same."""
    tables: dict[tuple[str, str], dict[str, list[ReportTable]]] = {}
    for report in reports:
        for experiment in report.results["experiments"]:
            for result in experiment["results"]:
                for name, table in result["tables"].items():
                    columns = table["columns"]
                    if not {LAYER, "component"} & set(columns):
                        continue
                    shared = ReportTable(
                        report.label,
                        result["data"],
                        report.layers,
                        _read_table(report.folder / table["csv"]),
                        table["caption"],
                    )
                    by_data = tables.setdefault((experiment["name"], name), {})
                    by_data.setdefault(result["data"], []).append(shared)
    shared_tables: list[tuple[str, list[ReportTable]]] = []
    for (_, name), by_data in tables.items():
        same = [(name, of_data) for of_data in by_data.values() if len(of_data) > 1]
        first: dict[str, ReportTable] = {}
        for one in (one for of_data in by_data.values() for one in of_data):
            first.setdefault(one.label, one)
        if not same and len(first) > 1:
            mixed = [replace(one, label=f"{one.label} on {one.data}") for one in first.values()]
            same = [(name, mixed)]
        shared_tables += same
    return shared_tables


def _read_table(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {str(path)!r} of a report: {reason_of(error)}") from error
    return frame.rename(columns={LAYER: "layer"})


def _in_fonts_for(words: Sequence[str], draw: Callable[[], Drawing]) -> Drawing:
    """Draw in fonts that have all letters of `words`."""
    import matplotlib

    with matplotlib.rc_context({"font.family": families_for(words)}):
        return draw()


def draw_bars(tables: Sequence[ReportTable]) -> Drawing:
    components = list(dict.fromkeys(name for table in tables for name in table.frame["component"]))
    width = 0.8 / len(tables)
    figure, axes = panels(width=max(3.6, 0.5 + len(components) * (0.3 + 0.16 * len(tables))))
    lowest = 0.0
    for place, table in enumerate(tables):
        frame = table.frame.set_index("component")
        places = [
            components.index(name) + (place - (len(tables) - 1) / 2) * width for name in frame.index
        ]
        lowest = min(lowest, float(frame["rho"].min()) - 0.05)
        colour = COLOURS[place % len(COLOURS)]
        axes[0].bar(
            places, frame["rho"], width=0.9 * width, color=colour, label=drawable(table.label)
        )
        if {"low", "high"} <= set(frame):
            error = [frame["rho"] - frame["low"], frame["high"] - frame["rho"]]
            axes[0].errorbar(places, frame["rho"], error, fmt="none", ecolor="#1a1a1a", lw=0.8)
    axes[0].set_xticks(range(len(components)), map(drawable, components))
    axes[0].set_ylim(lowest, 1.03)
    style(axes[0], x="component", y="Spearman's ρ before / after")
    legend_above(figure, axes)
    return figure
