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
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from normlens.corpus.runs.folder import LocalFolder
from normlens.errors import MissingDependencyError, parse_json
from normlens.results.axes import plain
from normlens.results.words import write_csv
from normlens.studies.reports.contents import Report
from normlens.studies.reports.latex import latex
from normlens.studies.reports.layout import (
    FOLD,
    JOINED,
    Finding,
    PlacedSection,
    PlacedTable,
    arrange,
    facts,
    run_table,
)
from normlens.studies.reports.words import Comparison, count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Figures as SVG and PNG: the same bytes every time, and small enough for a page.


RESOLUTION = 200  # pixels per inch
PATHS = 300_000  # bytes; larger SVG files name their letters instead of drawing them
LARGEST = 1_500_000  # bytes; larger ones hold one picture of pixels
ENLARGED = 1.15  # on a screen, against the size in print
COLUMN = 860  # pixels that a page's column has for a figure

_ROUND = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_UNDATED = {"Date": None, "Creator": None, "Format": None, "Type": None}
_POINTER = re.compile(r"url\(#([^)]+)\)")


def png(figure: Figure) -> bytes:
    """Render the figure in pixels, at 200 dpi."""
    return _saved(figure, "png", dpi=RESOLUTION, metadata={"Software": None})


def svg(figure: Figure) -> bytes:
    """Render the figure as SVG, its letters as paths, so that it looks the same everywhere.

    Beyond `PATHS` letters are text, beyond `LARGEST` the whole figure is one picture of pixels.
    """
    drawn = _svg(figure, "path")
    if len(drawn) > PATHS:
        drawn = min(drawn, _svg(figure, "none"), key=len)
    return drawn if len(drawn) <= LARGEST else _pixels(figure)


def inline(picture: bytes, prefix: str, description: str) -> str:
    """Turn an SVG file into an element of an HTML page, which may hold others.

    Only ids that something points to are kept, each with `prefix` before it; namespaces, metadata
    and style sheets are left out (the page's own style sheet says how lines join).
    """
    root = ElementTree.fromstring(picture)
    width, height = (float(root.get(name, "0").removesuffix("pt")) for name in ("width", "height"))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (_ROUND + "metadata", _ROUND + "style"):
                parent.remove(child)
    pointed = {
        pointed_id
        for element in root.iter()
        for name, value in element.attrib.items()
        for pointed_id in (
            [value[1:]] if name == _LINK and value[:1] == "#" else _POINTER.findall(value)
        )
    }
    for element in root.iter():
        element.tag = element.tag.removeprefix(_ROUND)
        element.attrib = {
            name.rpartition("}")[2]: _renamed(name, value, prefix)
            for name, value in element.attrib.items()
            if name != "id" or value in pointed
        }
    pixels = width * 96 / 72 * ENLARGED
    root.attrib = {
        "viewBox": root.get("viewBox", f"0 0 {width} {height}"),
        "role": "img",
        "style": f"width:{pixels:.0f}px;min-width:{min(0.7 * pixels, COLUMN):.0f}px",
    }
    text = ElementTree.tostring(root, encoding="unicode")
    return text.replace("<svg ", f"<svg aria-label={quoteattr(description)} ", 1)


def _renamed(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return prefix + value
    if name == _LINK:
        return f"#{prefix}{value[1:]}" if value.startswith("#") else value
    return _POINTER.sub(rf"url(#{prefix}\1)", value)


def _svg(figure: Figure, letters: str) -> bytes:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": letters, "svg.hashsalt": "normlens"}):
        return _saved(figure, "svg", metadata=_UNDATED)


def _pixels(figure: Figure) -> bytes:
    """Wrap the figure's pixels in an SVG."""
    width, height = (72 * inches for inches in figure.get_size_inches())
    picture = base64.b64encode(png(figure)).decode()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{width:g}pt" height="{height:g}pt" viewBox="0 0 {width:g} {height:g}">'
        f'<image width="{width:g}" height="{height:g}" '
        f'xlink:href="data:image/png;base64,{picture}"/></svg>\n'
    ).encode()


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
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
        facts=[(label, text) for label, text in facts(report.header) if text],
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
        return Markup(inline(pictures[name], f"{name}--", caption))

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
    lines += [f"- **{label}:** {escaped(text)}" for label, text in facts(report.header) if text]
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
        caption = escaped(figure.caption)
        lines += [f"![{caption}](figures/{figure.name}.svg)", "", f"*{caption}*", ""]
    for table in finding.tables:
        lines += [*_table(table), ""]
    for against in finding.against:
        lines += ["**Against the papers**", ""]
        lines += [escaped(against.note), ""] if against.note else []
        for source, rows in against.tables:
            lines += [f"*{escaped(source)}*", ""]
            lines += [*grid(against.columns, rows, against.numeric), ""]
    return lines


def _table(table: PlacedTable) -> list[str]:
    lines = [f"**{escaped(table.caption)}**", "", *grid(table.columns, table.rows, table.numeric)]
    if table.more:
        path = f"tables/{table.name}.csv"
        lines += ["", f"{count(table.more, 'more row')} in [{path}]({path})."]
    return lines


# A report's folder: figures, tables, the page, the Markdown and every number as JSON.


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
            drawn[item.name] = svg(figure)
            put(f"figures/{item.name}.svg", drawn[item.name])
            put(f"figures/{item.name}.png", png(figure))
        for table in finding.tables:
            rows = io.StringIO()
            write_csv(table.table.frame, rows)
            put(f"tables/{table.name}.csv", rows.getvalue().encode())
            put(f"tables/{table.name}.tex", latex(table.table, table.name).encode())
    put("report.md", markdown(report, sections).encode())
    put("report.html", page(report, sections, drawn).encode())
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
