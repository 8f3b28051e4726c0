"""From a model and data to a report: plan the runs that the experiments need, and do them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.corpus.data.readers import find_data
from normlens.corpus.data.records import ReadOptions
from normlens.corpus.runs.manifest import NAME
from normlens.corpus.runs.options import parse_names
from normlens.corpus.runs.paths import fixed_path, model_name
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.results import Run
from normlens.corpus.runs.runs import resume, run
from normlens.errors import OutputError
from normlens.lens import Lens
from normlens.loading.load import load
from normlens.options import check_keywords, shows_fields_of
from normlens.papers.from_model import read_ranks_file, write_from_model
from normlens.papers.part_runs import check_data, check_model, do_parts
from normlens.papers.reporting import build_report
from normlens.papers.results_folder import (
    MODEL,
    RUNS,
    SETTINGS,
    load_settings,
    save_settings,
)
from normlens.papers.settings import (
    EVALUATE,
    KINDS,
    LISTS_OF_PARTS,
    Settings,
    parse_kinds,
)
from normlens.reports.formatting import short_names
from normlens.reports.needs import check_packages

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from normlens._keywords import ExecutionKeywords, SettingsKeywords

#: The papers mask in the experiments on similarity and mixing, and not in those on FF-amp.
MEASURES = {"masked": "similarity,mixing,norms", "plain": "amplification"}
ALL_MEASURES = "similarity,mixing,amplification,norms"


@dataclass(frozen=True)
class Planned:
    """One run that the experiments need."""

    data: str  # what was asked for
    short: str  # what reports call it
    masked: bool
    measures: str

    @property
    def name(self) -> str:
        return f"{self.short}-{'masked' if self.masked else 'plain'}"


def plan(settings: Settings, causal: bool) -> list[Planned]:
    """Plan the papers' runs over each data set: masked and unmasked, or one of a causal model."""
    planned: list[Planned] = []
    if not set(KINDS) & set(settings.kinds):
        return planned
    for data, short in short_names(settings.data).items():
        if causal:
            planned.append(Planned(data, short, False, ALL_MEASURES))
            continue
        planned.append(Planned(data, short, True, MEASURES["masked"]))
        if "ff" in settings.kinds:
            planned.append(Planned(data, short, False, MEASURES["plain"]))
    return planned


@shows_fields_of(Settings, without=("kinds", "model", "data", "limits"))
def reproduce(
    kinds: str | Sequence[str],
    model: str | os.PathLike[str] | Lens,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    limit: int | None = None,
    progress: Progress | None = None,
    execution: ExecutionKeywords | None = None,
    **options: Unpack[SettingsKeywords],
) -> Path:
    """Compute every table and figure of the papers: ``reproduce("ff", "minilm", "sample", "out")``.

    Does or resumes the runs that the experiments (`kinds`: "ff", "mixing" or both) need, under
    ``out/runs``, and builds the report; gives its path. `kinds` may also name "evaluate" and
    "ablate", which no paper has: their runs are under ``out/evaluate`` and ``out/ablate``, and they
    become parts of the report. `limit` takes the first sequences of the data only. `options` are
    fields of `Settings`, `execution` is how the runs are done (device, engine, workers, …). A
    folder may be used again for other experiments, for more data, or with other options of the
    report. What the model or the data does not allow is refused before the first run begins.
    """
    check_keywords(reproduce, options)
    parsed = parse_kinds(kinds)
    check_packages(extra="evaluate" if EVALUATE in parsed else "reproduce")
    progress = progress or Progress()
    folder = Path(out)
    listed = [data] if isinstance(data, (str, os.PathLike)) else list(data)
    named = model if isinstance(model, (str, os.PathLike)) else model.source
    data_names = tuple(fixed_path(spec) for spec in listed)
    settings = Settings(
        kinds=parsed,
        model=model_name(os.fspath(named)),
        data=data_names,
        limits={} if limit is None else dict.fromkeys(data_names, limit),
        **_with_names(options),
    )
    if (folder / SETTINGS).is_file():
        settings = settings.joined(load_settings(folder))
    elif folder.is_dir() and any(folder.iterdir()):
        raise OutputError(f"{str(folder)!r} holds other files; give --out a new folder")
    else:
        reading = ReadOptions(settings.column, settings.pair_column, settings.paragraphs)
        for name in data_names:
            find_data(name, reading)
    how = execution or {}
    ranks = read_ranks_file(settings)
    check_data(settings)
    lens = _lens(model, settings, how)
    check_model(lens, settings, folder)
    save_settings(folder, settings)
    for planned in plan(settings, lens.causal):
        _do(planned, folder / RUNS / planned.name, settings, lens, model, how, progress)
    if "mixing" in settings.kinds:
        write_from_model(lens, settings, ranks, folder / MODEL)
    do_parts(lens if _here(how) else model, settings, folder, how, progress)
    progress.say("building the report")
    return build_report(folder)


def _with_names(options: SettingsKeywords) -> dict[str, Any]:
    """The options with lists of names as tuples; they may be given as "first,second"."""
    return {
        name: parse_names(value) if name in LISTS_OF_PARTS and value is not None else value
        for name, value in dict[str, Any](options).items()
    }


def _here(execution: ExecutionKeywords) -> bool:
    """Whether this process computes everything, with the lens that it has loaded."""
    return (execution.get("engine", "local"), execution.get("workers", 1)) == ("local", 1)


def _lens(
    model: str | os.PathLike[str] | Lens, settings: Settings, execution: ExecutionKeywords
) -> Lens:
    if not isinstance(model, (str, os.PathLike)):
        return model
    return load(
        settings.model,
        device=execution.get("device", "auto"),
        dtype=execution.get("dtype", "auto"),
        revision=settings.revision,
        trust_remote_code=execution.get("trust_remote_code", False),
    )


def _do(
    planned: Planned,
    folder: Path,
    settings: Settings,
    lens: Lens,
    model: str | os.PathLike[str] | Lens,
    execution: ExecutionKeywords,
    progress: Progress,
) -> Run:
    """Do the run, or finish one that was begun."""
    here = _here(execution)
    of_the_lens = ("device", "dtype", "trust_remote_code")
    how = {k: v for k, v in execution.items() if not (here and k in of_the_lens)}
    progress.say(f"{planned.short}, {'masked' if planned.masked else 'unmasked'}: {folder}")
    amplified = "amplification" in planned.measures
    relations = {"relations": list(settings.relations)} if settings.relations else {}
    if (folder / NAME).is_file():
        named = {}
        if amplified and relations:
            recorded = Run.open(folder).manifest.options.settings.get("amplification", {})
            named = {"settings": {"amplification": {**recorded, **relations}}}
        return resume(folder, model=lens if here else model, progress=progress, **named, **how)
    # Tables 2 and 3 choose among all pairs that occur often enough.
    pairs = {"keep_pairs": None, **({"min_count": 1} if settings.min_count == 1 else {})}
    return run(
        lens if here else model,
        planned.data,
        folder,
        measures=planned.measures,
        settings={"amplification": {**pairs, **relations}} if amplified else None,
        mask=settings.mask if planned.masked else None,
        limit=settings.limits.get(planned.data),
        max_length=settings.max_length,
        seed=settings.seed,
        column=settings.column,
        pair_column=settings.pair_column,
        paragraphs=settings.paragraphs,
        revision=None if here else settings.revision,
        progress=progress,
        **how,
    )
