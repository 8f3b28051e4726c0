"""Several reports side by side: one column or one colour per model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from normlens.corpus.runs.folder import LocalFolder
from normlens.errors import InputError, listed, parse_json, reason_of
from normlens.figures.canvas import COLOURS, drawable
from normlens.studies.reports import drawing
from normlens.studies.reports.contents import Figure, Table, is_numeric
from normlens.studies.reports.files import FORMAT, RESULTS, VERSION, Writer
from normlens.studies.reports.words import DASH, LAYER, number, shortened, slug, unique

# Reports and their numbers: one column per model.


@dataclass(frozen=True)
class OpenedReport:
    """A report's folder and the contents of its results.json."""

    folder: Path
    results: dict[str, Any]
    label: str  # of its column

    @property
    def row(self) -> dict[str, object]:
        """What the comparison says of the model."""
        model = self.results["model"]
        data = dict.fromkeys(run["data"] for run in self.results.get("runs", ()))
        return {
            "model": self.label,
            **{name: model.get(name, "") for name in ("type", "layers")},
            "layer's components": model.get("components", ""),
            "weights": shortened(model.get("weights") or DASH),
            "data": ", ".join(data),
        }


def write_comparison(folders: Sequence[str | Path], out: str | Path) -> list[Path]:
    """Set reports side by side: comparison.html and .csv, and figures, in the folder `out`."""
    reports = read_reports(folders)
    numbers = _numbers(reports)
    if numbers.empty:
        raise InputError("these reports hold no numbers; run normlens reproduce report on each")
    groups = []
    for (title, source), rows in numbers.groupby(["experiment", "source"], sort=False):
        every = rows.drop(columns=["experiment", "source"]).itertuples(index=False, name=None)
        cells = [(quantity, data or DASH, *map(number, own)) for quantity, data, *own in every]
        groups.append((title, source, cells))
    writer = Writer(out)
    figures = overlay_figures(reports)
    for figure in figures:
        writer.put_figure(figure)
    labels = [report.label for report in reports]
    writer.put_table("comparison.csv", numbers.drop(columns="source"))
    writer.put_page(
        "comparison.html",
        "comparison.html.j2",
        title=f"{listed(labels) if len(labels) < 5 else f'{len(labels)} models'} side by side",
        models=Table(pd.DataFrame([report.row for report in reports])),
        labels=labels,
        groups=groups,
        drawings=figures,
    )
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
        for _, result in _results(results):
            _ = [result[name] for name in ("data", "summary", "tables")]
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{RESULTS} in {str(folder)!r} is damaged; write the report again"
        ) from error
    return results


def _results(results: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield every experiment with each of its results."""
    for experiment in results["experiments"]:
        for result in experiment["results"]:
            yield experiment, result


def _numbers(reports: Sequence[OpenedReport]) -> pd.DataFrame:
    """Collect the summary numbers: a row per experiment, quantity and data, a column per report."""
    keys = ["experiment", "source", "quantity", "data"]
    rows = pd.DataFrame(
        [
            (experiment["title"], experiment["source"], name, result["data"], report.label, value)
            for report in reports
            for experiment, result in _results(report.results)
            for name, value in result["summary"].items()
        ],
        columns=[*keys, "report", "value"],
    ).astype({"value": float})
    # In the order of the reports, each quantity with its data sets below each other.
    ordered = rows.sort_values(
        keys[:3], key=lambda column: pd.factorize(column)[0], kind="stable"
    ).groupby([*keys, "report"], sort=False)
    wide = ordered["value"].first().unstack("report", sort=False)
    return wide.reindex(columns=[report.label for report in reports]).reset_index()


# Tables of several reports, laid over each other: one colour per model.


@dataclass(frozen=True)
class ReportTable:
    """A table of one report; in its columns' names there are spaces for underscores."""

    label: str
    data: str
    layers: int
    frame: pd.DataFrame
    caption: str

    @property
    def subject(self) -> str:
        """The caption's first sentence; the rest may be about one report alone."""
        return re.split(r"(?<!\bal)\. (?=[A-Z])", self.caption)[0].rstrip(".") + "."


def overlay_figures(reports: Sequence[OpenedReport]) -> list[Figure]:
    """Draw similarity by component, and every table by layer, that several reports share."""
    figures: list[Figure] = []
    taken: set[str] = set()
    for name, tables in _shared_tables(reports):
        data = tables[0].data
        file = unique(slug(f"compare-{name}-{data}" if data else f"compare-{name}"), taken)
        said = tables[0].subject + (f" On {data}." if data else "")
        if "layer" in tables[0].frame:
            if curves := curves_of(tables):
                draw = partial(draw_curves, curves, [table.label for table in tables])
                by_depth = "By depth (layer, counted from 1, ÷ number of layers): "
                figures.append(Figure(draw, by_depth + said, file=file))
        elif all({"component", "rho"} <= set(table.frame) for table in tables):
            figures.append(Figure(partial(draw_bars, tables), said, file=file))
    return figures


def _shared_tables(reports: Sequence[OpenedReport]) -> list[tuple[str, list[ReportTable]]]:
    """Read the tables that several reports share on the same data."""
    tables = defaultdict[tuple[str, str, str], list[ReportTable]](list)
    for report in reports:
        layers = int(report.results["model"]["layers"])
        for experiment, result in _results(report.results):
            for name, table in result["tables"].items():
                if {LAYER, "component"} & set(table["columns"]):
                    frame = _read_table(report.folder / table["csv"])
                    data, caption = result["data"], table["caption"]
                    shared = ReportTable(report.label, data, layers, frame, caption)
                    tables[experiment["name"], name, data].append(shared)
    return [(name, shared) for (_, name, _), shared in tables.items() if len(shared) > 1]


def _read_table(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {str(path)!r} of a report: {reason_of(error)}") from error
    frame = frame.rename(columns={LAYER: "layer"})
    return frame.set_axis(frame.columns.str.replace("_", " "), axis=1)


COLUMNS = 3  # panels in a row
MOST = 12  # panels in a figure
_LABELS = {"rho": "Spearman's ρ"}
#: A curve's points: depth from 0 to 1, value, and the interval's bounds if it has one.
Curve = np.ndarray


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
    frame = frame.dropna(subset=["layer"]).sort_values("layer", kind="stable")
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
    values = [name for name in rest if name not in words and not re.search(r"\b(low|high)$", name)]
    ends = {name: [f"{name} low", f"{name} high"] for name in values}
    if {"low", "high"} <= set(frame):
        ends[values[0]] = ["low", "high"]
    certain = [name for name in values if set(ends[name]) <= set(frame)]
    frame = frame.assign(depth=frame["layer"] / table.layers)
    series = frame.groupby(keys[0], sort=False) if keys else [("", frame)]
    return {
        (str(key), name): rows[["depth", name, *(ends[name] if name in certain else ())]].to_numpy(
            float
        )
        for key, rows in series
        for name in certain or (values[:1] if keys else values)
    }


def draw_curves(
    curves: Mapping[tuple[str, str], Mapping[str, Curve]], labels: Sequence[str]
) -> drawing.Drawing:
    with drawing.styled([*labels, *(word for what in curves for word in what)]):
        columns = min(COLUMNS, len(curves))
        alike, several = (len({what[place] for what in curves}) == 1 for place in (1, 0))
        width = 2.4 if columns > 1 else 4.0
        figure, axes = drawing.tiles(len(curves), columns, width, 2.1, sharey=alike)
        for place, ((key, name), by_label) in enumerate(curves.items()):
            for label, curve in by_label.items():
                of_report = {"place": labels.index(label), "label": drawable(label)}
                drawing.line(axes[place], *curve.T, **of_report)
            axes[place].set_xlim(0, 1.03)
            drawing.style(
                axes[place],
                x="layer (counted from 1) ÷ layers" if place >= len(curves) - columns else "",
                y=_LABELS.get(name, drawable(name)) if not alike or place % columns == 0 else "",
                title="" if several else drawable(key),
            )
        drawing.legend(figure, axes, "upper")
    return figure


def draw_bars(tables: Sequence[ReportTable]) -> drawing.Drawing:
    components = list(dict.fromkeys(name for table in tables for name in table.frame["component"]))
    with drawing.styled([*components, *(table.label for table in tables)]):
        width = 0.8 / len(tables)
        figure, (axes,) = drawing.panels(
            width=max(3.6, 0.5 + len(components) * (0.3 + 0.16 * len(tables)))
        )
        for place, table in enumerate(tables):
            frame = table.frame.set_index("component").reindex(components)
            places = np.arange(len(frame)) + (place - (len(tables) - 1) / 2) * width
            shown = {"color": COLOURS[place % len(COLOURS)], "label": drawable(table.label)}
            drawing.bars(axes, places, frame, width=0.9 * width, **shown)
        lowest = min(float(table.frame["rho"].min()) for table in tables)
        axes.set_xticks(range(len(components)), map(drawable, components))
        axes.set_ylim(min(0.0, lowest - 0.05), 1.03)
        drawing.style(axes, x="component", y="Spearman's ρ before / after")
        drawing.legend(figure, [axes], "upper")
    return figure
