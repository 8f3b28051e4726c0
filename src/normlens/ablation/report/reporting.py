"""Build the page of an ablation from its two runs."""

from __future__ import annotations

import os
from pathlib import Path

from normlens.ablation.folder import ABLATION, MAPS, finished_run, load_settings
from normlens.ablation.report import by_kind, prediction, redundancy, special, worth
from normlens.ablation.report.evidence import AblationEvidence
from normlens.corpus.runs.results import Run
from normlens.errors import InputError
from normlens.reports.content import Header, Report, Section
from normlens.reports.files import write
from normlens.reports.runs import measured, model_of

#: The questions, in the page's order, and the functions that answer them.
SECTIONS = (
    (worth.EXPERIMENT, worth.worth),
    (prediction.EXPERIMENT, prediction.prediction),
    (by_kind.EXPERIMENT, by_kind.by_kind),
    (special.EXPERIMENT, special.special),
    (redundancy.EXPERIMENT, redundancy.redundancy),
)
_HIDDEN = ("model", "data", "revision", "loss", "reference")


def build_report(folder: str | os.PathLike[str]) -> Path:
    """Write the tables, figures and page of a folder that `ablate` has made; gives the page."""
    folder = Path(folder)
    write(describe(folder), folder)
    return folder / "report.html"


def describe(folder: Path) -> Report:
    """Describe the page of a folder, from its tables alone."""
    options, told = load_settings(folder)
    runs = {name: finished_run(folder, name) for name in (ABLATION, MAPS)}
    evidence = AblationEvidence(options, told, runs[ABLATION], runs[MAPS])
    if evidence.losses.empty:
        raise InputError(
            f"no sequence of {str(folder / ABLATION)!r} has a loss; see: normlens query "
            f'{folder / ABLATION} "SELECT * FROM failures"'
        )
    sections = [
        Section(experiment, [("", work(evidence))], runs=list(runs))
        for experiment, work in SECTIONS
    ]
    header = _header(evidence, runs)
    return Report(f"What {header.model.name}’s components are worth", header, sections)


def _header(evidence: AblationEvidence, runs: dict[str, Run]) -> Header:
    options, told = evidence.options, evidence.told
    shown = {
        name.replace("_", " "): value
        for name, value in options.as_json().items()
        if name not in _HIDDEN and value not in (None, (), False)
    }
    ablated = len(evidence.plan) - 1
    return Header(
        model=model_of(runs[ABLATION]),
        runs=[measured(run, name.rpartition("/")[2], name) for name, run in runs.items()],
        settings=shown,
        versions=dict(runs[ABLATION].manifest.versions),
        notes=[
            ("Loss", told.loss),
            ("Ablations", f"{ablated} of the real model, each beside the intact one"),
            ("First pass", f"reads {told.reference}"),
            ("Layers", "counted from 1 in this report, as in the papers"),
            (
                "Published numbers",
                "none exist: nobody has set these maps beside the loss, so nothing here is "
                "compared with a paper",
            ),
        ],
    )
