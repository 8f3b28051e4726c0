"""Build the page of an ablation from its two runs."""

from __future__ import annotations

import os
from pathlib import Path

from normlens.corpus.runs.manifest import NAME
from normlens.corpus.runs.results import Run
from normlens.errors import InputError
from normlens.studies.ablation.data import ABLATION, MAPS, load_settings
from normlens.studies.ablation.report import sections
from normlens.studies.ablation.report.evidence import AblationEvidence
from normlens.studies.reports.contents import Header, Report, Section, measured, model_of
from normlens.studies.reports.files import write

#: The questions, in the page's order, and the functions that answer them.
SECTIONS = (
    (sections.WORTH, sections.worth),
    (sections.PREDICTION, sections.prediction),
    (sections.BY_KIND, sections.by_kind),
    (sections.SPECIAL, sections.special),
    (sections.REDUNDANCY, sections.redundancy),
)
_HIDDEN = ("model", "data", "revision", "loss", "reference")


def build_report(folder: str | os.PathLike[str]) -> Path:
    """Write the tables, figures and page of a folder that `ablate` has made; gives the page."""
    folder = Path(folder)
    write(describe(folder), folder)
    return folder / "report.html"


def _finished_run(folder: Path, name: str) -> Run:
    """Open one of the two runs; one that is not finished is refused."""
    path = folder / name
    again = "run the same normlens reproduce ablate again to go on"
    if not (path / NAME).is_file():
        raise InputError(f"{str(folder)!r} holds no {name}; {again}")
    run = Run.open(path)
    status = run.status()
    if not status.complete:
        raise InputError(
            f"{str(path)!r} is not finished ({status.done} of {status.sequences} sequences); "
            + again
        )
    return run


def describe(folder: Path) -> Report:
    """Describe the page of a folder, from its tables alone."""
    options, told = load_settings(folder)
    runs = {name: _finished_run(folder, name) for name in (ABLATION, MAPS)}
    evidence = AblationEvidence(options, told, runs[ABLATION], runs[MAPS])
    if evidence.losses.empty:
        raise InputError(
            f"no sequence of {str(folder / ABLATION)!r} has a loss; see: normlens query "
            f'{folder / ABLATION} "SELECT * FROM failures"'
        )
    shown = {
        name.replace("_", " "): value
        for name, value in options.as_json().items()
        if name not in _HIDDEN and value not in (None, (), False)
    }
    header = Header(
        model=model_of(runs[ABLATION]),
        runs=[measured(run, name.rpartition("/")[2], name) for name, run in runs.items()],
        settings=shown,
        versions=dict(runs[ABLATION].manifest.versions),
        notes=[
            ("Loss", told.loss),
            (
                "Ablations",
                f"{len(evidence.plan) - 1} of the real model, each beside the intact one",
            ),
            ("First pass", f"reads {told.reference}"),
            ("Layers", "counted from 1 in this report, as in the papers"),
            (
                "Published numbers",
                "none exist: nobody has set these maps beside the loss, so nothing here is "
                "compared with a paper",
            ),
        ],
    )
    answered = [
        Section(experiment, [("", work(evidence))], runs=list(runs))
        for experiment, work in SECTIONS
    ]
    return Report(f"What {header.model.name}’s components are worth", header, answered)
