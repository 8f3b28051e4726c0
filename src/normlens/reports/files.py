"""A report's folder: figures, tables, the page, the Markdown and every number as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from normlens.corpus.runs.folder import LocalFolder
from normlens.errors import parse_json
from normlens.reports import html, markdown, pictures
from normlens.reports.content import Report
from normlens.reports.latex import latex
from normlens.reports.layout import Finding, PlacedSection, arrange
from normlens.reports.published import Comparison
from normlens.results.axes import plain
from normlens.results.words import write_csv

FORMAT, VERSION = "normlens-report", 1
RESULTS = "results.json"


def write(report: Report, folder: str | Path) -> list[Path]:
    """Write everything into `folder`, each file whole or not at all, results.json last.

    Figures and tables of an earlier report that this one does not have are removed.
    """
    place = LocalFolder(folder)
    earlier = _earlier(place)
    sections = arrange(report)
    written: list[str] = []

    def put(name: str, contents: bytes) -> None:
        place.write(name, contents)
        written.append(name)

    drawn: dict[str, bytes] = {}
    for finding in (finding for placed in sections for finding in placed.findings):
        for item in finding.figures:
            figure = item.figure.draw()
            drawn[item.name] = pictures.svg(figure)
            put(f"figures/{item.name}.svg", drawn[item.name])
            put(f"figures/{item.name}.png", pictures.png(figure))
        for table in finding.tables:
            rows = io.StringIO()
            write_csv(table.table.frame, rows)
            put(f"tables/{table.name}.csv", rows.getvalue().encode())
            put(f"tables/{table.name}.tex", latex(table.table, table.name).encode())
    put("report.md", markdown.markdown(report, sections).encode())
    put("report.html", html.page(report, sections, drawn).encode())
    contents = results(report, sections, [*written, RESULTS])
    put(RESULTS, json.dumps(contents, indent=1, ensure_ascii=False, allow_nan=False).encode())
    for name in earlier.difference(written):
        place.remove(name)
    return [place.path / name for name in written]


def results(
    report: Report, sections: Sequence[PlacedSection], names: Sequence[str]
) -> dict[str, Any]:
    """Collect every number of a report, for other programs and for comparisons."""
    header = report.header
    contents = {
        "format": FORMAT,
        "version": VERSION,
        "title": report.title,
        "model": asdict(header.model),
        "layers_counted_from": 1,
        "runs": [asdict(run) for run in header.runs],
        "settings": dict(header.settings),
        "versions": dict(header.versions),
        "experiments": [
            {
                "name": placed.section.experiment.name,
                "title": placed.section.experiment.title,
                "source": placed.section.experiment.source,
                "question": placed.section.experiment.question,
                "absent": placed.absent_note or None,
                "results": [_result(finding) for finding in placed.findings],
            }
            for placed in sections
        ],
        "files": list(names),
    }
    return plain(contents)


def _result(finding: Finding) -> dict[str, Any]:
    result = finding.result
    return {
        "data": finding.data,
        "sentences": list(result.sentences),
        "summary": dict(result.summary),
        "comparisons": [_comparison(item) for item in result.comparisons],
        "figures": {
            name: {
                "caption": item.caption,
                "svg": f"figures/{item.name}.svg",
                "png": f"figures/{item.name}.png",
            }
            for name, item in zip(result.figures, finding.figures, strict=True)
        },
        "tables": {
            name: {
                "caption": item.caption,
                "columns": item.columns,
                "rows": len(item.table.frame),
                "csv": f"tables/{item.name}.csv",
                "tex": f"tables/{item.name}.tex",
            }
            for name, item in zip(result.tables, finding.tables, strict=True)
        },
    }


def _comparison(item: Comparison) -> dict[str, Any]:
    published = asdict(item.published)
    return published | {"measured": item.measured, "difference": item.difference, "same": item.same}


def _earlier(place: LocalFolder) -> set[str]:
    """List the figures and tables that the folder's last results.json names."""
    try:
        results = parse_json(place.read(RESULTS) or b"{}")
        names = results["files"] if results.get("format") == FORMAT else []
        return {
            name
            for name in names
            if name.startswith(("figures/", "tables/")) and name.count("/") == 1
        }
    except (ValueError, AttributeError, TypeError, KeyError):
        return set()
