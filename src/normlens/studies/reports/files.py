"""The folders of studies: what a report writes, settings, and which room builds which page."""

from __future__ import annotations

import base64
import io
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

import pandas as pd

from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.results import Run
from normlens.errors import InputError, listed, parse_json
from normlens.results.axes import plain
from normlens.results.words import write_csv
from normlens.studies.reports.contents import Figure, Report, Result, Table, against
from normlens.studies.reports.words import check_packages, count

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Figures as SVG and PNG: the same bytes every time, and small enough for a page.


LARGEST = 1_500_000  # bytes; larger SVG files hold one picture of pixels
ENLARGED = 1.15  # on a screen, against the size in print
COLUMN = 860  # pixels that a page's column has for a figure


def png(figure: Drawing) -> bytes:
    return _saved(figure, "png", dpi=200, metadata={"Software": None})


def svg(figure: Drawing) -> bytes:
    """Render the figure as SVG, its letters as paths, so that it looks the same everywhere."""
    import matplotlib

    undated = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "normlens"}):
        drawn = _saved(figure, "svg", metadata=undated)
    if len(drawn) <= LARGEST:
        return drawn
    width, height = (72 * inches for inches in figure.get_size_inches())
    picture = base64.b64encode(png(figure)).decode()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{width:g}pt" height="{height:g}pt" viewBox="0 0 {width:g} {height:g}">'
        f'<image width="{width:g}" height="{height:g}" '
        f'xlink:href="data:image/png;base64,{picture}"/></svg>\n'
    ).encode()


def _saved(figure: Drawing, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, facecolor="white", **options)
    return buffer.getvalue()


def embedded(picture: bytes, description: str) -> str:
    """Turn an SVG file into an element of an HTML page that needs no other file."""
    width = re.search(rb'width="([\d.]+)pt"', picture)
    pixels = float(width[1]) * 96 / 72 * ENLARGED if width else COLUMN
    style = f"width:{pixels:.0f}px;min-width:{min(0.7 * pixels, COLUMN):.0f}px"
    source = f"data:image/svg+xml;base64,{base64.b64encode(picture).decode()}"
    return f'<img src="{source}" alt={quoteattr(description)} style="{style}">'


# The page, which needs nothing beside it.


def rendered(template: str, pictures: Mapping[str, bytes] | None = None, **values: Any) -> str:
    """Fill a template. Everything is escaped but the style sheet and the pictures."""
    from markupsafe import Markup

    def picture(figure: Figure) -> Markup:
        return Markup(embedded((pictures or {})[figure.file], figure.caption))

    values |= {"picture": picture, "style": Markup(_read("style.css")), "against": against}
    return _environment().get_template(template).render(**values).rstrip() + "\n"


def _read(name: str) -> str:
    return (files("normlens.studies.reports") / name).read_text("utf-8")


@cache
def _environment() -> Any:
    check_packages()
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = count
    return environment


# Tables for LaTeX: pandas writes them, with booktabs, over several pages if they are long.


LONG = 45  # rows that fit on a page
_PACKAGES = (
    "% \\usepackage{booktabs,longtable}; scripts other than Latin need LuaLaTeX or XeLaTeX\n"
)
_NAMED = "backslash asciitilde asciicircum bar less greater"
_SIGNS = "times rightarrow geq neq pm alpha beta gamma rho"
#: LaTeX's own signs, and letters of the reports that pdfLaTeX's fonts lack.
_LATEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "{}#$%&_"}
    | {"[": "{[}", "*": "{*}", "–": "--", "−": "$-$", "‖": r"$\|$", "′": "$'$"}  # [: an option
    | dict(zip("\\~^|<>", (rf"\text{name}{{}}" for name in _NAMED.split()), strict=True))
    | dict(zip("×→≥≠±αβγρ", (rf"$\{name}$" for name in _SIGNS.split()), strict=True))
)


def latex_escaped(text: str) -> str:
    """Escape text for LaTeX; letters that print nothing become spaces."""
    return "".join(letter if letter.isprintable() else " " for letter in text).translate(_LATEX)


def latex(table: Table) -> str:
    """Write the whole table for LaTeX."""
    text = table.text().map(latex_escaped).rename(columns=latex_escaped)
    long = len(text) > LONG
    return _PACKAGES + text.to_latex(
        index=False,
        escape=False,  # pandas escapes no captions, and brackets nowhere
        column_format="".join("lr"[numeric] for numeric in table.numeric),
        longtable=long,
        position=None if long else "htbp",
        caption=latex_escaped(table.caption),
        label=f"tab:{table.file}",
    )


# A report's folder: figures, tables, the page, and every number as JSON.


FORMAT, VERSION = "normlens-report", 1
_OF_EXPERIMENT = ("name", "title", "source", "question", "read")
RESULTS = "results.json"


class Writer:
    """Writes the files of a folder, each whole or not at all, and remembers their names."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = LocalFolder(folder)
        self.names: list[str] = []
        self.drawn: dict[str, bytes] = {}  # each figure's SVG

    @property
    def paths(self) -> list[Path]:
        return [self.folder.path / name for name in self.names]

    def put(self, name: str, contents: str | bytes) -> None:
        self.folder.write(name, contents.encode() if isinstance(contents, str) else contents)
        self.names.append(name)

    def put_table(self, name: str, frame: pd.DataFrame) -> None:
        rows = io.StringIO()
        write_csv(frame, rows)
        self.put(name, rows.getvalue())

    def put_figure(self, figure: Figure) -> None:
        """Draw the figure into two files."""
        drawing = figure.draw()
        self.drawn[figure.file] = svg(drawing)
        self.put(f"figures/{figure.file}.svg", self.drawn[figure.file])
        self.put(f"figures/{figure.file}.png", png(drawing))

    def put_page(self, name: str, template: str, **values: Any) -> None:
        self.put(name, rendered(template, self.drawn, **values))


def write(report: Report, folder: str | os.PathLike[str]) -> Path:
    """Write everything into `folder`, results.json last; return the page's path.

    Figures and tables of an earlier report that this one does not have are removed.
    """
    writer = Writer(folder)
    earlier = _earlier(writer.folder)
    report = report.with_files()
    for section in report.sections:
        for _, result in section.found:
            for figure in result.figures.values():
                writer.put_figure(figure)
            for table in result.tables.values():
                writer.put_table(f"tables/{table.file}.csv", table.frame)
                writer.put(f"tables/{table.file}.tex", latex(table))
    writer.put_page("report.html", "report.html.j2", **vars(report))
    contents = results(report, [*writer.names, RESULTS])
    writer.put(RESULTS, json.dumps(contents, indent=1, ensure_ascii=False, allow_nan=False))
    writer.folder.remove(earlier.difference(writer.names))
    return writer.folder.path / "report.html"


def results(report: Report, names: Sequence[str]) -> dict[str, Any]:
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
                **{name: getattr(section.experiment, name) for name in _OF_EXPERIMENT},
                "absent": section.absent_note or None,
                "results": [_result(data, result) for data, result in section.found],
            }
            for section in report.sections
        ],
        "files": list(names),
    }
    return plain(contents)


def _result(data: str, result: Result) -> dict[str, Any]:
    return {
        "data": data,
        "summary": dict(result.summary),
        "comparisons": [
            asdict(item.published)
            | {"measured": item.measured, "difference": item.difference, "same": item.same}
            for item in result.comparisons
        ],
        "figures": {
            name: {"caption": figure.caption, **_paths("figures", figure.file, "svg", "png")}
            for name, figure in result.figures.items()
        },
        "tables": {
            name: {
                "caption": table.caption,
                "columns": list(map(str, table.frame)),
                "rows": len(table.frame),
                **_paths("tables", table.file, "csv", "tex"),
            }
            for name, table in result.tables.items()
        },
    }


def _paths(folder: str, name: str, *endings: str) -> dict[str, str]:
    return {ending: f"{folder}/{name}.{ending}" for ending in endings}


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


#: Where the report of a single run goes, in the run's own folder.
FOLDER = "report"
#: The settings of a study of several runs, beside its page.
SETTINGS = "settings.json"
#: The function that builds a report, by a table of the run, or by what settings say they are of.
BUILDERS = {
    "faithfulness": "normlens.studies.faithfulness.report",
    "alignment": "normlens.studies.alignment.report",
    "ablation": "normlens.studies.ablation.report",
    "": "normlens.studies.papers.reporting",
}


def write_run_report(
    describe: Callable[[Run], Report],
    run: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
) -> Path:
    """Write what `describe` makes of a run to `out`, by default to the folder `FOLDER`.

    Gives the page's path.
    """
    opened = Run.open(run)
    if out is None and not isinstance(opened.folder, LocalFolder):
        raise InputError(f"{str(run)!r} is not on this machine; give the report a folder (out=…)")
    return write(describe(opened), Path(run) / FOLDER if out is None else out)


def check_finished(run: Run, again: str = "resume it before its report is made") -> None:
    """Refuse to describe a run that is not complete."""
    status = run.status()
    if not status.complete:
        raise InputError(f"{str(run.folder)!r} has {status.done} of {status.sequences}; {again}")


def finished_run(path: Path, command: str) -> Run:
    """Open a run of a study's folder; one that is not there or not finished is refused."""
    again = f"run the same normlens {command} again to go on"
    if not (path / MANIFEST).is_file():
        raise InputError(f"{str(path)!r} holds no run yet; {again}")
    run = Run.open(path)
    check_finished(run, again)
    return run


def read_settings(folder: str | os.PathLike[str], kind: str, nothing: str) -> dict[str, Any]:
    """Read the settings of a study's folder; `nothing` says what to do where there are none."""
    path = Path(folder) / SETTINGS
    if not path.is_file():
        raise InputError(f"{str(folder)!r} holds no {nothing} --out {folder}")
    try:
        settings = parse_json(path.read_text("utf-8"))
        if settings.get("report", "") != kind:
            raise InputError(f"{str(folder)!r} holds results of another command; give a new --out")
    except InputError:
        raise
    except (ValueError, AttributeError) as error:
        raise damaged(folder, error) from error
    return settings


def damaged(folder: str | os.PathLike[str], error: Exception) -> InputError:
    """Make the error for unreadable settings."""
    return InputError(f"{str(Path(folder) / SETTINGS)!r} is damaged: {error}")


def builder(folder: str | os.PathLike[str]) -> Callable[[str | os.PathLike[str]], Path]:
    """Return the function that builds a folder's report; the papers' by default."""
    place = Path(folder)
    if (place / MANIFEST).is_file():
        tables = Run.open(place).tables
        kind = next((name for name in BUILDERS if name in tables), None)
        if kind is None:
            raise InputError(f"{str(folder)!r} has no report; query its tables: {listed(tables)}")
    else:
        try:
            kind = parse_json((place / SETTINGS).read_text("utf-8"))["report"]
        except (OSError, ValueError, TypeError, KeyError):
            kind = ""
    return import_module(BUILDERS.get(kind, BUILDERS[""])).build_report
