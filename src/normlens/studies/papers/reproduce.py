"""From a model and data to a report: plan the runs that the experiments need, and do them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from normlens.corpus.data.readers import find_data
from normlens.corpus.data.records import ReadOptions
from normlens.corpus.runs.folder import fixed_path, model_name
from normlens.corpus.runs.manifest import NAME
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.results import Run
from normlens.errors import UnsupportedModelError
from normlens.lens import Lens
from normlens.measures.tensors import expansion_rates
from normlens.options import check_keywords, shows_fields_of, split_keywords
from normlens.results.store import writing
from normlens.results.words import write_csv
from normlens.studies.ablation.ablate import ablate, prepare
from normlens.studies.ablation.options import AblateOptions
from normlens.studies.driver import GivenModel, Runs, is_begun, save_settings
from normlens.studies.faithfulness.evaluate import evaluate, make_plan
from normlens.studies.faithfulness.options import EvaluateOptions
from normlens.studies.papers import mixing
from normlens.studies.papers.reporting import MODEL, RUNS, build_report, load_settings
from normlens.studies.papers.settings import ABLATE, EVALUATE, KINDS, PARTS, Settings, parse_kinds
from normlens.studies.reports import words
from normlens.studies.reports.words import check_packages, short_names

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from normlens._keywords import ExecutionKeywords, SettingsKeywords

# Files that experiments need from the model itself, kept beside the runs.


def write_from_model(lens: Lens, settings: Settings, ranks: bytes | None, folder: Path) -> None:
    """Write the expansion rates, the maps of one sentence pair, and a copy of the ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / mixing.RANKS).unlink(missing_ok=True)
    if ranks is not None:
        (folder / mixing.RANKS).write_bytes(ranks)
    rates, published = expansion_rates(lens), expansion_rates(lens, published=True)
    layers = range(1, len(rates) + 1)
    frame = pd.DataFrame({words.LAYER: layers, "rate": rates, "as_published": published})
    with writing(folder / mixing.EXPANSION, overwrite=True) as temporary:
        write_csv(frame, temporary)
    mixing.write_sentence(lens, settings.sentence, folder)


# The runs of a reproduction's optional parts, and whether model and data allow them.


#: The settings that each optional part has beside those of all, by its own names of them.
_OF_PARTS = {
    EVALUATE: {"methods": "methods", "label_column": "label_column"},
    ABLATE: {
        "components": "components",
        "kinds": "ablation_kinds",
        "label": "label_column",
        "resamples": "resamples",
    },
}


def _parts(settings: Settings, folder: Path) -> Iterator[tuple[str, str, Path, dict[str, Any]]]:
    """Yield every part on every data set, with its folder and its options."""
    for kind in (kind for kind in PARTS if kind in settings.kinds):
        for data, short in short_names(settings.data).items():
            common = {name: name for name in ("max_length", "seed", "revision")}
            named = (common | _OF_PARTS[kind]).items()
            options = {own: getattr(settings, name) for own, name in named}
            options |= _reading(settings, data)
            given = {name: value for name, value in options.items() if value is not None}
            yield kind, data, folder / kind / short, given


def check_model(lens: Lens, settings: Settings, folder: Path) -> None:
    """Refuse parts that the model, or the data with this model, does not allow."""
    if lens.two_stacks:
        raise UnsupportedModelError(f"{lens.name} is an encoder–decoder; use normlens run")
    for kind, data, place, options in _parts(settings, folder):
        if kind == ABLATE:
            prepare(lens, AblateOptions(settings.model, data, **options))
        elif not (place / NAME).is_file():
            own, _ = split_keywords(options, EvaluateOptions)
            reading = _reading(settings, data)
            make_plan(lens, EvaluateOptions(**own), data, reading, Progress())


def do_parts(runs: Runs, settings: Settings, folder: Path) -> None:
    """Do the runs of every part on every data set, or finish those that were begun."""
    for kind, data, place, options in _parts(settings, folder):
        runs.progress.say(f"{place.name}, {kind}: {place}")
        common: dict[str, Any] = {"page": False, "progress": runs.progress}
        if kind == ABLATE:
            ablate(runs.model, data, place, execution=runs.execution, **common, **options)
        else:
            if isinstance(runs.model, Lens):
                options.pop("revision", None)
            evaluate(runs.model, data, place, **common, **options, **runs.how)


def _reading(settings: Settings, data: str) -> dict[str, Any]:
    """How the data is read: keywords that runs, evaluations and ablations have alike."""
    return {
        "column": settings.column,
        "pair_column": settings.pair_column,
        "paragraphs": settings.paragraphs,
        "limit": settings.limits.get(data),
    }


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
    if set(KINDS) & set(settings.kinds):
        for data, short in short_names(settings.data).items():
            measures = ALL_MEASURES if causal else MEASURES["masked"]
            planned.append(Planned(data, short, not causal, measures))
            if "ff" in settings.kinds and not causal:
                planned.append(Planned(data, short, False, MEASURES["plain"]))
    return planned


@shows_fields_of(Settings, without=("kinds", "model", "data", "limits"))
def reproduce(
    kinds: str | Sequence[str],
    model: GivenModel,
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
    folder = Path(out)
    listed = [data] if isinstance(data, (str, os.PathLike)) else list(data)
    named = model if isinstance(model, (str, os.PathLike)) else model.source
    data_names = tuple(fixed_path(spec) for spec in listed)
    settings = Settings(
        kinds=parsed,
        model=model_name(os.fspath(named)),
        data=data_names,
        limits={} if limit is None else dict.fromkeys(data_names, limit),
        **options,
    )
    if is_begun(folder):
        settings = settings.joined(load_settings(folder))
    else:
        reading = ReadOptions(settings.column, settings.pair_column, settings.paragraphs)
        for name in data_names:
            find_data(name, reading)
    ranks = None
    if settings.ranks is not None and "mixing" in settings.kinds:
        mixing.read_ranks(settings.ranks)  # refused before hours are spent on runs
        ranks = Path(settings.ranks).read_bytes()
    runs = Runs(model, settings.revision, execution, progress)
    check_model(runs.lens, settings, folder)
    save_settings(folder, asdict(settings))
    for planned in plan(settings, runs.lens.causal):
        _do(planned, folder / RUNS / planned.name, settings, runs)
    if "mixing" in settings.kinds:
        write_from_model(runs.lens, settings, ranks, folder / MODEL)
    do_parts(runs, settings, folder)
    runs.progress.say("building the report")
    return build_report(folder)


def _do(planned: Planned, folder: Path, settings: Settings, runs: Runs) -> None:
    """Do the run, or finish one that was begun."""
    amplified = "amplification" in planned.measures
    relations = {"relations": list(settings.relations)} if settings.relations else {}
    again = {}
    if amplified and relations and (folder / NAME).is_file():
        recorded = Run.open(folder).manifest.options.settings.get("amplification", {})
        again = {"settings": {"amplification": {**recorded, **relations}}}
    # Tables 2 and 3 choose among all pairs that occur often enough.
    pairs = {"keep_pairs": None, **({"min_count": 1} if settings.min_count == 1 else {})}
    new = {
        "data": planned.data,
        "measures": planned.measures,
        "settings": {"amplification": {**pairs, **relations}} if amplified else None,
        "mask": settings.mask if planned.masked else None,
        "max_length": settings.max_length,
        "seed": settings.seed,
        **_reading(settings, planned.data),
    }
    said = f"{planned.short}, {'masked' if planned.masked else 'unmasked'}"
    runs.do(folder, said, new, again)
