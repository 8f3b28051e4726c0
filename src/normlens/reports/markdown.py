"""A report as Markdown, for GitHub and for notes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from normlens.reports.content import Report
from normlens.reports.facts import facts, run_table
from normlens.reports.formatting import count
from normlens.reports.layout import JOINED, Finding, PlacedSection, PlacedTable

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
    lines = ["", f"# {escaped(placed.part)}"] if placed.part else []
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
