"""The contents of a report: header, sections with tables and figures, and how they are laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from normlens.corpus.runs.folder import shown_data
from normlens.corpus.runs.results import Run
from normlens.loading.hub import shown_name
from normlens.studies.reports import words
from normlens.studies.reports.words import Comparison, count, fixed, power, shortened, signed, slug

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure as Drawing

# The parts of a section: its question, its evidence, and its tables and figures.


@dataclass(frozen=True)
class Evidence:
    """The data that a section reads: one data set's run, or files computed from the weights."""

    data: str  # the data set's short name; empty where no data is needed
    run: Run | None = None
    folder: Path = Path()  # of what was computed from the model itself

    @property
    def model(self) -> dict[str, Any]:
        """The model as the run's manifest describes it: name, layers, scopes, causal, …"""
        assert self.run is not None
        return self.run.manifest.model

    @property
    def scopes(self) -> list[str]:
        return list(self.model["scopes"])

    def sql(self, query: str) -> pd.DataFrame:
        """Run an SQL query over the run's tables."""
        assert self.run is not None
        return self.run.sql(query)


FOLD, FOLD_FIRST = 14, 40  # tables with more rows are folded; the second: if it comes first
FOLD_FROM = 4  # tables behind so many others (figures count as two) are folded
DENSE = 100  # letters; wider tables are set smaller


@dataclass(frozen=True)
class Table:
    """A table of a report. `formats` are format specifications (".2f") of columns."""

    frame: pd.DataFrame
    caption: str
    formats: Mapping[str, str] = field(default_factory=dict)
    shown: int | None = None  # rows that a report shows; files hold all of them
    open: bool = False  # never folded, however long it is

    def text(self) -> pd.DataFrame:
        """Format every cell as text; missing values become a dash."""
        columns = {
            name: [self._cell(str(name), value) for value in self.frame[name]]
            for name in self.frame
        }
        return pd.DataFrame(columns, dtype=object)

    def _cell(self, column: str, value: Any) -> str:
        if pd.isna(value):
            return words.DASH
        if isinstance(value, bool):
            return "yes" if value else "no"
        text = format(value, self.formats.get(column, ""))
        return text if isinstance(value, str) else text.replace("-", "−")

    @property
    def columns(self) -> list[str]:
        return [str(name) for name in self.frame]

    @property
    def numeric(self) -> list[bool]:
        return [is_numeric(self.frame[name]) for name in self.frame]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The rows that a report shows, as text."""
        shown = replace(self, frame=self.frame.head(self.shown or len(self.frame))).text()
        return list(shown.itertuples(index=False, name=None))

    @property
    def more(self) -> int:
        """Rows that only the files hold."""
        return max(0, len(self.frame) - (self.shown or len(self.frame)))

    def folded(self, place: int) -> bool:
        """Whether it is folded on a page where `place` other things of its finding come first."""
        many = len(self.frame) - self.more > (FOLD if place else FOLD_FIRST)
        return not self.open and (many or place >= FOLD_FROM)

    @property
    def dense(self) -> bool:
        rows = [self.columns, *self.rows]
        return sum(max(map(len, cells)) + 3 for cells in zip(*rows, strict=True)) > DENSE


@dataclass(frozen=True)
class Figure:
    """A figure of a report, drawn only when its `draw` is called.

    `page` gives HTML for the page to show in the drawing's place; Markdown links to the drawing.
    """

    draw: Callable[[], Drawing]
    caption: str
    page: Callable[[], Markup] | None = None


@dataclass(frozen=True)
class Result:
    """An experiment's tables and figures on one data set, by their file names without endings."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    comparisons: Sequence[Comparison] = ()
    #: numbers to set beside those of other models: name → value
    summary: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One experiment: its words, and the function that makes a result of the evidence.

    Calling it calls `work`, which gives None where the experiment does not apply; `absent` says
    why. `needs` says which of several runs it looks at.
    """

    name: str
    title: str
    source: str  # paper, table, figure
    question: str
    method: str  # how the answer was obtained
    read: str = ""  # how tables and figures are read
    absent: str = ""
    needs: str = ""
    work: Callable[..., Result | None] | None = field(default=None, repr=False)

    def __call__(self, *evidence: Any) -> Result | None:
        assert self.work is not None
        return self.work(*evidence)


def experiment(
    study: str, name: str, needs: str = ""
) -> Callable[[Callable[..., Result | None]], Experiment]:
    """Decorator: make an experiment of a function, with the words of this name in `texts.ini`."""

    own = words.texts(study)[name]
    texts = {key: own[key] for key in Experiment.__dataclass_fields__ if key in own}
    return lambda work: Experiment(name, **texts, needs=needs, work=work)


# A run as a report's header describes it: its model, its data and how much was analysed.


def model_of(run: Run) -> Model:
    """Describe the run's model; of a model in a folder, the name is the folder's last part."""
    return Model.of({**run.manifest.model, "name": shown_name(run.manifest.model["name"])})


def measured(run: Run, data: str, folder: str = "") -> Measured:
    """Describe the run; `data` is the data set's short name, `folder` the run's in the report."""
    manifest, status = run.manifest, run.status()
    worst = run.sql("SELECT max(completeness) AS worst FROM sequences")["worst"].iloc[0]
    return Measured(
        data=data,
        source=shown_data(manifest.data["name"]),
        sequences=status.done - status.failures,
        tokens=status.tokens,
        failures=status.failures,
        completeness=None if worst != worst else float(worst),
        mask=manifest.options.mask,
        date=manifest.created,
        folder=folder,
    )


@dataclass(frozen=True)
class Model:
    """The model that was analysed, as a run's manifest describes it."""

    name: str
    type: str
    components: str
    layers: int
    scopes: Sequence[str]
    dtype: str
    device: str
    revision: str | None = None
    weights: str | None = None  # a hash
    causal: bool = False

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Model:
        """Read the `model` part of a manifest, which may hold more than a report shows."""
        return cls(**{name: described[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Measured:
    """One run: a data set, with or without masks."""

    data: str  # the data set's short name
    source: str  # its name in full
    sequences: int  # that were analysed
    tokens: int
    failures: int
    completeness: float | None  # worst relative error of parts + bias; None: nothing analysed
    mask: float | None = None  # share of masked tokens; None: unmasked
    date: str = ""  # when the run began, ISO 8601
    folder: str = ""
    purpose: str = ""  # where a report has runs of several commands: what this one is for


@dataclass(frozen=True)
class Header:
    """The facts above the experiments: model, runs, settings and versions."""

    model: Model
    runs: Sequence[Measured]
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    #: further facts behind those of the model: label and text
    notes: Sequence[tuple[str, str]] = ()
    #: whether the runs took the model apart, so that masks and the completeness error say something
    decomposed: bool = True

    @classmethod
    def of_run(
        cls, run: Run, data: str, settings: Mapping[str, Any], notes: Sequence[tuple[str, str]]
    ) -> Header:
        """The header of a single run that does not take the model apart."""
        given = {name: value for name, value in settings.items() if value is not None}
        versions = dict(run.manifest.versions)
        return cls(model_of(run), [measured(run, data)], given, versions, notes, decomposed=False)

    @property
    def completeness(self) -> str:
        """The largest completeness error of all runs, in words."""
        errors = [run.completeness for run in self.runs if run.completeness is not None]
        if not errors:
            return "not measured: no sequence was analysed"
        return f"at most {power(max(errors))} (parts + bias against the model's own vectors)"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Label and text of each fact above the experiments, without the table of runs."""
        model = self.model
        attention = "causal" if model.causal else "bidirectional"
        dates = sorted({run.date[:10] for run in self.runs if run.date})
        every = [
            ("Model", f"{model.name} ({model.type}, {attention}, {count(model.layers, 'layer')})"),
            ("Layer", model.components),
            ("Scopes", ", ".join(model.scopes)),
            ("Computed in", f"{model.dtype} on {model.device}"),
            ("Revision", model.revision or ""),
            ("Weights", shortened(model.weights or "")),
            *self.notes,
            ("Completeness error", self.completeness if self.decomposed else ""),
            ("Settings", " · ".join(_settings(self.settings))),
            ("Versions", " · ".join(f"{name} {text}" for name, text in self.versions.items())),
            ("Date of the runs", " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]]))),
        ]
        return [(label, text) for label, text in every if text]

    @property
    def run_table(self) -> tuple[list[str], list[list[str]], list[bool]]:
        """The runs as a table: columns, rows of text, and which columns are numbers."""
        columns = ["data", "", "sequences", "tokens", "failures", "completeness error"]
        shown = [self.decomposed or name not in ("", "completeness error") for name in columns]
        rows = [list(compress(_run_row(run), shown)) for run in self.runs]
        return list(compress(columns, shown)), rows, list(compress([False] * 2 + [True] * 4, shown))


def _settings(settings: Mapping[str, Any]) -> Iterable[str]:
    for name, value in settings.items():
        if name in ("model", "data", "revision") or value is None or value == () or value == []:
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        yield f"{name.replace('_', ' ')} {text}"


def _run_row(run: Measured) -> list[str]:
    masked = "" if run.mask is None else f"{100 * run.mask:g} % masked"
    return [
        run.data if run.source in ("", run.data) else f"{run.data} ({run.source})",
        ", ".join(filter(None, (run.purpose, masked))) or "unmasked",
        *(f"{number:,}" for number in (run.sequences, run.tokens, run.failures)),
        power(run.completeness),
    ]


# The layout of a report: order, file names, and published numbers beside measured ones.


@dataclass(frozen=True)
class Section:
    """An experiment with its result on each data set, by the data set's short name.

    The name is empty where the model alone was looked at. `part` groups sections that follow each
    other under a heading, with the facts (label and text) `of_part` of the first one below it;
    `runs` and `queries` say where the numbers come from.
    """

    experiment: Experiment
    results: Sequence[tuple[str, Result | None]]
    part: str = ""
    of_part: Sequence[tuple[str, str]] = ()
    runs: Sequence[str] = ()
    queries: Sequence[str] = ()


@dataclass(frozen=True)
class Report:
    """Everything that is written into a report's folder."""

    title: str
    header: Header
    sections: Sequence[Section]

    @property
    def data(self) -> list[str]:
        """Short names of the data sets, in their order."""
        names = [run.data for run in self.header.runs]
        names += [data for section in self.sections for data, _ in section.results if data]
        return list(dict.fromkeys(names))


@dataclass(frozen=True)
class Against:
    """Published numbers of one source beside the measured ones, each with its model's name."""

    source: str
    same: bool  # whether they are of this model and data, and may be compared
    rows: Sequence[tuple[str, ...]]

    @property
    def columns(self) -> tuple[str, ...]:
        return ("", "published", "measured", *(("difference",) if self.same else ()))

    @property
    def numeric(self) -> list[bool]:
        return [False] + [True] * (len(self.columns) - 1)


@dataclass(frozen=True)
class Finding:
    """An experiment's result on one data set; tables and figures by the names of their files."""

    data: str
    result: Result
    figures: Mapping[str, Figure]
    tables: Mapping[str, Table]
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
            f"{folder}/{name}.{ending}"
            for finding in self.findings
            for folder, names, endings in (
                ("figures", finding.figures, ("svg", "png")),
                ("tables", finding.tables, ("csv", "tex")),
            )
            for name in names
            for ending in endings
        ]

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
    several, model = len(report.data) > 1, report.header.model.name
    figures, tables, anchors = set[str](), set[str](), set[str]()

    def file(name: str, data: str, taken: set[str]) -> str:
        return words.unique(slug(f"{name}-{data}" if several and data else name), taken)

    def finding(data: str, result: Result) -> Finding:
        named = {file(name, data, figures): figure for name, figure in result.figures.items()}
        # Their headers say how layers are counted.
        labelled = {
            file(name, data, tables): replace(
                table, frame=table.frame.rename(columns={"layer": words.LAYER})
            )
            for name, table in result.tables.items()
        }
        return Finding(data, result, named, labelled, _against(result.comparisons, model))

    placed: list[PlacedSection] = []
    for position, section in enumerate(report.sections, start=1):
        before = report.sections[position - 2].part if position > 1 else ""
        placed.append(
            PlacedSection(
                number=position,
                anchor=words.unique("experiment-" + slug(section.experiment.name), anchors),
                section=section,
                findings=[finding(data, it) for data, it in section.results if it is not None],
                absent=[data for data, result in section.results if result is None],
                part=section.part if section.part != before else "",
            )
        )
    return placed


def _against(comparisons: Sequence[Comparison], model: str) -> list[Against]:
    """Group comparisons that follow each other and share where they stand."""

    def origin(item: Comparison) -> tuple[str, bool]:
        data = item.published.data_label or item.published.data
        return item.published.source + (f" ({data})" if data else ""), item.same

    def row(item: Comparison) -> tuple[str, ...]:
        digits, theirs = item.published.digits, item.published.model
        published = f"{fixed(item.published.value, digits)} ({theirs})"
        cells = (item.published.label, published, f"{fixed(item.measured, digits)} ({model})")
        return (*cells, signed(item.difference, digits)) if item.same else cells

    return [
        Against(source, same, [row(item) for item in items])
        for (source, same), items in groupby(comparisons, key=origin)
    ]


def is_numeric(column: pd.Series) -> bool:
    """Whether all values of a column are numbers."""
    return pd.api.types.infer_dtype(column) in ("integer", "floating", "mixed-integer-float")
