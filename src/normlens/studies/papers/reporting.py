"""The report of a reproduction: every experiment on the runs of its folder, then its parts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from normlens.corpus.runs.manifest import NAME
from normlens.corpus.runs.results import Run
from normlens.errors import InputError
from normlens.options import from_json
from normlens.studies.ablation import report as ablation
from normlens.studies.ablation.data import ABLATION, MAPS
from normlens.studies.faithfulness import report as evaluation
from normlens.studies.papers import feed_forward, mixing, related_pairs
from normlens.studies.papers.published import Evidence
from normlens.studies.papers.settings import ABLATE, EVALUATE, KINDS, PARTS, Settings
from normlens.studies.reports import contents
from normlens.studies.reports.files import damaged, finished_run, read_settings, write
from normlens.studies.reports.words import short_names

#: The folders of the papers' runs and of what comes from the model alone; an optional part has one
#: of its name, with a folder per data set.
RUNS, MODEL = "runs", "model"
#: The experiments of each paper, in the report's order.
EXPERIMENTS = {
    "ff": (
        feed_forward.table_1_figure_5,
        feed_forward.figure_9,
        feed_forward.figure_12,
        feed_forward.tables_2_3,
        related_pairs.figures_7_8,
        feed_forward.figure_10,
        feed_forward.figure_11,
        feed_forward.section_6_2,
    ),
    "mixing": (mixing.section_4, mixing.section_5, mixing.expansion_rate, mixing.example_sentence),
}
HEADINGS = {
    "ff": "Feed-forward blocks (Kobayashi et al. 2024)",
    "mixing": "Mixing of tokens (Kobayashi et al. 2021)",
    EVALUATE: "Are attributions true of the model?",
    ABLATE: "What each component is worth",
}
#: Settings that the header does not list, and those that only the papers' experiments have.
_HIDDEN = ("kinds", "model", "data", "limits", "revision")
_OF_PAPERS = ("mask", "min_count", "top", "layer", "relations", "ranks", "sentence")
#: What each run of a part is for, by its folder inside that of the part and data set.
_PURPOSES = {
    EVALUATE: {"": "evaluation"},
    ABLATE: {ABLATION: "ablations", MAPS: "maps beside the ablations"},
}
_PUBLISHED = "Published numbers"
_NONE_EXIST = "No published numbers exist: nothing in this part is compared with a paper."
#: Facts that the report tells elsewhere.
_TOLD = (_PUBLISHED, "Layers")


def load_settings(folder: str | os.PathLike[str]) -> Settings:
    """Read the settings of a folder that `reproduce` has made."""
    nothing = f"results; make some with: normlens reproduce {'|'.join(KINDS)} --model … --data …"
    try:
        return from_json(Settings, read_settings(folder, "", nothing))
    except TypeError as error:
        raise damaged(folder, error) from error


def build_report(folder: str | os.PathLike[str]) -> Path:
    """Write the tables, figures and page of a folder that `reproduce` has made; gives the page."""
    return write(describe(Path(folder)), folder)


def describe(folder: Path) -> contents.Report:
    """Describe the report of a folder: every experiment on every data set, then further parts."""
    settings = load_settings(folder)
    runs = _runs(folder, settings)
    every = [(run, contents.measured(run, short, _folder(short, way))) for short, way, run in runs]
    sections = []
    for kind in (kind for kind in KINDS if kind in settings.kinds):
        for experiment in EXPERIMENTS[kind]:
            chosen = _runs_for(experiment, runs)
            results = [
                (short, experiment(Evidence(short, run, folder / MODEL, settings=settings)))
                for short, _, run in chosen
            ]
            folders = [_folder(short, way) for short, way, _ in chosen if short]
            sections.append(contents.Section(experiment, results, HEADINGS[kind], runs=folders))
    for kind in (kind for kind in PARTS if kind in settings.kinds):
        of_part, more = _part(kind, folder, list(short_names(settings.data).values()))
        sections += of_part
        every += more
    hidden = _HIDDEN if set(KINDS) & set(settings.kinds) else (*_HIDDEN, *_OF_PAPERS)
    header = contents.Header.of(
        every[0][0],
        [of_header for _, of_header in every],
        {name: value for name, value in vars(settings).items() if name not in hidden},
        [("Layers", "counted from 1 in this report, as in the papers")],
        # Evaluations do not take the model apart; every other experiment has runs that do.
        decomposed=settings.kinds != (EVALUATE,),
    )
    return contents.Report(f"{header.model.name} through NormLens", header, sections)


def _folder(short: str, way: str) -> str:
    """The folder of a run inside the reproduction's."""
    return f"{RUNS}/{short}-{way}"


def _runs(folder: Path, settings: Settings) -> list[tuple[str, str, Run]]:
    """Open the runs of each data set, by its name and by whether they are "masked" or "plain"."""
    runs = [
        (short, way, finished_run(folder / _folder(short, way), "reproduce"))
        for short in short_names(settings.data).values()
        for way in ("masked", "plain")
        if (folder / _folder(short, way) / NAME).is_file()
    ]
    if not runs and set(KINDS) & set(settings.kinds):
        raise InputError(f"{str(folder)!r} holds no runs; run the same normlens reproduce again")
    return runs


def _runs_for(
    experiment: contents.Experiment, runs: Sequence[tuple[str, str, Run]]
) -> list[tuple[str, str, Run]]:
    """Choose each data set's run that an experiment reads, or any run without a data set's name.

    A causal model has only runs without masks.
    """
    if experiment.needs == "model":
        return [("", way, run) for _, way, run in runs[:1]]
    masked = {short for short, way, _ in runs if way == "masked"}
    return [one for one in runs if one[1] == experiment.needs or one[0] not in masked]


# The optional parts of a reproduction: the pages of evaluations and ablations.


def _part(
    kind: str, folder: Path, data: Sequence[str]
) -> tuple[list[contents.Section], list[tuple[Run, contents.Measured]]]:
    """The sections of a part on every data set, one for each experiment, and its runs."""
    runs, facts = [], [(_PUBLISHED, _NONE_EXIST)]
    joined: dict[str, contents.Section] = {}
    for short in data:
        place, folders = folder / kind / short, []
        for name, purpose in _PURPOSES[kind].items():
            run = finished_run(place / name, "reproduce")
            folders.append(str(PurePosixPath(kind, short, name)))
            of_header = contents.measured(run, short, folders[-1])
            runs.append((run, replace(of_header, purpose=purpose)))
        described = (
            evaluation.describe(Run.open(place)) if kind == EVALUATE else ablation.describe(place)
        )
        of_data = f", {short}" if len(data) > 1 else ""
        facts += [
            (label + of_data, text) for label, text in described.header.notes if label not in _TOLD
        ]
        for section in described.sections:
            name = f"{kind}-{section.experiment.name}"
            empty = contents.Section(replace(section.experiment, name=name), ())
            before = joined.get(name, empty)
            joined[name] = replace(
                before,
                results=[
                    *before.results,
                    *((short, _named(kind, it)) for _, it in section.results),
                ],
                part=HEADINGS[kind],
                of_part=facts,
                runs=[*before.runs, *folders],
                queries=list(dict.fromkeys([*before.queries, *section.queries])),
            )
    return list(joined.values()), runs


def _named(kind: str, result: contents.Result | None) -> contents.Result | None:
    """A result whose tables and figures have names of the part."""

    def named(items: Mapping[str, Any]) -> dict[str, Any]:
        return {f"{kind}-{name}": item for name, item in items.items()}

    return result and replace(result, tables=named(result.tables), figures=named(result.figures))
