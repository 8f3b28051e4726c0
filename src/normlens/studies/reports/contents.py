"""The contents of a report: a section's question, tables, figures and sentences, and its header."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from normlens.corpus.runs.folder import shown_data
from normlens.corpus.runs.results import Run
from normlens.loading.hub import shown_name
from normlens.studies.reports.words import Comparison

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure as Drawing

# The parts of a section: its question, its evidence, and its tables, figures and sentences.


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
        return pd.DataFrame(
            {
                name: [self._cell(str(name), value) for value in self.frame[name]]
                for name in self.frame
            },
            dtype=object,
        )

    def _cell(self, column: str, value: Any) -> str:
        if pd.isna(value):
            return "–"
        if isinstance(value, bool):
            return "yes" if value else "no"
        text = format(value, self.formats.get(column, ""))
        return text if isinstance(value, str) else text.replace("-", "−")


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
    """An experiment's tables, figures and sentences on one data set.

    Names of tables and figures are file names without their endings. Sentences say how to read
    them.
    """

    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    sentences: Sequence[str] = ()
    comparisons: Sequence[Comparison] = ()
    #: numbers to set beside those of other models: name → value
    summary: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One experiment in words: what it asks, where the question comes from, and how it is answered.

    `absent` says why there is no answer where it does not apply.
    """

    name: str
    title: str
    source: str  # paper, table, figure
    question: str
    method: str  # how the answer was obtained
    absent: str = ""


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


# The contents of a report: a header with model and runs, and a section per experiment.


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

    @property
    def completeness(self) -> float | None:
        """The largest completeness error of all runs."""
        return max(
            (run.completeness for run in self.runs if run.completeness is not None), default=None
        )


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
    style: str = ""  # CSS for what only this report's figures have on the page

    @property
    def data(self) -> list[str]:
        """Short names of the data sets, in their order."""
        names = [run.data for run in self.header.runs]
        names += [data for section in self.sections for data, _ in section.results if data]
        return list(dict.fromkeys(names))
