"""Run every experiment on the runs of a folder and build the report."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
from normlens.papers.parts import Part, describe_part
from normlens.papers.results_folder import MODEL, RUNS, finished_run, load_settings
from normlens.papers.settings import EVALUATE, KINDS, PARTS, Settings
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
                (evidence.data, experiment.work(evidence))
                for evidence in _evidence(experiment, settings, runs, folder)
            ],
            part=HEADINGS[kind],
            runs=_folders(experiment, runs),
        )
        for kind in KINDS
        if kind in settings.kinds
        for experiment in EXPERIMENTS[kind]
    ]
    header = _header(settings, runs, parts)
    return Report(
        f"{header.model.name} through NormLens",
        header,
        [*sections, *(section for part in parts for section in part.sections)],
        "".join(part.style for part in parts),
    )


def _runs(folder: Path, settings: Settings) -> dict[str, dict[str, Run]]:
    """Open the runs of each data set, by kind (masked, plain)."""
    runs: dict[str, dict[str, Run]] = {}
    for short in short_names(settings.data).values():
        for kind in ("masked", "plain"):
            path = folder / RUNS / f"{short}-{kind}"
            if (path / NAME).is_file():
                runs.setdefault(short, {})[kind] = finished_run(path)
    if not runs and set(KINDS) & set(settings.kinds):
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


def _header(settings: Settings, runs: dict[str, dict[str, Run]], parts: Sequence[Part]) -> Header:
    every = [
        (run, measured(run, short, f"{RUNS}/{Path(str(run.folder)).name}"))
        for short, by_kind in runs.items()
        for run in by_kind.values()
    ]
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
