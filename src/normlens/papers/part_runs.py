"""The runs of a reproduction's optional parts, and whether model and data allow them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.ablation.ablate import ablate
from normlens.ablation.data import open_ablation_data
from normlens.ablation.loss_names import CLASSES
from normlens.ablation.losses import choose_loss
from normlens.ablation.options import AblateOptions
from normlens.ablation.preparing import prepare
from normlens.corpus.runs.manifest import NAME
from normlens.corpus.runs.progress import Progress
from normlens.errors import OptionError, UnsupportedModelError
from normlens.faithfulness.evaluate import evaluate
from normlens.faithfulness.options import EvaluateOptions
from normlens.faithfulness.plan import Reading, make_plan
from normlens.lens import Lens
from normlens.papers.settings import ABLATE, EVALUATE, PARTS, Settings
from normlens.reports.formatting import short_names

if TYPE_CHECKING:
    from normlens._keywords import ExecutionKeywords


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
            reading = Reading(
                data,
                column=settings.column,
                pair_column=settings.pair_column,
                paragraphs=settings.paragraphs,
                limit=settings.limits.get(data),
            )
            make_plan(lens, options, reading, Progress())
        if ABLATE in settings.kinds:
            _check_label(lens, settings)
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


def _of_evaluation(
    settings: Settings, data: str, execution: ExecutionKeywords, loaded: bool
) -> dict[str, Any]:
    """The keywords of `evaluate`; what is left open is chosen there."""
    options = {
        "methods": settings.methods,
        "label_column": settings.label_column,
        "limit": settings.limits.get(data),
        "max_length": settings.max_length,
        "seed": settings.seed,
        "column": settings.column,
        "pair_column": settings.pair_column,
        "paragraphs": settings.paragraphs,
        "revision": None if loaded else settings.revision,
    }
    of_the_lens = ("device", "dtype", "trust_remote_code") if loaded else ()
    how = {name: value for name, value in execution.items() if name not in of_the_lens}
    return {name: value for name, value in options.items() if value is not None} | how


def _of_ablation(settings: Settings, data: str) -> dict[str, Any]:
    """The keywords of `ablate`, which are fields of `AblateOptions`."""
    return {
        "components": settings.components,
        "kinds": settings.ablation_kinds,
        "label": settings.label_column,
        "seed": settings.seed,
        "resamples": settings.resamples,
        "revision": settings.revision,
        "limit": settings.limits.get(data),
        "max_length": settings.max_length,
        "column": settings.column,
        "pair_column": settings.pair_column,
        "paragraphs": settings.paragraphs,
    }


def _check_label(lens: Lens, settings: Settings) -> None:
    if settings.label_column is not None and choose_loss(lens).name != CLASSES:
        raise OptionError(
            "label_column", f"{{option}} is of classifiers, and {lens.name} is none; leave it out"
        )
