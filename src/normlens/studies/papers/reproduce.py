"""From a model and data to a report: plan the runs that the experiments need, and do them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from normlens.corpus.data.readers import find_data
from normlens.corpus.data.records import ReadOptions
from normlens.corpus.runs.folder import fixed_path, model_name
from normlens.corpus.runs.manifest import NAME
from normlens.corpus.runs.options import parse_names
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.results import Run
from normlens.corpus.runs.runs import resume, run
from normlens.errors import OptionError, OutputError, UnsupportedModelError
from normlens.lens import Lens
from normlens.loading.load import load
from normlens.measures.tensors import expansion_rates
from normlens.options import check_keywords, shows_fields_of
from normlens.results.store import writing
from normlens.results.words import write_csv
from normlens.studies.ablation.ablate import ablate, prepare
from normlens.studies.ablation.data import open_ablation_data
from normlens.studies.ablation.losses import choose_loss
from normlens.studies.ablation.options import CLASSES, AblateOptions
from normlens.studies.faithfulness.evaluate import Reading, evaluate, make_plan
from normlens.studies.faithfulness.options import EvaluateOptions
from normlens.studies.papers import frequency, mixing
from normlens.studies.papers.example_sentence import write_sentence
from normlens.studies.papers.published import MODEL, RUNS, SETTINGS, load_settings, save_settings
from normlens.studies.papers.reporting import build_report
from normlens.studies.papers.settings import (
    ABLATE,
    EVALUATE,
    KINDS,
    LISTS_OF_PARTS,
    PARTS,
    Settings,
    parse_kinds,
)
from normlens.studies.reports import words
from normlens.studies.reports.words import check_packages, short_names

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from normlens._keywords import ExecutionKeywords, SettingsKeywords

# Files that experiments need from the model itself, kept beside the runs.


def read_ranks_file(settings: Settings) -> bytes | None:
    """Read and check the file of frequency ranks, before hours are spent on runs."""
    if settings.ranks is None or "mixing" not in settings.kinds:
        return None
    frequency.read_ranks(settings.ranks)
    return Path(settings.ranks).read_bytes()


def write_from_model(lens: Lens, settings: Settings, ranks: bytes | None, folder: Path) -> None:
    """Write the expansion rates, the maps of one sentence pair, and a copy of the ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / frequency.FILE).unlink(missing_ok=True)
    if ranks is not None:
        (folder / frequency.FILE).write_bytes(ranks)
    write_expansion(lens, folder)
    write_sentence(lens, settings, folder)


def write_expansion(lens: Lens, folder: Path) -> Path:
    """Write the expansion rate of every layer, by definition and as published."""
    rates = expansion_rates(lens)
    frame = pd.DataFrame(
        {
            words.LAYER: range(1, len(rates) + 1),
            "rate": rates,
            "as_published": expansion_rates(lens, published=True),
        }
    )
    with writing(folder / mixing.FILE, overwrite=True) as temporary:
        write_csv(frame, temporary)
    return folder / mixing.FILE


# The runs of a reproduction's optional parts, and whether model and data allow them.


def check_data(settings: Settings) -> None:
    """Refuse options and data that no model could be ablated with."""
    if ABLATE in settings.kinds:
        for data in settings.data:
            open_ablation_data(AblateOptions(settings.model, data, **_of_ablation(settings, data)))


def check_model(lens: Lens, settings: Settings, folder: Path) -> None:
    """Refuse parts that the model, or the data with this model, does not allow."""
    if lens.two_stacks:
        raise UnsupportedModelError(
            f"the papers analyse models of one stack, and {lens.name} is an encoder–decoder; "
            "measure it with normlens run, whose tables say which stack a row is of"
        )
    for data, short in short_names(settings.data).items():
        if EVALUATE in settings.kinds and not (folder / EVALUATE / short / NAME).is_file():
            options = EvaluateOptions(methods=settings.methods, label_column=settings.label_column)
            make_plan(lens, options, Reading(data, **_reading(settings, data)), Progress())
        if ABLATE in settings.kinds:
            if settings.label_column is not None and choose_loss(lens).name != CLASSES:
                raise OptionError(
                    "label_column",
                    f"{{option}} is of classifiers, and {lens.name} is none; leave it out",
                )
            prepare(lens, AblateOptions(settings.model, data, **_of_ablation(settings, data)))


def do_parts(
    model: str | os.PathLike[str] | Lens,
    settings: Settings,
    folder: Path,
    execution: ExecutionKeywords,
    progress: Progress,
) -> None:
    """Do the runs of every part on every data set, or finish those that were begun.

    A `Lens` is a model that was loaded as `execution` says.
    """
    for kind in PARTS:
        if kind not in settings.kinds:
            continue
        for data, short in short_names(settings.data).items():
            place = folder / kind / short
            progress.say(f"{short}, {kind}: {place}")
            if kind == EVALUATE:
                how = _of_evaluation(settings, data, execution, isinstance(model, Lens))
                evaluate(model, data, place, page=False, progress=progress, **how)
            else:
                ablate(
                    model,
                    data,
                    place,
                    page=False,
                    progress=progress,
                    execution=execution,
                    **_of_ablation(settings, data),
                )


def _reading(settings: Settings, data: str) -> dict[str, Any]:
    """How the data is read: keywords that runs, evaluations and ablations have alike."""
    return {
        "column": settings.column,
        "pair_column": settings.pair_column,
        "paragraphs": settings.paragraphs,
        "limit": settings.limits.get(data),
    }


def _of_evaluation(
    settings: Settings, data: str, execution: ExecutionKeywords, loaded: bool
) -> dict[str, Any]:
    """The keywords of `evaluate`; what is left open is chosen there."""
    options = {
        **_reading(settings, data),
        "methods": settings.methods,
        "label_column": settings.label_column,
        "max_length": settings.max_length,
        "seed": settings.seed,
        "revision": None if loaded else settings.revision,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return given | _how(execution, loaded)


def _of_ablation(settings: Settings, data: str) -> dict[str, Any]:
    """The keywords of `ablate`, which are fields of `AblateOptions`."""
    return {
        **_reading(settings, data),
        "components": settings.components,
        "kinds": settings.ablation_kinds,
        "label": settings.label_column,
        "max_length": settings.max_length,
        "seed": settings.seed,
        "resamples": settings.resamples,
        "revision": settings.revision,
    }


def _how(execution: ExecutionKeywords, loaded: bool) -> dict[str, Any]:
    """How a run is done; what is of the model is left out where it is loaded."""
    of_the_lens = ("device", "dtype", "trust_remote_code") if loaded else ()
    return {name: value for name, value in execution.items() if name not in of_the_lens}


# From a model and data to a report: plan the runs that the experiments need, and do them.


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
    how = _how(execution, here)
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
        max_length=settings.max_length,
        seed=settings.seed,
        revision=None if here else settings.revision,
        progress=progress,
        **_reading(settings, planned.data),
        **how,
    )
