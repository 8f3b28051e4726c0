"""The contents of a report: a header with model and runs, and a section per experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from normlens.reports.base import Experiment, Result


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
    other under a heading; `runs` and `queries` say where the numbers come from.
    """

    experiment: Experiment
    results: Sequence[tuple[str, Result | None]]
    part: str = ""
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
