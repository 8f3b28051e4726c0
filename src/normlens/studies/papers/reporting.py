"""Run every experiment on the runs of a folder and build the report, with its optional parts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from normlens.corpus.runs.manifest import NAME
from normlens.corpus.runs.results import Run
from normlens.errors import InputError
from normlens.studies.ablation.data import ABLATION, MAPS
from normlens.studies.ablation.report import reporting as ablation_report
from normlens.studies.faithfulness.report import build as evaluation_report
from normlens.studies.papers import (
    example_sentence,
    feed_forward,
    frequency,
    mixing,
    related_pairs,
    similarity,
)
from normlens.studies.papers.published import (
    MODEL,
    RUNS,
    Evidence,
    Experiment,
    finished_run,
    load_settings,
)
from normlens.studies.papers.settings import ABLATE, EVALUATE, KINDS, PARTS, Settings
from normlens.studies.reports.contents import (
    Header,
    Measured,
    Report,
    Result,
    Section,
    measured,
    model_of,
)
from normlens.studies.reports.files import write
from normlens.studies.reports.words import short_names

# The optional parts of a reproduction, evaluations and ablations, as parts of its report.


PART_HEADINGS = {
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
        reports[short] = (
            evaluation_report.describe(Run.open(place))
            if kind == EVALUATE
            else ablation_report.describe(place)
        )
    styles = dict.fromkeys(report.style for report in reports.values())
    return Part(_sections(kind, reports), runs, "".join(styles))


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
            part=PART_HEADINGS[kind],
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


# Run every experiment on the runs of a folder and build the report.


#: The experiments of each paper, in the report's order.
EXPERIMENTS = {
    "ff": (
        similarity.TABLE_1_FIGURE_5,
        feed_forward.FIGURE_9,
        similarity.FIGURE_12,
        feed_forward.TABLES_2_3,
        related_pairs.FIGURES_7_8,
        feed_forward.FIGURE_10,
        feed_forward.FIGURE_11,
        similarity.SECTION_6_2,
    ),
    "mixing": (
        mixing.SECTION_4,
        frequency.SECTION_5,
        mixing.EXPANSION_RATE,
        example_sentence.EXAMPLE_SENTENCE,
    ),
}
HEADINGS = {
    "ff": "Feed-forward blocks (Kobayashi et al. 2024)",
    "mixing": "Mixing of tokens (Kobayashi et al. 2021)",
}
#: Settings that the header does not list, and those that only the papers' experiments have.
_HIDDEN = ("kinds", "model", "data", "limits", "revision")
_OF_PAPERS = ("mask", "min_count", "top", "layer", "relations", "ranks", "sentence")


def build_report(folder: str | os.PathLike[str]) -> Path:
    """Write the tables, figures and report of a folder that `reproduce` has made.

    Returns the path of the page.
    """
    folder = Path(folder)
    write(describe(folder), folder)
    return folder / "report.html"


def describe(folder: Path) -> Report:
    """Describe the report of a folder: every experiment on every data set, then further parts."""
    settings = load_settings(folder)
    runs = _runs(folder, settings)
    data = list(short_names(settings.data).values())
    parts = [describe_part(kind, folder, data) for kind in PARTS if kind in settings.kinds]
    sections = [
        Section(
            experiment=experiment,
            results=[
                (short, experiment.work(Evidence(short, run, folder / MODEL, settings=settings)))
                for short, _, run in chosen
            ],
            part=HEADINGS[kind],
            runs=[_folder(short, way) for short, way, _ in chosen if short],
        )
        for kind in KINDS
        if kind in settings.kinds
        for experiment in EXPERIMENTS[kind]
        for chosen in [_runs_for(experiment, runs)]
    ]
    header = _header(settings, runs, parts)
    return Report(
        f"{header.model.name} through NormLens",
        header,
        [*sections, *(section for part in parts for section in part.sections)],
        "".join(part.style for part in parts),
    )


#: Runs by data set and by whether they are "masked" or "plain".
Runs = dict[tuple[str, str], Run]


def _folder(short: str, way: str) -> str:
    """The folder of a run inside the reproduction's."""
    return f"{RUNS}/{short}-{way}"


def _runs(folder: Path, settings: Settings) -> Runs:
    """Open the runs of each data set."""
    runs = {
        (short, way): finished_run(folder / _folder(short, way))
        for short in short_names(settings.data).values()
        for way in ("masked", "plain")
        if (folder / _folder(short, way) / NAME).is_file()
    }
    if not runs and set(KINDS) & set(settings.kinds):
        raise InputError(f"{str(folder)!r} holds no runs; run the same normlens reproduce again")
    return runs


def _runs_for(experiment: Experiment, runs: Runs) -> list[tuple[str, str, Run]]:
    """Choose each data set's run that an experiment reads, or any run without a data set's name.

    A causal model has only runs without masks.
    """
    if experiment.needs == "model":
        return [("", way, run) for (_, way), run in runs.items()][:1]
    return [
        (short, way, run)
        for (short, way), run in runs.items()
        if way == experiment.needs or (way == "plain" and (short, "masked") not in runs)
    ]


def _header(settings: Settings, runs: Runs, parts: Sequence[Part]) -> Header:
    every = [(run, measured(run, short, _folder(short, way))) for (short, way), run in runs.items()]
    every += [run for part in parts for run in part.runs]
    hidden = _HIDDEN if set(KINDS) & set(settings.kinds) else (*_HIDDEN, *_OF_PAPERS)
    shown = {
        name.replace("_", " "): value
        for name, value in settings.as_json().items()
        if name not in hidden and value not in (None, (), False)
    }
    first = every[0][0]
    return Header(
        model=model_of(first),
        runs=[of_header for _, of_header in every],
        settings=shown,
        versions=dict(first.manifest.versions),
        notes=[("Layers", "counted from 1 in this report, as in the papers")],
        # Evaluations do not take the model apart; every other experiment has runs that do.
        decomposed=settings.kinds != (EVALUATE,),
    )
