"""Several reports side by side: one column per model."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normlens.corpus.runs.folder import LocalFolder
from normlens.errors import InputError, listed, parse_json
from normlens.reports import overlays, pictures
from normlens.reports.files import FORMAT, RESULTS, VERSION
from normlens.reports.formatting import number, shortened, unique
from normlens.reports.html import rendered
from normlens.reports.markdown import escaped, grid
from normlens.results.words import harmless

_MODEL_COLUMNS = ("model", "type", "layers", "layer's components", "weights", "data")


@dataclass(frozen=True)
class OpenedReport:
    """A report's folder and the contents of its results.json."""

    folder: Path
    results: dict[str, Any]
    label: str  # of its column

    @property
    def layers(self) -> int:
        return int(self.results["model"]["layers"])


@dataclass(frozen=True)
class Row:
    """One quantity of every report; None where a report lacks it."""

    quantity: str
    data: str
    values: Sequence[float | None]

    @property
    def shown(self) -> list[str]:
        return [number(value) for value in self.values]


@dataclass(frozen=True)
class Group:
    """The numbers of one experiment."""

    title: str
    source: str
    rows: Sequence[Row]


def write_comparison(folders: Sequence[str | Path], out: str | Path) -> list[Path]:
    """Set reports side by side: comparison.html, .md and .csv, and figures, in the folder `out`."""
    reports = read_reports(folders)
    groups = _groups(reports)
    if not groups:
        raise InputError("these reports hold no numbers to compare; run normlens report on each")
    place = LocalFolder(out)
    written: list[str] = []

    def put(name: str, contents: bytes) -> None:
        place.write(name, contents)
        written.append(name)

    drawn: dict[str, bytes] = {}
    drawings = overlays.drawings(reports)
    for name, figure in drawings.items():
        drawing = figure.draw()
        drawn[name] = pictures.svg(drawing)
        put(f"figures/{name}.svg", drawn[name])
        put(f"figures/{name}.png", pictures.png(drawing))
    labels = [report.label for report in reports]
    title = f"{listed(labels) if len(labels) < 5 else f'{len(labels)} models'} side by side"
    captions = [(name, figure.caption) for name, figure in drawings.items()]
    put("comparison.csv", _csv(labels, groups).encode())
    put("comparison.md", _markdown(title, reports, groups, captions).encode())
    page = rendered(
        "comparison.html.j2",
        drawn,
        title=title,
        model_columns=_MODEL_COLUMNS,
        models=[_model_row(report) for report in reports],
        labels=labels,
        groups=groups,
        drawings=captions,
    )
    put("comparison.html", page.encode())
    return [place.path / name for name in written]


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
            f"normlens report {folder}"
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
            f"normlens report {folder}"
        ) from error
    return results


def _groups(reports: Sequence[OpenedReport]) -> list[Group]:
    """Group the summary numbers by experiment, in the order of the reports."""
    titles: dict[str, tuple[str, str]] = {}
    cells: dict[str, dict[tuple[str, str], dict[str, float | None]]] = {}
    for report in reports:
        for experiment in report.results["experiments"]:
            name = experiment["name"]
            titles.setdefault(name, (experiment["title"], experiment["source"]))
            for result in experiment["results"]:
                for quantity, value in result["summary"].items():
                    row = cells.setdefault(name, {}).setdefault((quantity, result["data"]), {})
                    row[report.label] = value
    return [
        Group(
            *titles[name],
            rows=[
                Row(quantity, data, [values.get(report.label) for report in reports])
                for (quantity, data), values in sorted(
                    rows.items(), key=lambda item: _order(item[0], list(rows))
                )
            ],
        )
        for name, rows in cells.items()
    ]


def _order(row: tuple[str, str], rows: Sequence[tuple[str, str]]) -> tuple[int, int]:
    """Sort key: quantities in their order, each with its data sets below each other."""
    return [quantity for quantity, _ in rows].index(row[0]), rows.index(row)


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


def _csv(labels: Sequence[str], groups: Sequence[Group]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(harmless, ("experiment", "quantity", "data", *labels)))
    for group in groups:
        for row in group.rows:
            cells = (group.title, row.quantity, row.data, *row.values)
            writer.writerow(map(harmless, cells))
    return buffer.getvalue()


def _markdown(
    title: str,
    reports: Sequence[OpenedReport],
    groups: Sequence[Group],
    captions: Sequence[tuple[str, str]],
) -> str:
    labels = [report.label for report in reports]
    lines = [f"# {escaped(title)}", ""]
    right = [False, False, True, False, False, False]
    lines += grid(_MODEL_COLUMNS, map(_model_row, reports), right)
    for group in groups:
        lines += ["", f"## {escaped(group.title)}", "", f"*{escaped(group.source)}*", ""]
        rows = [(row.quantity, row.data or "–", *row.shown) for row in group.rows]
        lines += grid(("quantity", "data", *labels), rows, [False, False] + [True] * len(labels))
    for name, caption in captions:
        text = escaped(caption)
        lines += ["", f"![{text}](figures/{name}.svg)", "", f"*{text}*"]
    return "\n".join(lines) + "\n"
