"""The parts of a section: its question, its evidence, and its tables, figures and sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from normlens.reports.published import Comparison

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure as Drawing

    from normlens.corpus.runs.results import Run


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
        return format(value, self.formats.get(column, "")).replace(
            "-", "−" if _number(value) else "-"
        )


def _number(value: Any) -> bool:
    return not isinstance(value, str)


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

    Names of tables and figures are file names without their endings. Sentences are computed from
    the numbers.
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
