"""From a model and data to a page: a first pass, a run of ablations, a run of maps, the report."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.corpus.data.spans import SHARE
from normlens.corpus.runs.folder import fixed_path, model_name
from normlens.corpus.runs.manifest import NAME
from normlens.corpus.runs.options import parse_names
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.runs import resume, run
from normlens.lens import Lens
from normlens.loading.load import load
from normlens.options import check_keywords, shows_fields_of
from normlens.studies.ablation.data import (
    ABLATION,
    MAPS,
    STATISTICS,
    AblationData,
    Told,
    is_begun,
    load_settings,
    open_ablation_data,
    save_settings,
)
from normlens.studies.ablation.losses import Loss, choose_loss
from normlens.studies.ablation.measure import AblationMeasure
from normlens.studies.ablation.options import CLASSES, MASKED, AblateOptions, Ablation
from normlens.studies.ablation.report.reporting import build_report
from normlens.studies.ablation.statistics import Statistics, first_pass
from normlens.studies.reports.words import NO_PAGE, check_packages

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from normlens._keywords import AblateKeywords, ExecutionKeywords

# What an ablation will do, settled before anything long starts.


def prepare(
    lens: Lens, options: AblateOptions
) -> tuple[Loss, AblationData, AblationMeasure, list[Ablation]]:
    """Choose the loss, open the data, and refuse what the model or the data does not have.

    The measure may wait for statistics, if one of its ablations needs them.
    """
    loss = choose_loss(lens, options.loss, seed=options.seed)
    data = open_ablation_data(options, loss.name)
    column = data.extra[0] if data.extra else None
    measure = AblationMeasure(
        components=options.components,
        kinds=options.kinds,
        layers=options.layers,
        draws=options.draws,
        loss=loss.name,
        label=column if loss.name == CLASSES else None,
        score=None if loss.name == CLASSES else column,
        apart=data.apart,
        seed=options.seed,
    )
    return loss, data, measure, measure.planned(lens)


# From a model and data to a page: a first pass, a run of ablations, a run of maps, the report.


#: What is measured of the maps. Pairs of subwords and samples are not read.
_MAPS: dict[str, Any] = {
    "measures": "similarity,amplification,norms",
    "settings": {"amplification": {"keep": 1, "keep_other": 1, "subwords": False}},
}


@shows_fields_of(AblateOptions, without=("model", "data"))
def ablate(
    model: str | os.PathLike[str] | Lens,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    page: bool = True,
    progress: Progress | None = None,
    execution: ExecutionKeywords | None = None,
    **options: Unpack[AblateKeywords],
) -> Path:
    """What each component of a model is worth: ``ablate("smollm2", "wiki.valid.raw", "out")``.

    Replaces components of the real model one by one, and compares the change of its loss with the
    change of its maps. Gathers statistics in a first pass over other sequences, does or resumes the
    runs of ablations and of maps in ``out/runs`` and builds the report; gives its path (without
    `page`, the folder's: `normlens reproduce report` builds it there). `options` are fields of
    `AblateOptions`, `execution` is how the runs are done (device, engine, workers, …). The same
    call again goes on where an earlier one was stopped.
    """
    check_keywords(ablate, options)
    if page:
        check_packages(NO_PAGE)
    progress, how = progress or Progress(), execution or {}
    folder = Path(out)
    asked = _options(model, data, options)
    if is_begun(folder):
        asked.check_continues(load_settings(folder)[0])
    open_ablation_data(asked)  # too few sequences are refused before a model is loaded
    lens = _load(asked, how) if isinstance(model, (str, os.PathLike)) else model
    loss, opened, measure, planned = prepare(lens, asked)
    save_settings(folder, asked, Told(loss.name, opened.note, opened.apart))
    if any(ablation.needs_statistics for ablation in planned):
        path = folder / STATISTICS
        # Statistics belong to a run; without one they may be of weights that have changed since.
        if not ((folder / ABLATION / NAME).is_file() and path.is_file()):
            progress.say(f"the first pass reads {opened.note}")
            first_pass(lens, loss, opened, asked, path, how.get("batch_size", "auto"))
        digest = Statistics.load(path).digest
        measure = replace(measure, digest=digest, statistics=str(path.absolute()))
    here = (how.get("engine", "local"), how.get("workers", 1)) == ("local", 1)
    # The lens is loaded already, unless other processes load their own.
    of_the_lens = ("device", "dtype", "trust_remote_code") if here else ()
    common: Any = {name: value for name, value in how.items() if name not in of_the_lens}
    common |= {"model": lens if here else model, "progress": progress}

    def do(name: str, **options: Any) -> None:
        """Do a run, or finish one that was begun."""
        if (folder / name / NAME).is_file():
            resume(folder / name, **options, **common)
            return
        options |= {"max_length": asked.max_length, "seed": asked.seed}
        run(out=folder / name, revision=None if here else asked.revision, **options, **common)

    progress.say(f"ablations: {folder / ABLATION}")
    do(ABLATION, data=opened.measured, measures=[measure], extra_columns=opened.extra)
    progress.say(f"maps of the same sequences: {folder / MAPS}")
    do(MAPS, data=opened.of_maps, mask=SHARE if loss.name == MASKED else None, **_MAPS)
    if not page:
        return folder
    progress.say("building the report")
    return build_report(folder)


def _options(
    model: str | os.PathLike[str] | Lens, data: str | os.PathLike[str], given: AblateKeywords
) -> AblateOptions:
    named = dict[str, Any](given)
    for name in ("components", "kinds"):
        if named.get(name) is not None:
            named[name] = parse_names(named[name])
    if named.get("reference") is not None:
        named["reference"] = fixed_path(named["reference"])
    return AblateOptions(model=model_name(model), data=fixed_path(data), **named)


def _load(options: AblateOptions, how: ExecutionKeywords) -> Lens:
    return load(
        options.model,
        device=how.get("device", "auto"),
        dtype=how.get("dtype", "auto"),
        revision=options.revision,
        trust_remote_code=how.get("trust_remote_code", False),
    )
