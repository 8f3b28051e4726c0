"""Several reports side by side: one column or one colour per model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normlens.corpus.runs.folder import LocalFolder
from normlens.errors import InputError, listed, parse_json, reason_of
from normlens.figures.canvas import COLOURS, drawable
from normlens.studies.reports.contents import Figure
from normlens.studies.reports.drawing import bars, fonts_for, legend_outside, line, panels, style
from normlens.studies.reports.files import (
    FORMAT,
    RESULTS,
    VERSION,
    Writer,
    escaped,
    grid,
    linked,
    rendered,
)
from normlens.studies.reports.layout import is_numeric
from normlens.studies.reports.words import DASH, LAYER, number, shortened, slug, unique

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Tables by layer as curves over depth, one colour per report.


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
    with fonts_for([*labels, *(word for what in curves for word in what)]):
        columns = min(COLUMNS, len(curves))
        rows = -(-len(curves) // columns)
        alike = len({name for _, name in curves}) == 1
        width = 2.4 if columns > 1 else 4.0
        figure, axes = panels(columns, rows, width=width, height=2.1, sharey=alike)
        series = {series for series, _ in curves}
        for place, ((key, name), by_label) in enumerate(curves.items()):
            panel = axes[place]
            for label, curve in by_label.items():
                line(panel, *curve, labels.index(label), drawable(label))
            panel.set_xlim(0, 1.03)
            style(
                panel,
                x="layer (counted from 1) ÷ layers" if place >= len(curves) - columns else "",
                y=_LABELS.get(name, drawable(name.replace("_", " ")))
                if not alike or place % columns == 0
                else "",
                title=drawable(key) if len(series) > 1 else "",
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
    legend_outside(figure, handles, "upper", ncols=min(3, len(handles)))


# Tables of several reports, laid over each other: one colour per model.


@dataclass(frozen=True)
class OpenedReport:
    """A report's folder and the contents of its results.json."""

    folder: Path
    results: dict[str, Any]
    label: str  # of its column

    @property
    def layers(self) -> int:
        return int(self.results["model"]["layers"])


def overlay_figures(reports: Sequence[OpenedReport]) -> dict[str, Figure]:
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
                figures[file] = Figure(
                    partial(draw_curves, curves, [table.label for table in tables]),
                    "By depth (layer, counted from 1, ÷ number of layers): "
                    f"{_beginning(tables[0].caption)}{on}",
                )
        elif all({"component", "rho"} <= set(table.frame) for table in tables):
            figures[file] = Figure(
                partial(draw_bars, tables), f"{_beginning(tables[0].caption)}{on}"
            )
    return figures


def _beginning(caption: str) -> str:
    """Take a caption's first sentence; the rest may be about one report alone."""
    return re.split(r"(?<!\bal)\. (?=[A-Z])", caption)[0].rstrip(".") + "."


def _shared_tables(reports: Sequence[OpenedReport]) -> list[tuple[str, list[ReportTable]]]:
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


def draw_bars(tables: Sequence[ReportTable]) -> Drawing:
    components = list(dict.fromkeys(name for table in tables for name in table.frame["component"]))
    with fonts_for([*components, *(table.label for table in tables)]):
        width = 0.8 / len(tables)
        figure, axes = panels(width=max(3.6, 0.5 + len(components) * (0.3 + 0.16 * len(tables))))
        lowest = 0.0
        for place, table in enumerate(tables):
            frame = table.frame.set_index("component")
            places = [
                components.index(name) + (place - (len(tables) - 1) / 2) * width
                for name in frame.index
            ]
            lowest = min(lowest, float(frame["rho"].min()) - 0.05)
            colour = COLOURS[place % len(COLOURS)]
            bars(
                axes[0], places, frame, width=0.9 * width, color=colour, label=drawable(table.label)
            )
        axes[0].set_xticks(range(len(components)), map(drawable, components))
        axes[0].set_ylim(lowest, 1.03)
        style(axes[0], x="component", y="Spearman's ρ before / after")
        legend_above(figure, axes)
    return figure


# Several reports side by side: one column per model.


_MODEL_COLUMNS = ("model", "type", "layers", "layer's components", "weights", "data")
_RIGHT = (False, False, True, False, False, False)
#: The numbers of one experiment as text: its title, its source, and rows of quantity, data, values.
Group = tuple[str, str, list[tuple[str, ...]]]


def write_comparison(folders: Sequence[str | Path], out: str | Path) -> list[Path]:
    """Set reports side by side: comparison.html, .md and .csv, and figures, in the folder `out`."""
    reports = read_reports(folders)
    numbers = _numbers(reports)
    if numbers.empty:
        raise InputError(
            "these reports hold no numbers to compare; run normlens reproduce report on each"
        )
    groups: list[Group] = [
        (
            str(title),
            str(source),
            [
                (quantity, data or DASH, *map(number, values))
                for _, _, quantity, data, *values in rows.itertuples(index=False, name=None)
            ],
        )
        for (title, source), rows in numbers.groupby(["experiment", "source"], sort=False)
    ]
    figures = overlay_figures(reports)
    writer = Writer(out)
    drawn = {name: writer.put_figure(name, figure) for name, figure in figures.items()}
    labels = [report.label for report in reports]
    title = f"{listed(labels) if len(labels) < 5 else f'{len(labels)} models'} side by side"
    captions = [(name, figure.caption) for name, figure in figures.items()]
    models = [_model_row(report) for report in reports]
    writer.put_table("comparison.csv", numbers.drop(columns="source"))
    writer.put("comparison.md", _markdown(title, models, labels, groups, captions))
    page = rendered(
        "comparison.html.j2",
        drawn,
        title=title,
        model_columns=_MODEL_COLUMNS,
        models=models,
        right=_RIGHT,
        labels=labels,
        groups=groups,
        drawings=captions,
    )
    writer.put("comparison.html", page)
    return writer.paths


def read_reports(folders: Sequence[str | Path]) -> list[OpenedReport]:
    """Open reports; models of the same name are told apart by their folders."""
    if len(folders) < 2:
        raise InputError("a comparison needs at least two folders with reports")
    opened = [(Path(folder), _read(Path(folder))) for folder in folders]
    names = [results["model"]["name"] for _, results in opened]
    taken: set[str] = set()
    reports = []
    for (folder, results), name in zip(opened, names, strict=True):
        label = name if names.count(name) == 1 else f"{name} ({folder.resolve().name})"
        reports.append(OpenedReport(folder, results, unique(label, taken)))
    return reports


def _read(folder: Path) -> dict[str, Any]:
    contents = LocalFolder(folder).read(RESULTS)
    if contents is None:
        raise InputError(
            f"there is no report in {str(folder)!r} (no {RESULTS}); make one with "
            f"normlens reproduce report {folder}"
        )
    try:
        results = parse_json(contents)
        if results["format"] != FORMAT:
            raise ValueError("it is of another kind")
        if results["version"] > VERSION:
            raise InputError(
                f"the report in {str(folder)!r} was written by a newer NormLens; upgrade it"
            )
        int(results["model"]["layers"]), str(results["model"]["name"])
        for experiment in results["experiments"]:
            for result in experiment["results"]:
                for name in ("data", "summary", "tables"):
                    _ = result[name]
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{RESULTS} in {str(folder)!r} is damaged or not a report's; make it again with "
            f"normlens reproduce report {folder}"
        ) from error
    return results


def _numbers(reports: Sequence[OpenedReport]) -> pd.DataFrame:
    """Collect the summary numbers: a row per experiment, quantity and data, a column per report."""
    titles: dict[str, tuple[str, str]] = {}
    cells: dict[tuple[str, str, str], dict[str, float | None]] = {}
    for report in reports:
        for experiment in report.results["experiments"]:
            titles.setdefault(experiment["name"], (experiment["title"], experiment["source"]))
            for result in experiment["results"]:
                for quantity, value in result["summary"].items():
                    row = cells.setdefault((experiment["name"], quantity, result["data"]), {})
                    row[report.label] = value
    # Experiments and quantities in their order, each quantity with its data sets below each other.
    experiments = list(dict.fromkeys(name for name, _, _ in cells))
    quantities = list(dict.fromkeys((name, quantity) for name, quantity, _ in cells))
    ordered = sorted(
        cells, key=lambda row: (experiments.index(row[0]), quantities.index((row[0], row[1])))
    )
    labels = [report.label for report in reports]
    return pd.DataFrame(
        [
            (*titles[name], quantity, data, *map(cells[name, quantity, data].get, labels))
            for name, quantity, data in ordered
        ],
        columns=["experiment", "source", "quantity", "data", *labels],
        dtype=object,
    )


def _model_row(report: OpenedReport) -> tuple[str, ...]:
    model = report.results["model"]
    data = dict.fromkeys(run["data"] for run in report.results.get("runs", ()))
    return (
        report.label,
        str(model.get("type", "")),
        str(model["layers"]),
        str(model.get("components", "")),
        shortened(model.get("weights") or "–"),
        ", ".join(data),
    )


def _markdown(
    title: str,
    models: Sequence[tuple[str, ...]],
    labels: Sequence[str],
    groups: Sequence[Group],
    captions: Sequence[tuple[str, str]],
) -> str:
    lines = [f"# {escaped(title)}", "", *grid(_MODEL_COLUMNS, models, _RIGHT)]
    for heading, source, rows in groups:
        lines += ["", f"## {escaped(heading)}", "", f"*{escaped(source)}*", ""]
        lines += grid(("quantity", "data", *labels), rows, [False, False] + [True] * len(labels))
    for name, caption in captions:
        lines += ["", *linked(name, caption)]
    return "\n".join(lines) + "\n"
