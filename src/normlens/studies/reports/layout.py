"""The layout of a report: order, file names, published numbers, and the facts above it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, groupby
from typing import Any

import pandas as pd

from normlens.studies.reports import words
from normlens.studies.reports.contents import (
    Figure,
    Header,
    Measured,
    Report,
    Result,
    Section,
    Table,
)
from normlens.studies.reports.words import (
    Comparison,
    count,
    fixed,
    power,
    shortened,
    signed,
    slug,
    unique,
)

# The facts above a report's experiments: model, runs, settings and versions.


_COLUMNS = ("data", "", "sequences", "tokens", "failures", "completeness error")
_NUMERIC = (False, False, True, True, True, True)
#: Columns that runs have even if they do not take the model apart.
_OF_EVERY_RUN = (True, False, True, True, True, False)


def facts(header: Header) -> list[tuple[str, str]]:
    """List label and text of each fact above the experiments, without the table of runs."""
    model = header.model
    attention = "causal" if model.causal else "bidirectional"
    dates = sorted({run.date[:10] for run in header.runs if run.date})
    every = [
        ("Model", f"{model.name} ({model.type}, {attention}, {count(model.layers, 'layer')})"),
        ("Layer", model.components),
        ("Scopes", ", ".join(model.scopes)),
        ("Computed in", f"{model.dtype} on {model.device}"),
        ("Revision", model.revision or ""),
        ("Weights", shortened(model.weights or "")),
        *header.notes,
        ("Completeness error", completeness(header) if header.decomposed else ""),
        ("Settings", " · ".join(_settings(header.settings))),
        ("Versions", " · ".join(f"{name} {text}" for name, text in header.versions.items())),
        ("Date of the runs", " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]]))),
    ]
    return [(label, text) for label, text in every if text]


def completeness(header: Header) -> str:
    if header.completeness is None:
        return "not measured: no sequence was analysed"
    return f"at most {power(header.completeness)} (parts + bias against the model's own vectors)"


def _settings(settings: Mapping[str, Any]) -> Iterable[str]:
    for name, value in settings.items():
        if name in ("model", "data", "revision") or value is None or value == () or value == []:
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        yield f"{name.replace('_', ' ')} {text}"


@dataclass(frozen=True)
class RunTable:
    """The table of runs above a report's experiments, as text."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numeric: tuple[bool, ...]


def run_table(header: Header) -> RunTable:
    """Write every run as a row."""
    shown = [True] * len(_COLUMNS) if header.decomposed else _OF_EVERY_RUN
    rows = [tuple(compress(_run_row(run), shown)) for run in header.runs]
    return RunTable(tuple(compress(_COLUMNS, shown)), rows, tuple(compress(_NUMERIC, shown)))


def _run_row(run: Measured) -> tuple[str, ...]:
    masked = "" if run.mask is None else f"{100 * run.mask:g} % masked"
    return (
        run.data if run.source in ("", run.data) else f"{run.data} ({run.source})",
        ", ".join(filter(None, (run.purpose, masked))) or "unmasked",
        *(f"{number:,}" for number in (run.sequences, run.tokens, run.failures)),
        power(run.completeness),
    )


# The layout of a report: order, file names, and published numbers beside measured ones.


FOLD, FOLD_FIRST = 14, 40  # tables with more rows are folded; the second: if it comes first
FOLD_FROM = 4  # tables behind so many others (figures count as two) are folded
JOINED = 3  # sentences in one paragraph; more are a list
DENSE = 100  # letters; wider tables are set smaller
_LAYER_NUMBER = re.compile(r"\blayers? \d")


@dataclass(frozen=True)
class PlacedFigure:
    name: str  # of its files, without their endings
    figure: Figure

    @property
    def caption(self) -> str:
        return self.figure.caption


@dataclass(frozen=True)
class PlacedTable:
    name: str  # of its files, without their endings
    table: Table
    place: int = 0  # how much of the same finding stands before it

    @property
    def caption(self) -> str:
        return self.table.caption

    @property
    def columns(self) -> list[str]:
        return [str(name) for name in self.table.frame]

    @property
    def numeric(self) -> list[bool]:
        return [is_numeric(self.table.frame[name]) for name in self.table.frame]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The rows that a report shows, as text."""
        shown = Table(self.table.frame.head(self.limit), "", self.table.formats).text()
        return list(shown.itertuples(index=False, name=None))

    @property
    def limit(self) -> int:
        total = len(self.table.frame)
        return total if self.table.shown is None else min(total, self.table.shown)

    @property
    def more(self) -> int:
        """Rows that only the files hold."""
        return len(self.table.frame) - self.limit

    @property
    def folded(self) -> bool:
        many = self.limit > (FOLD if self.place else FOLD_FIRST)
        return not self.table.open and (many or self.place >= FOLD_FROM)

    @property
    def dense(self) -> bool:
        rows = [self.columns, *self.rows]
        return sum(max(map(len, cells)) + 3 for cells in zip(*rows, strict=True)) > DENSE


@dataclass(frozen=True)
class Against:
    """Published numbers of one model and data beside the measured ones."""

    same: bool
    note: str  # why they are shown greyed; empty if they are of this model and data
    #: where they stand, and their rows: label, published, measured and, if `same`, difference
    tables: Sequence[tuple[str, Sequence[tuple[str, ...]]]]

    @property
    def columns(self) -> tuple[str, ...]:
        labels = [row[0] for _, rows in self.tables for row in rows]
        first = "layers counted from 1" if any(map(_LAYER_NUMBER.search, labels)) else ""
        return (first, "published", "measured", *(("difference",) if self.same else ()))

    @property
    def numeric(self) -> list[bool]:
        return [False] + [True] * (len(self.columns) - 1)


@dataclass(frozen=True)
class Finding:
    """An experiment's result on one data set, with the names of its files."""

    data: str
    result: Result
    figures: Sequence[PlacedFigure]
    tables: Sequence[PlacedTable]
    against: Sequence[Against]


@dataclass(frozen=True)
class PlacedSection:
    number: int
    anchor: str
    section: Section
    findings: Sequence[Finding]
    absent: Sequence[str]  # data sets on which the experiment does not apply
    part: str  # a heading above this section; empty inside a part

    @property
    def files(self) -> list[str]:
        """The section's files, relative to the report's folder."""
        return [
            f"{folder}/{item.name}.{ending}"
            for finding in self.findings
            for folder, items, endings in (
                ("figures", finding.figures, ("svg", "png")),
                ("tables", finding.tables, ("csv", "tex")),
            )
            for item in items
            for ending in endings
        ]

    @property
    def layers_note(self) -> str:
        """How layers are counted, where a sentence names one by its number."""
        sentences = [text for finding in self.findings for text in finding.result.sentences]
        return "Layers are counted from 1." if any(map(_LAYER_NUMBER.search, sentences)) else ""

    @property
    def absent_note(self) -> str:
        """Why there is no result on some or on all data."""
        if not self.absent and self.findings:
            return ""
        reason = self.section.experiment.absent or "the experiment does not apply here"
        where = ", ".join(filter(None, self.absent))
        what = f"Not on {where}" if where and self.findings else "No result"
        return f"{what}: {reason.rstrip('.')}."


def arrange(report: Report) -> list[PlacedSection]:
    """Give every section its number, its anchor and the names of its files."""
    several = len(report.data) > 1
    figures: set[str] = set()
    tables: set[str] = set()
    anchors: set[str] = set()
    placed: list[PlacedSection] = []
    part = ""
    for position, section in enumerate(report.sections, start=1):
        findings = [
            Finding(
                data=data,
                result=result,
                figures=[
                    PlacedFigure(_file(name, data, several, figures), figure)
                    for name, figure in result.figures.items()
                ],
                tables=[
                    PlacedTable(
                        _file(name, data, several, tables),
                        # Its header says how layers are counted.
                        replace(table, frame=table.frame.rename(columns={"layer": words.LAYER})),
                        place + 2 * bool(result.figures),
                    )
                    for place, (name, table) in enumerate(result.tables.items())
                ],
                against=_against(result.comparisons, report.header.model.name, data),
            )
            for data, result in section.results
            if result is not None
        ]
        placed.append(
            PlacedSection(
                number=position,
                anchor=unique("experiment-" + slug(section.experiment.name), anchors),
                section=section,
                findings=findings,
                absent=[data for data, result in section.results if result is None],
                part=section.part if section.part != part else "",
            )
        )
        part = section.part
    return placed


def _file(name: str, data: str, several: bool, taken: set[str]) -> str:
    return unique(slug(f"{name}-{data}" if several and data else name), taken)


def _against(comparisons: Sequence[Comparison], model: str, data: str) -> list[Against]:
    """Group comparisons that follow each other and share model and data."""

    def origin(item: Comparison) -> tuple[str, str, bool]:
        theirs = item.published.data_label or item.published.data or ""
        return item.published.model, theirs, item.same

    comparison_tables = []
    for (their_model, their_data, same), group in groupby(comparisons, key=origin):
        items = list(group)
        theirs = f"{their_model} on {their_data}" if their_data else their_model
        ours = f"{model} on {data}" if their_data and data else model
        is_or_are = "figure is" if len(items) == 1 else "figures are"
        note = f"The published {is_or_are} of {theirs}, not of {ours}; for orientation only."
        tables = [
            (source, [_beside(item) for item in of_source])
            for source, of_source in groupby(items, key=lambda item: item.published.source)
        ]
        comparison_tables.append(Against(same, "" if same else note, tables))
    return comparison_tables


def _beside(item: Comparison) -> tuple[str, ...]:
    digits = item.published.digits
    row = (
        item.published.label,
        fixed(item.published.value, digits),
        fixed(item.measured, digits),
    )
    return (*row, signed(item.difference, digits)) if item.same else row


def is_numeric(column: pd.Series) -> bool:
    """Whether all values of a column are numbers."""
    return pd.api.types.infer_dtype(column) in ("integer", "floating", "mixed-integer-float")
