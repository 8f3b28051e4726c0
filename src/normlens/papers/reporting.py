"""What is on disk, asked every question, as a report."""

from __future__ import annotations

import os
from pathlib import Path

from normlens.corpus.runs.manifest import NAME
from normlens.corpus.runs.results import Run
from normlens.errors import InputError
from normlens.papers.base import Evidence, Experiment
from normlens.papers.experiments import (
    expansion,
    frequency,
    mixing,
    norms,
    pairs,
    relations,
    sentence,
    similarity,
)
from normlens.papers.folder import MODEL, RUNS, load_settings, short_names
from normlens.papers.report.content import Header, Measured, Model, Report, Section
from normlens.papers.report.files import write
from normlens.papers.settings import Settings

#: Modules of experiments, in the order of the papers.
MODULES = {
    "ff": (similarity, pairs, relations, norms),
    "mixing": (mixing, frequency, expansion, sentence),
}
PARTS = {
    "ff": "Feed-forward blocks (Kobayashi et al. 2024)",
    "mixing": "Mixing of tokens (Kobayashi et al. 2021)",
}


def experiments(kind: str) -> list[Experiment]:
    """The experiments of a paper."""
    return [experiment for module in MODULES[kind] for experiment in module.EXPERIMENTS]


def build_report(folder: str | os.PathLike[str]) -> Path:
    """Write tables, figures and report of a folder that `reproduce` has made; gives its path."""
    folder = Path(folder)
    write(describe(folder), folder)
    return folder / "report.html"


def describe(folder: Path) -> Report:
    """The report of a folder: every experiment on every data set."""
    settings = load_settings(folder)
    runs = _runs(folder, settings)
    sections = [
        Section(
            experiment=experiment,
            results=[
                (evidence.data, experiment.work(evidence))
                for evidence in _evidence(experiment, settings, runs, folder)
            ],
            part=PARTS[kind],
            runs=_folders(experiment, runs),
        )
        for kind in settings.kinds
        for experiment in experiments(kind)
    ]
    header = _header(settings, runs)
    return Report(f"{header.model.name} through NormLens", header, sections)


def _runs(folder: Path, settings: Settings) -> dict[str, dict[str, Run]]:
    """The runs of each data set: masked, plain."""
    found: dict[str, dict[str, Run]] = {}
    for short in short_names(settings.data).values():
        for kind in ("masked", "plain"):
            path = folder / RUNS / f"{short}-{kind}"
            if (path / NAME).is_file():
                run = Run.open(path)
                status = run.status()
                if not status.complete:
                    raise InputError(
                        f"{str(path)!r} is not finished ({status.done} of {status.sequences} "
                        "sequences); run the same normlens reproduce again to go on"
                    )
                found.setdefault(short, {})[kind] = run
    if not found:
        raise InputError(f"{str(folder)!r} holds no runs; run the same normlens reproduce again")
    return found


def _evidence(
    experiment: Experiment, settings: Settings, runs: dict[str, dict[str, Run]], folder: Path
) -> list[Evidence]:
    if experiment.needs == "model":
        first = next(iter(next(iter(runs.values())).values()))
        return [Evidence(settings, "", first, folder / MODEL)]
    return [
        Evidence(settings, short, run, folder / MODEL)
        for short, own in runs.items()
        if (run := _of(experiment, own)) is not None
    ]


def _of(experiment: Experiment, own: dict[str, Run]) -> Run | None:
    """The run that an experiment looks at; a causal model has only the one without masks."""
    if experiment.needs == "plain":
        return own.get("plain")
    return own.get("masked") or own.get("plain")


def _folders(experiment: Experiment, runs: dict[str, dict[str, Run]]) -> list[str]:
    if experiment.needs == "model":
        return []
    chosen = [_of(experiment, own) for own in runs.values()]
    return [f"{RUNS}/{Path(str(run.folder)).name}" for run in chosen if run is not None]


def _header(settings: Settings, runs: dict[str, dict[str, Run]]) -> Header:
    every = [(short, run) for short, own in runs.items() for run in own.values()]
    manifest = every[0][1].manifest
    shown = {
        name.replace("_", " "): value
        for name, value in settings.as_json().items()
        if name not in ("kinds", "model", "data", "limits", "revision")
        and value not in (None, (), False)
    }
    return Header(
        model=Model.of({**manifest.model, "name": _shown(manifest.model["name"])}),
        runs=[_measured(short, run) for short, run in every],
        settings=shown,
        versions=dict(manifest.versions),
    )


def _measured(short: str, run: Run) -> Measured:
    manifest, status = run.manifest, run.status()
    worst = run.sql("SELECT max(completeness) AS worst FROM sequences")["worst"].iloc[0]
    return Measured(
        data=short,
        source=manifest.data["name"],
        sequences=status.done - status.failures,
        tokens=status.tokens,
        failures=status.failures,
        completeness=None if worst != worst else float(worst),
        mask=manifest.options.mask,
        date=manifest.created,
        folder=f"{RUNS}/{Path(str(run.folder)).name}",
    )


def _shown(name: str) -> str:
    """A model's name; of a folder, its own without the path."""
    return Path(name).name if Path(name).is_absolute() else name
