"""The contents of a report: header, sections with tables and figures, and how they are laid out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from normlens.corpus.runs.folder import shown_data
from normlens.corpus.runs.results import Run
from normlens.loading.hub import shown_name
from normlens.studies.reports import drawing, words
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


FOLD = 20  # tables with more rows are folded on a page
DENSE = 8  # tables with more columns are set smaller


@dataclass(frozen=True)
class Table:
    """A table of a report: `form` formats its decimal numbers, `formats` single columns.

    Its caption is that of its name among the study's words, unless one is given; `file` is set when
    a report is written.
    """

    frame: pd.DataFrame
    form: str = ""  # a format specification: ".2f"
    caption: str = ""
    formats: Mapping[str, str] = field(default_factory=dict)
    shown: int | None = None  # rows that a page shows; files hold all of them
    open: bool = False  # never folded, however long it is
    file: str = ""

    def text(self) -> pd.DataFrame:
        """Format every cell as text; missing values become a dash."""
        columns = {}
        for name, column in self.frame.items():
            own = self.form if pd.api.types.is_float_dtype(column) else ""
            form = self.formats.get(str(name), own)
            columns[str(name)] = [_cell(value, form) for value in column]
        return pd.DataFrame(columns, dtype=object)

    @property
    def numeric(self) -> list[bool]:
        return [is_numeric(self.frame[name]) for name in self.frame]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The rows that a page shows, as text."""
        return list(self.text().head(self.shown).itertuples(index=False, name=None))

    @property
    def more(self) -> int:
        """Rows that only the files hold."""
        return max(0, len(self.frame) - (self.shown or len(self.frame)))

    @property
    def folded(self) -> bool:
        return not self.open and len(self.frame) - self.more > FOLD

    @property
    def dense(self) -> bool:
        return len(self.frame.columns) > DENSE


def _cell(value: Any, form: str) -> str:
    if pd.isna(value):
        return words.DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else format(value, form).replace("-", "−")


@dataclass(frozen=True)
class Figure:
    """A figure of a report, drawn only when its `draw` is called; captioned as tables are.

    `page` gives HTML for the page to show in the drawing's place.
    """

    make: Callable[[], Drawing]
    caption: str = ""
    page: Callable[[], Markup] | None = None
    file: str = ""

    def draw(self) -> Drawing:
        with drawing.styled():
            return self.make()


@dataclass(frozen=True)
class Result:
    """An experiment's tables and figures on one data set, by name."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    comparisons: Sequence[Comparison] = ()
    #: numbers to set beside those of other models: name → value
    summary: Mapping[str, float] = field(default_factory=dict)
    #: what {fields} of captions stand for
    facts: Mapping[str, object] = field(default_factory=dict)

    def captioned(self, study: str) -> Result:
        """Caption the tables and figures that have no caption."""

        def named(kind: str, items: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: item
                if item.caption
                else replace(item, caption=words.caption(study, f"{kind} {name}", **self.facts))
                for name, item in items.items()
            }

        return replace(
            self, tables=named("table", self.tables), figures=named("figure", self.figures)
        )


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
    absent: str = "the experiment does not apply here"
    needs: str = ""
    work: Callable[..., Result | None] | None = field(default=None, repr=False)

    def __call__(self, *evidence: Any) -> Result | None:
        assert self.work is not None
        return self.work(*evidence)


def experiment(
    study: str, name: str, needs: str = ""
) -> Callable[[Callable[..., Result | None]], Experiment]:
    """Decorator: make an experiment of a function, with the words of this name in `texts.ini`."""

    def made(work: Callable[..., Result | None]) -> Experiment:
        def captioned(*evidence: Any) -> Result | None:
            result = work(*evidence)
            return result and result.captioned(study)

        return Experiment(name, **words.texts(study)[name], needs=needs, work=captioned)

    return made


# A run as a report's header describes it: its model, its data and how much was analysed.


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
    def of(cls, run: Run) -> Model:
        """Describe a run's model; of a model in a folder, the name is the folder's last part."""
        described = {**run.manifest.model, "name": shown_name(run.manifest.model["name"])}
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
    def of(
        cls,
        run: Run,
        runs: Sequence[Measured],
        settings: Mapping[str, Any],
        notes: Sequence[tuple[str, str]],
        decomposed: bool = True,
    ) -> Header:
        """The header of a report on `runs`, one of which says what all have in common."""
        given = {
            name.replace("_", " "): value
            for name, value in settings.items()
            if not (value is None or value is False or value == ())
        }
        versions = dict(run.manifest.versions)
        return cls(Model.of(run), runs, given, versions, notes, decomposed)

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
            ("Settings", _in_words(self.settings)),
            ("Versions", _in_words(self.versions)),
            ("Date of the runs", " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]]))),
        ]
        return [(label, text) for label, text in every if text]

    @property
    def run_table(self) -> Table:
        """The runs, one row each."""
        table = pd.DataFrame([_run_row(run) for run in self.runs])
        if not self.decomposed:
            table = table.drop(columns=["", "completeness error"])
        return Table(table, formats=dict.fromkeys(("sequences", "tokens", "failures"), ","))


def _in_words(facts: Mapping[str, Any]) -> str:
    lists = {
        name: ", ".join(map(str, it)) for name, it in facts.items() if isinstance(it, list | tuple)
    }
    return " · ".join(f"{name} {text}" for name, text in {**facts, **lists}.items())


def _run_row(run: Measured) -> dict[str, object]:
    masked = "" if run.mask is None else f"{100 * run.mask:g} % masked"
    return {
        "data": run.data if run.source in ("", run.data) else f"{run.data} ({run.source})",
        "": ", ".join(filter(None, (run.purpose, masked))) or "unmasked",
        "sequences": run.sequences,
        "tokens": run.tokens,
        "failures": run.failures,
        "completeness error": power(run.completeness),
    }


# The sections of a report, and the names of its files.


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

    @property
    def found(self) -> list[tuple[str, Result]]:
        """The results on data where the experiment applies."""
        return [(data, result) for data, result in self.results if result is not None]

    @property
    def absent_note(self) -> str:
        """Why there is no result on some or on all data."""
        absent = [data for data, result in self.results if result is None]
        if not absent and self.found:
            return ""
        where = ", ".join(filter(None, absent))
        what = f"Not on {where}" if where and self.found else "No result"
        return f"{what}: {self.experiment.absent.rstrip('.')}."


@dataclass(frozen=True)
class Report:
    """Everything that is written into a report's folder."""

    title: str
    header: Header
    sections: Sequence[Section]

    def with_files(self) -> Report:
        """Name the files of all tables and figures, and label columns of layers."""
        data = [run.data for run in self.header.runs]
        data += [name for section in self.sections for name, _ in section.results if name]
        several = len(set(data)) > 1
        taken: dict[type, set[str]] = {Table: set(), Figure: set()}

        def named(items: Mapping[str, Any], data: str) -> dict[str, Any]:
            found = {}
            for name, item in items.items():
                whole = slug(f"{name}-{data}" if several and data else name)
                found[name] = replace(item, file=words.unique(whole, taken[type(item)]))
                if isinstance(item, Table):
                    frame = item.frame.rename(columns={"layer": words.LAYER})
                    found[name] = replace(found[name], frame=frame)
            return found

        sections = []
        for section in self.sections:
            results = [
                (
                    data,
                    result
                    and replace(
                        result,
                        figures=named(result.figures, data),
                        tables=named(result.tables, data),
                    ),
                )
                for data, result in section.results
            ]
            sections.append(replace(section, results=results))
        return replace(self, sections=sections)


def against(comparisons: Sequence[Comparison], model: str) -> list[tuple[str, bool, Table]]:
    """Tables of published numbers beside those of `model`: the source, and whether it is alike."""

    def origin(item: Comparison) -> tuple[str, bool]:
        data = item.published.data_label or item.published.data
        return item.published.source + (f" ({data})" if data else ""), item.same

    def row(item: Comparison) -> dict[str, str]:
        published, digits = item.published, item.published.digits
        cells = {
            "": published.label,
            "published": f"{fixed(published.value, digits)} ({published.model})",
            "measured": f"{fixed(item.measured, digits)} ({model})",
        }
        return cells | ({"difference": signed(item.difference, digits)} if item.same else {})

    return [
        (source, same, Table(pd.DataFrame([row(item) for item in items])))
        for (source, same), items in groupby(comparisons, key=origin)
    ]


def is_numeric(column: pd.Series) -> bool:
    """Whether all values of a column are numbers."""
    return pd.api.types.infer_dtype(column) in ("integer", "floating", "mixed-integer-float")
