"""The optional parts of a reproduction, evaluations and ablations, as parts of its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from normlens.ablation.folder import ABLATION, MAPS
from normlens.ablation.report import reporting as ablation_report
from normlens.corpus.runs.results import Run
from normlens.faithfulness.report import build as evaluation_report
from normlens.papers.results_folder import finished_run
from normlens.papers.settings import ABLATE, EVALUATE
from normlens.reports.base import Result
from normlens.reports.content import Measured, Report, Section
from normlens.reports.runs import measured

HEADINGS = {
    EVALUATE: "Are attributions true of the model?",
    ABLATE: "What each component is worth",
}
#: What each run of a part is for, by its folder inside that of the part and data set.
_PURPOSES = {
    EVALUATE: {"": "evaluation"},
    ABLATE: {ABLATION: "ablations", MAPS: "maps beside the ablations"},
}
_PUBLISHED = "Published numbers"
_NONE_EXIST = "No published numbers exist: nothing in this part is compared with a paper."
#: Facts that the report tells elsewhere.
_TOLD = (_PUBLISHED, "Layers")


@dataclass(frozen=True)
class Part:
    """A part of the report: its sections, and its runs with what the header says of them."""

    sections: Sequence[Section]
    runs: Sequence[tuple[Run, Measured]]
    style: str


def describe_part(kind: str, folder: Path, data: Sequence[str]) -> Part:
    """Describe a part on every data set (short names), from the runs in a reproduction's folder."""
    runs = []
    reports = {}
    for short in data:
        place = folder / kind / short
        for name, purpose in _PURPOSES[kind].items():
            run = finished_run(place / name)
            of_header = measured(run, short, _relative(kind, short, name))
            runs.append((run, replace(of_header, purpose=purpose)))
        reports[short] = _describe(kind, place)
    styles = dict.fromkeys(report.style for report in reports.values())
    return Part(_sections(kind, reports), runs, "".join(styles))


def _describe(kind: str, place: Path) -> Report:
    if kind == EVALUATE:
        return evaluation_report.describe(Run.open(place))
    return ablation_report.describe(place)


def _relative(kind: str, data: str, run: str) -> str:
    """The folder of a part's run inside the reproduction's."""
    return "/".join(filter(None, (kind, data, run)))


def _sections(kind: str, reports: Mapping[str, Report]) -> list[Section]:
    """The sections of all data sets' reports, one for each experiment, with names of the part."""
    by_experiment: dict[str, dict[str, Section]] = {}
    for data, report in reports.items():
        for section in report.sections:
            by_experiment.setdefault(section.experiment.name, {})[data] = section
    facts = _facts({data: report.header.notes for data, report in reports.items()})
    return [
        Section(
            experiment=replace(
                next(iter(by_data.values())).experiment, name=_of_part(kind, experiment)
            ),
            results=[
                (data, _renamed(kind, result))
                for data, section in by_data.items()
                for _, result in section.results
            ],
            part=HEADINGS[kind],
            of_part=facts,
            runs=[_relative(kind, data, run) for data in by_data for run in _PURPOSES[kind]],
            queries=list(
                dict.fromkeys(query for section in by_data.values() for query in section.queries)
            ),
        )
        for experiment, by_data in by_experiment.items()
    ]


def _of_part(kind: str, name: str) -> str:
    """A name that no experiment, table or figure of the papers or of another part has."""
    return f"{kind}-{name}"


def _renamed(kind: str, result: Result | None) -> Result | None:
    if result is None:
        return None
    return replace(
        result,
        tables={_of_part(kind, name): table for name, table in result.tables.items()},
        figures={_of_part(kind, name): figure for name, figure in result.figures.items()},
    )


def _facts(notes: Mapping[str, Sequence[tuple[str, str]]]) -> list[tuple[str, str]]:
    """The facts below a part's heading; those that differ between data sets name theirs."""
    facts = [(_PUBLISHED, _NONE_EXIST)]
    labels = dict.fromkeys(label for of_data in notes.values() for label, _ in of_data)
    for label in labels:
        if label in _TOLD:
            continue
        texts = {data: dict(of_data)[label] for data, of_data in notes.items()}
        if len(set(texts.values())) == 1:
            facts.append((label, next(iter(texts.values()))))
        else:
            facts += [(f"{label}, {data}", text) for data, text in texts.items()]
    return facts
