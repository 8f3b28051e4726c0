"""From a model and data to a page: a first pass, a run of ablations, a run of maps, the report."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.corpus.data.spans import SHARE
from normlens.corpus.runs.folder import fixed_path, model_name
from normlens.corpus.runs.manifest import NAME
from normlens.corpus.runs.progress import Progress
from normlens.lens import Lens
from normlens.options import check_keywords, check_same, names_of, shows_fields_of
from normlens.studies.ablation import data as stored
from normlens.studies.ablation.interventions import digest_of, first_pass
from normlens.studies.ablation.losses import Loss, choose_loss
from normlens.studies.ablation.measure import AblationMeasure
from normlens.studies.ablation.options import CLASSES, MASKED, AblateOptions, Ablation
from normlens.studies.ablation.report import build_report
from normlens.studies.driver import GivenModel, Runs, is_begun, save_settings
from normlens.studies.reports.words import NO_PAGE, check_packages

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from normlens._keywords import AblateKeywords, ExecutionKeywords

# What an ablation will do, settled before anything long starts.


def prepare(
    lens: Lens, options: AblateOptions
) -> tuple[Loss, stored.AblationData, AblationMeasure, list[Ablation]]:
    """Choose the loss, open the data, and refuse what the model or the data does not have.

    The measure may wait for statistics, if one of its ablations needs them.
    """
    loss = choose_loss(lens, options.loss, seed=options.seed)
    data = stored.open_ablation_data(options, loss.name)
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
    model: GivenModel,
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
    folder = Path(out)
    named = dict[str, Any](options)
    if named.get("reference") is not None:
        named["reference"] = fixed_path(named["reference"])
    asked = AblateOptions(model=model_name(model), data=fixed_path(data), **named)
    if is_begun(folder):
        begun = stored.load_settings(folder)[0]
        check_same(begun, asked, [name for name in names_of(AblateOptions) if name != "resamples"])
    stored.open_ablation_data(asked)  # too few sequences are refused before a model is loaded
    runs = Runs(model, asked.revision, execution, progress)
    loss, opened, measure, planned = prepare(runs.lens, asked)
    told = stored.Told(loss.name, opened.note, opened.apart)
    save_settings(
        folder, {"report": stored.KIND, "options": dataclasses.asdict(asked), "told": vars(told)}
    )
    if any(ablation.needs_statistics for ablation in planned):
        path = folder / stored.STATISTICS
        # Statistics belong to a run; without one they may be of weights that have changed since.
        if not ((folder / stored.ABLATION / NAME).is_file() and path.is_file()):
            runs.progress.say(f"the first pass reads {opened.note}")
            batch_size = runs.execution.get("batch_size", "auto")
            first_pass(runs.lens, loss, opened, asked, path, batch_size)
        digest = digest_of(path)
        measure = dataclasses.replace(measure, digest=digest, statistics=str(path.absolute()))
    of_both = {"max_length": asked.max_length, "seed": asked.seed}
    again: dict[str, Any] = {"data": opened.measured, "measures": [measure]}
    again["extra_columns"] = opened.extra
    runs.do(folder / stored.ABLATION, "ablations", {**again, **of_both}, again)
    again = {"data": opened.of_maps, "mask": SHARE if loss.name == MASKED else None, **_MAPS}
    runs.do(folder / stored.MAPS, "maps of the same sequences", {**again, **of_both}, again)
    if not page:
        return folder
    runs.progress.say("building the report")
    return build_report(folder)
