"""Several reports side by side: one column or one colour per model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from normlens.corpus.runs.folder import LocalFolder
from normlens.errors import InputError, listed, parse_json, reason_of
from normlens.figures.canvas import COLOURS, drawable
from normlens.studies.reports import drawing
from normlens.studies.reports.contents import Figure, is_numeric
from normlens.studies.reports.files import FORMAT, RESULTS, VERSION, Writer, rendered
from normlens.studies.reports.words import DASH, LAYER, number, shortened, slug, unique

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

    @property
    def subject(self) -> str:
        """The caption's first sentence; the rest may be about one report alone."""
        return re.split(r"(?<!\bal)\. (?=[A-Z])", self.caption)[0].rstrip(".") + "."


def curves_of(tables: Sequence[ReportTable]) -> dict[tuple[str, str], dict[str, Curve]]:
    """Collect the curves that several reports share, by series and column."""
    by_content = defaultdict[tuple[str, str], dict[str, Curve]](dict)
    for table in tables:
        for content, curve in _table_curves(table).items():
            by_content[content][table.label] = curve
    return dict([item for item in by_content.items() if len(item[1]) > 1][:MOST])


def _table_curves(table: ReportTable) -> dict[tuple[str, str], Curve]:
    """Read a table's curves, if it has one row per layer or per series and layer.

    Columns with an interval are what a table is about; other columns are drawn only if none has.
    """
    frame = table.frame.assign(layer=pd.to_numeric(table.frame["layer"], errors="coerce"))
    frame = frame.dropna(subset=["layer"])
    layers = frame["layer"].nunique()
    rest = [name for name in frame if name != "layer"]
    words = [name for name in rest if not is_numeric(frame[name])]
    # A series is there in every layer, unlike the words of a text.
    keys = [
        name
        for name in words
        if frame[name].nunique() > 1 and frame.groupby(name)["layer"].nunique().eq(layers).all()
    ][:1]
    if layers < 2 or frame.duplicated([*keys, "layer"]).any():
        return {}
    values = [name for name in rest if name not in words and not _BOUND.search(str(name))]
    bounds = {name: _bounds(frame, name, name == values[0]) for name in values}
    certain = [name for name in values if bounds[name]]
    curves: dict[tuple[str, str], Curve] = {}
    for key, rows in frame.groupby(keys[0], sort=False) if keys else [("", frame)]:
        rows = rows.sort_values("layer")
        for name in certain or (values[:1] if keys else values):
            ends = [rows[end].to_numpy(float) for end in bounds[name]] or [None, None]
            depth = rows["layer"].to_numpy(float) / table.layers
            curves[str(key), str(name)] = (depth, rows[name].to_numpy(float), *ends)
    return curves


def _bounds(frame: pd.DataFrame, name: str, first: bool) -> tuple[str, ...]:
    """Find a value's interval: columns "x low" and "x high", or "low" and "high" of the first."""
    pairs = [(f"{name} low", f"{name} high"), (f"{name}_low", f"{name}_high")]
    pairs += [("low", "high"), ("95 % low", "95 % high")] if first else []
    return next((pair for pair in pairs if set(pair) <= set(frame)), ())


def draw_curves(
    curves: Mapping[tuple[str, str], Mapping[str, Curve]], labels: Sequence[str]
) -> drawing.Drawing:
    with drawing.fonts_for([*labels, *(word for what in curves for word in what)]):
        columns = min(COLUMNS, len(curves))
        alike, several = (len({what[place] for what in curves}) == 1 for place in (1, 0))
        width = 2.4 if columns > 1 else 4.0
        figure, axes = drawing.tiles(len(curves), columns, width, 2.1, sharey=alike)
        for place, ((key, name), by_label) in enumerate(curves.items()):
            for label, curve in by_label.items():
                drawing.line(axes[place], *curve, labels.index(label), drawable(label))
            axes[place].set_xlim(0, 1.03)
            label = _LABELS.get(name, drawable(name.replace("_", " ")))
            drawing.style(
                axes[place],
                x="layer (counted from 1) ÷ layers" if place >= len(curves) - columns else "",
                y=label if not alike or place % columns == 0 else "",
                title="" if several else drawable(key),
            )
        legend_above(figure, axes)
    return figure


def legend_above(figure: drawing.Drawing, axes: Sequence[Any]) -> None:
    """Draw one legend above all panels."""
    handles: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    drawing.legend_outside(figure, handles, "upper", ncols=min(3, len(handles)))


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
        said = tables[0].subject + (f" On {data}." if data else "")
        if "layer" in tables[0].frame:
            if curves := curves_of(tables):
                draw = partial(draw_curves, curves, [table.label for table in tables])
                by_depth = "By depth (layer, counted from 1, ÷ number of layers): "
                figures[file] = Figure(draw, by_depth + said)
        elif all({"component", "rho"} <= set(table.frame) for table in tables):
            figures[file] = Figure(partial(draw_bars, tables), said)
    return figures


def _shared_tables(reports: Sequence[OpenedReport]) -> list[tuple[str, list[ReportTable]]]:
    """Read the tables that several reports share, on the same data if any data set is the same."""
    tables = defaultdict[tuple[str, str], list[ReportTable]](list)
    for report in reports:
        for experiment in report.results["experiments"]:
            for result in experiment["results"]:
                for name, table in result["tables"].items():
                    if {LAYER, "component"} & set(table["columns"]):
                        frame = _read_table(report.folder / table["csv"])
                        of_report = (report.label, result["data"], report.layers)
                        shared = ReportTable(*of_report, frame, table["caption"])
                        tables[experiment["name"], name].append(shared)
    shared_tables: list[tuple[str, list[ReportTable]]] = []
    for (_, name), every in tables.items():
        by_data = defaultdict[str, list[ReportTable]](list)
        for one in every:
            by_data[one.data].append(one)
        same = [(name, of_data) for of_data in by_data.values() if len(of_data) > 1]
        first = {one.label: one for one in reversed(every)}
        if not same and len(first) > 1:
            mixed = [replace(one, label=f"{one.label} on {one.data}") for one in first.values()]
            same = [(name, mixed[::-1])]
        shared_tables += same
    return shared_tables


def _read_table(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {str(path)!r} of a report: {reason_of(error)}") from error
    return frame.rename(columns={LAYER: "layer"})


def draw_bars(tables: Sequence[ReportTable]) -> drawing.Drawing:
    components = list(dict.fromkeys(name for table in tables for name in table.frame["component"]))
    with drawing.fonts_for([*components, *(table.label for table in tables)]):
        width = 0.8 / len(tables)
        figure, axes = drawing.panels(
            width=max(3.6, 0.5 + len(components) * (0.3 + 0.16 * len(tables)))
        )
        lowest = 0.0
        for place, table in enumerate(tables):
            frame = table.frame.set_index("component")
            places = [
                components.index(name) + (place - (len(tables) - 1) / 2) * width
                for name in frame.index
            ]
            lowest = min(lowest, float(frame["rho"].min()) - 0.05)
            shown = {"color": COLOURS[place % len(COLOURS)], "label": drawable(table.label)}
            drawing.bars(axes[0], places, frame, width=0.9 * width, **shown)
        axes[0].set_xticks(range(len(components)), map(drawable, components))
        axes[0].set_ylim(lowest, 1.03)
        drawing.style(axes[0], x="component", y="Spearman's ρ before / after")
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
        raise InputError("these reports hold no numbers; run normlens reproduce report on each")
    groups: list[Group] = []
    for (title, source), rows in numbers.groupby(["experiment", "source"], sort=False):
        every = rows.drop(columns=["experiment", "source"]).itertuples(index=False, name=None)
        cells = [(quantity, data or DASH, *map(number, own)) for quantity, data, *own in every]
        groups.append((str(title), str(source), cells))
    figures = overlay_figures(reports)
    writer = Writer(out)
    drawn = {name: writer.put_figure(name, figure) for name, figure in figures.items()}
    labels = [report.label for report in reports]
    title = f"{listed(labels) if len(labels) < 5 else f'{len(labels)} models'} side by side"
    shown: dict[str, Any] = {
        "title": title,
        "model_columns": _MODEL_COLUMNS,
        "models": [_model_row(report) for report in reports],
        "right": _RIGHT,
        "labels": labels,
        "groups": groups,
        "drawings": [(name, figure.caption) for name, figure in figures.items()],
    }
    writer.put_table("comparison.csv", numbers.drop(columns="source"))
    writer.put("comparison.md", rendered("comparison.md.j2", **shown))
    writer.put("comparison.html", rendered("comparison.html.j2", drawn, **shown))
    return writer.paths


def read_reports(folders: Sequence[str | Path]) -> list[OpenedReport]:
    """Open reports; models of the same name are told apart by their folders."""
    if len(folders) < 2:
        raise InputError("a comparison needs at least two folders with reports")
    opened = {Path(folder): _read(Path(folder)) for folder in folders}
    names = [results["model"]["name"] for results in opened.values()]
    taken: set[str] = set()
    reports = []
    for (folder, results), name in zip(opened.items(), names, strict=True):
        label = name if names.count(name) == 1 else f"{name} ({folder.resolve().name})"
        reports.append(OpenedReport(folder, results, unique(label, taken)))
    return reports


def _read(folder: Path) -> dict[str, Any]:
    contents = LocalFolder(folder).read(RESULTS)
    if contents is None:
        raise InputError(f"no report in {str(folder)!r}; run normlens reproduce report {folder}")
    try:
        results = parse_json(contents)
        if results["format"] != FORMAT:
            raise ValueError("it is of another kind")
        if results["version"] > VERSION:
            raise InputError(f"the report in {str(folder)!r} is of a newer NormLens; upgrade it")
        int(results["model"]["layers"]), str(results["model"]["name"])
        for experiment in results["experiments"]:
            for result in experiment["results"]:
                for name in ("data", "summary", "tables"):
                    _ = result[name]
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{RESULTS} in {str(folder)!r} is damaged; write the report again"
        ) from error
    return results


def _numbers(reports: Sequence[OpenedReport]) -> pd.DataFrame:
    """Collect the summary numbers: a row per experiment, quantity and data, a column per report."""
    titles: dict[str, tuple[str, str]] = {}
    cells: dict[str, dict[str, dict[str, dict[str, float | None]]]] = {}
    for report in reports:
        for it in report.results["experiments"]:
            titles.setdefault(it["name"], (it["title"], it["source"]))
            for result in it["results"]:
                for quantity, value in result["summary"].items():
                    by_data = cells.setdefault(it["name"], {}).setdefault(quantity, {})
                    by_data.setdefault(result["data"], {})[report.label] = value
    # Experiments and quantities in their order, each quantity with its data sets below each other.
    labels = [report.label for report in reports]
    rows = [
        (*titles[name], quantity, data, *map(values.get, labels))
        for name, quantities in cells.items()
        for quantity, by_data in quantities.items()
        for data, values in by_data.items()
    ]
    columns = ["experiment", "source", "quantity", "data", *labels]
    return pd.DataFrame(rows, columns=columns, dtype=object)


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
