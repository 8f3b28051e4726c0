"""Run every experiment on the runs of a folder and build the report."""

from __future__ import annotations

import os
from pathlib import Path

from normlens.corpus.runs.manifest import NAME
from normlens.corpus.runs.results import Run
from normlens.errors import InputError
from normlens.papers.base import Evidence, Experiment
from normlens.papers.kobayashi2021 import (
    example_sentence,
    expansion_rate,
    section4_mixing_ratio,
    section5_frequency,
)
from normlens.papers.kobayashi2024 import (
    figure9_cancellation,
    figure10_norms,
    figure11_dimensions,
    figure12_scope_matrix,
    figures7_8_related_pairs,
    section6_2_special_dimensions,
    table1_figure5_component_similarity,
    tables2_3_amplified_pairs,
)
from normlens.papers.results_folder import MODEL, RUNS, load_settings
from normlens.papers.settings import Settings
from normlens.reports.content import Header, Report, Section
from normlens.reports.files import write
from normlens.reports.formatting import short_names
from normlens.reports.runs import measured, model_of

#: The experiments of each paper, in the report's order.
EXPERIMENTS = {
    "ff": (
        table1_figure5_component_similarity.EXPERIMENT,
        figure9_cancellation.EXPERIMENT,
        figure12_scope_matrix.EXPERIMENT,
        tables2_3_amplified_pairs.EXPERIMENT,
        figures7_8_related_pairs.EXPERIMENT,
        figure10_norms.EXPERIMENT,
        figure11_dimensions.EXPERIMENT,
        section6_2_special_dimensions.EXPERIMENT,
    ),
    "mixing": (
        section4_mixing_ratio.EXPERIMENT,
        section5_frequency.EXPERIMENT,
        expansion_rate.EXPERIMENT,
        example_sentence.EXPERIMENT,
    ),
}
PARTS = {
    "ff": "Feed-forward blocks (Kobayashi et al. 2024)",
    "mixing": "Mixing of tokens (Kobayashi et al. 2021)",
}


def build_report(folder: str | os.PathLike[str]) -> Path:
    """Write the tables, figures and report of a folder that `reproduce` has made.

    Returns the path of the page.
    """
    folder = Path(folder)
    write(describe(folder), folder)
    return folder / "report.html"


def describe(folder: Path) -> Report:
    """Describe the report of a folder: every experiment on every data set."""
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
        for experiment in EXPERIMENTS[kind]
    ]
    header = _header(settings, runs)
    return Report(f"{header.model.name} through NormLens", header, sections)


def _runs(folder: Path, settings: Settings) -> dict[str, dict[str, Run]]:
    """Open the runs of each data set, by kind (masked, plain)."""
    runs: dict[str, dict[str, Run]] = {}
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
                runs.setdefault(short, {})[kind] = run
    if not runs:
        raise InputError(f"{str(folder)!r} holds no runs; run the same normlens reproduce again")
    return runs


def _evidence(
    experiment: Experiment, settings: Settings, runs: dict[str, dict[str, Run]], folder: Path
) -> list[Evidence]:
    if experiment.needs == "model":
        first = next(iter(next(iter(runs.values())).values()))
        return [Evidence("", first, folder / MODEL, settings=settings)]
    return [
        Evidence(short, run, folder / MODEL, settings=settings)
        for short, by_kind in runs.items()
        if (run := _run_for(experiment, by_kind)) is not None
    ]


def _run_for(experiment: Experiment, by_kind: dict[str, Run]) -> Run | None:
    """Choose the run that an experiment reads; a causal model has only the one without masks."""
    if experiment.needs == "plain":
        return by_kind.get("plain")
    return by_kind.get("masked") or by_kind.get("plain")


def _folders(experiment: Experiment, runs: dict[str, dict[str, Run]]) -> list[str]:
    if experiment.needs == "model":
        return []
    chosen = [_run_for(experiment, by_kind) for by_kind in runs.values()]
    return [f"{RUNS}/{Path(str(run.folder)).name}" for run in chosen if run is not None]


def _header(settings: Settings, runs: dict[str, dict[str, Run]]) -> Header:
    every = [(short, run) for short, by_kind in runs.items() for run in by_kind.values()]
    manifest = every[0][1].manifest
    shown = {
        name.replace("_", " "): value
        for name, value in settings.as_json().items()
        if name not in ("kinds", "model", "data", "limits", "revision")
        and value not in (None, (), False)
    }
    return Header(
        model=model_of(every[0][1]),
        runs=[measured(run, short, f"{RUNS}/{Path(str(run.folder)).name}") for short, run in every],
        settings=shown,
        versions=dict(manifest.versions),
        notes=[("Layers", "counted from 1 in this report, as in the papers")],
    )
