"""A report's folder: the page, the Markdown, figures, tables and every number as JSON."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

import pandas as pd

from normlens.corpus.runs.folder import LocalFolder
from normlens.errors import MissingDependencyError, parse_json
from normlens.results.axes import plain
from normlens.results.words import write_csv
from normlens.studies.reports.contents import Figure, Report, Table
from normlens.studies.reports.layout import (
    FOLD,
    JOINED,
    Finding,
    PlacedSection,
    PlacedTable,
    arrange,
    facts,
    is_numeric,
    run_table,
)
from normlens.studies.reports.words import Comparison, count

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Figures as SVG and PNG: the same bytes every time, and small enough for a page.


RESOLUTION = 200  # pixels per inch
PATHS = 300_000  # bytes; larger SVG files name their letters instead of drawing them
LARGEST = 1_500_000  # bytes; larger ones hold one picture of pixels
ENLARGED = 1.15  # on a screen, against the size in print
COLUMN = 860  # pixels that a page's column has for a figure

_UNDATED = {"Date": None, "Creator": None, "Format": None, "Type": None}


def png(figure: Drawing) -> bytes:
    """Render the figure in pixels, at 200 dpi."""
    return _saved(figure, "png", dpi=RESOLUTION, metadata={"Software": None})


def svg(figure: Drawing) -> bytes:
    """Render the figure as SVG, its letters as paths, so that it looks the same everywhere.

    Beyond `PATHS` letters are text, beyond `LARGEST` the whole figure is one picture of pixels.
    """
    drawn = _svg(figure, "path")
    if len(drawn) > PATHS:
        drawn = min(drawn, _svg(figure, "none"), key=len)
    return drawn if len(drawn) <= LARGEST else _pixels(figure)


def embedded(picture: bytes, description: str) -> str:
    """Turn an SVG file into an element of an HTML page that needs no other file."""
    width = re.search(rb'width="([\d.]+)pt"', picture)
    pixels = float(width[1]) * 96 / 72 * ENLARGED if width else COLUMN
    style = f"width:{pixels:.0f}px;min-width:{min(0.7 * pixels, COLUMN):.0f}px"
    source = f"data:image/svg+xml;base64,{base64.b64encode(picture).decode()}"
    return f'<img src="{source}" alt={quoteattr(description)} style="{style}">'


def _svg(figure: Drawing, letters: str) -> bytes:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": letters, "svg.hashsalt": "normlens"}):
        return _saved(figure, "svg", metadata=_UNDATED)


def _pixels(figure: Drawing) -> bytes:
    """Wrap the figure's pixels in an SVG."""
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


# A report as one HTML page that needs nothing beside it.


def page(report: Report, sections: Sequence[PlacedSection], pictures: Mapping[str, bytes]) -> str:
    """Write the whole report; `pictures` are the figures' SVG files by their names."""
    return rendered(
        "report.html.j2",
        title=report.title,
        header=report.header,
        facts=facts(report.header),
        runs=run_table(report.header),
        sections=sections,
        joined=JOINED,
        fold=FOLD,
        pictures=pictures,
        further_style=report.style,
    )


def rendered(
    template: str, pictures: Mapping[str, bytes], further_style: str = "", **values: Any
) -> str:
    """Fill a template, with everything escaped but the style sheet and the pictures."""
    from markupsafe import Markup

    def picture(name: str, caption: str) -> Markup:
        return Markup(embedded(pictures[name], caption))

    style = Markup(_read("style.css") + further_style)
    text = _environment().get_template(template).render(picture=picture, style=style, **values)
    return text.rstrip() + "\n"


def _read(name: str) -> str:
    return (files("normlens.studies.reports") / name).read_text("utf-8")


@cache
def _environment() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise MissingDependencyError(
            "reports need jinja2; run: pip install 'normlens[reproduce]'"
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = count
    return environment


# A report as Markdown, for GitHub and for notes.


_SPECIAL = re.compile(r"([\\`*_\[\]<>|$~&#@:])")


def escaped(text: str) -> str:
    """Escape text for Markdown, in a table's cell too."""
    # A colon is a sign only in :emoji: and in addresses.
    return _SPECIAL.sub(
        lambda match: (
            match[0]
            if match[0] == ":" and not _SIGN.match(text, match.start())
            else "\\" + match[0]
        ),
        " ".join(text.splitlines()),
    )


_SIGN = re.compile(r":(//|[\w+-]+:)")


def code(text: str) -> str:
    """Write text as a code span, whatever backticks it holds."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{padding}{text}{padding}{fence}"


def grid(
    columns: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[bool]
) -> list[str]:
    """Write a GitHub table of plain texts."""
    marks = ("---:" if right else ":---" for right in numeric)
    lines = [map(escaped, columns), marks, *(map(escaped, row) for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def markdown(report: Report, sections: Sequence[PlacedSection]) -> str:
    """Write the whole report; figures are links to files beside it."""
    lines = [f"# {escaped(report.title)}", ""]
    lines += [f"- **{label}:** {escaped(text)}" for label, text in facts(report.header)]
    if report.header.runs:
        runs = run_table(report.header)
        lines += ["", *grid(runs.columns, runs.rows, runs.numeric)]
    lines += ["", "## Contents", ""]
    for placed in sections:
        title = escaped(placed.section.experiment.title)
        lines.append(f"{placed.number}. [{title}](#{placed.anchor})")
    for placed in sections:
        lines += _section(placed)
    return "\n".join(lines).rstrip() + "\n"


def _section(placed: PlacedSection) -> list[str]:
    experiment = placed.section.experiment
    lines = _part(placed) if placed.part else []
    lines += ["", f'<a id="{placed.anchor}"></a>', ""]
    lines += [f"## {placed.number}. {escaped(experiment.title)}", ""]
    lines += [f"*{escaped(experiment.source)}*", "", f"**{escaped(experiment.question)}**", ""]
    several = len(placed.findings) > 1
    for finding in placed.findings:
        if finding.result.sentences:
            name = f"**{escaped(finding.data)}:** " if several and finding.data else ""
            if len(finding.result.sentences) > JOINED:
                lines += [name.strip(), ""] if name else []
                lines += [f"- {escaped(sentence)}" for sentence in finding.result.sentences]
                lines += [""]
            else:
                lines += [name + escaped(" ".join(finding.result.sentences)), ""]
    if placed.layers_note:
        lines += [placed.layers_note, ""]
    if placed.absent_note:
        lines += [escaped(placed.absent_note), ""]
    for finding in placed.findings:
        if several and finding.data:
            lines += [f"### {escaped(finding.data)}", ""]
        lines += _finding(finding)
    lines += [f"How it was obtained: {escaped(experiment.method)}", ""]
    if placed.section.runs:
        lines += ["Runs: " + ", ".join(map(code, placed.section.runs)), ""]
    for query in placed.section.queries:
        lines += ["````sql", query.strip(), "````", ""]
    return lines


def _part(placed: PlacedSection) -> list[str]:
    lines = ["", f"# {escaped(placed.part)}"]
    if placed.section.of_part:
        lines += [
            "",
            *(f"- **{escaped(label)}:** {escaped(text)}" for label, text in placed.section.of_part),
        ]
    return lines


def _finding(finding: Finding) -> list[str]:
    lines = []
    for figure in finding.figures:
        lines += [*linked(figure.name, figure.caption), ""]
    for table in finding.tables:
        lines += [*_table(table), ""]
    for against in finding.against:
        lines += ["**Against the papers**", ""]
        lines += [escaped(against.note), ""] if against.note else []
        for source, rows in against.tables:
            lines += [f"*{escaped(source)}*", ""]
            lines += [*grid(against.columns, rows, against.numeric), ""]
    return lines


def linked(name: str, caption: str) -> list[str]:
    """Write a link to a figure's file, with its caption below."""
    text = escaped(caption)
    return [f"![{text}](figures/{name}.svg)", "", f"*{text}*"]


def _table(table: PlacedTable) -> list[str]:
    lines = [f"**{escaped(table.caption)}**", "", *grid(table.columns, table.rows, table.numeric)]
    if table.more:
        path = f"tables/{table.name}.csv"
        lines += ["", f"{count(table.more, 'more row')} in [{path}]({path})."]
    return lines


# Tables for LaTeX: pandas writes them, with booktabs, over several pages if they are long.


LONG = 45  # rows that fit on a page
_PACKAGES = (
    "% \\usepackage{booktabs,longtable}; scripts other than Latin need LuaLaTeX or XeLaTeX\n"
)
#: LaTeX's own signs, and letters of the reports that pdfLaTeX's fonts lack.
_LATEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "{}#$%&_"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "[": "{[}",  # an option, at the beginning of a row
        "*": "{*}",
        "–": "--",
        "−": "$-$",
        "×": r"$\times$",
        "→": r"$\rightarrow$",
        "≥": r"$\geq$",
        "≠": r"$\neq$",
        "±": r"$\pm$",
        "‖": r"$\|$",
        "′": "$'$",
        "|": r"\textbar{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
    }
    | {"α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "ρ": r"$\rho$"}
)


def latex_escaped(text: str) -> str:
    """Escape text for LaTeX; letters that print nothing become spaces."""
    return "".join(letter if letter.isprintable() else " " for letter in text).translate(_LATEX)


def latex(table: Table, name: str) -> str:
    """Write the whole table for LaTeX."""
    text = table.text().map(latex_escaped).rename(columns=latex_escaped)
    long = len(text) > LONG
    return _PACKAGES + text.to_latex(
        index=False,
        escape=False,  # pandas escapes no captions, and brackets nowhere
        column_format="".join("lr"[is_numeric(table.frame[column])] for column in table.frame),
        longtable=long,
        position=None if long else "htbp",
        caption=latex_escaped(table.caption),
        label=f"tab:{name}",
    )


# A report's folder: figures, tables, the page, the Markdown and every number as JSON.


FORMAT, VERSION = "normlens-report", 1
RESULTS = "results.json"


class Writer:
    """Writes the files of a folder, each whole or not at all, and remembers their names."""

    def __init__(self, folder: str | Path):
        self.folder = LocalFolder(folder)
        self.names: list[str] = []

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

    def put_figure(self, name: str, figure: Figure) -> bytes:
        """Draw the figure into two files; returns the SVG."""
        drawing = figure.draw()
        picture = svg(drawing)
        self.put(f"figures/{name}.svg", picture)
        self.put(f"figures/{name}.png", png(drawing))
        return picture


def write(report: Report, folder: str | Path) -> list[Path]:
    """Write everything into `folder`, results.json last.

    Figures and tables of an earlier report that this one does not have are removed.
    """
    writer = Writer(folder)
    earlier = _earlier(writer.folder)
    sections = arrange(report)
    drawn: dict[str, bytes] = {}
    for finding in (finding for placed in sections for finding in placed.findings):
        for item in finding.figures:
            drawn[item.name] = writer.put_figure(item.name, item.figure)
        for table in finding.tables:
            writer.put_table(f"tables/{table.name}.csv", table.table.frame)
            writer.put(f"tables/{table.name}.tex", latex(table.table, table.name))
    writer.put("report.md", markdown(report, sections))
    writer.put("report.html", page(report, sections, drawn))
    contents = results(report, sections, [*writer.names, RESULTS])
    writer.put(RESULTS, json.dumps(contents, indent=1, ensure_ascii=False, allow_nan=False))
    for name in earlier.difference(writer.names):
        writer.folder.remove(name)
    return writer.paths


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
