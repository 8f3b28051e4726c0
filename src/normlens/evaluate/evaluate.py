"""``normlens.evaluate``: how true attributions are of a model, over a corpus."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from normlens.corpus.data.records import Data
from normlens.corpus.runs.errors import RunError
from normlens.corpus.runs.folder import Folder, open_folder
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.manifest import Difference, Manifest, refuse
from normlens.corpus.runs.merging import code_named
from normlens.corpus.runs.options import Execution, RunOptions
from normlens.corpus.runs.paths import model_name
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.refusals import check_free
from normlens.corpus.runs.results import Run
from normlens.corpus.runs.runs import resume, run
from normlens.errors import InputError
from normlens.evaluate.options import (
    RUN_FIELDS,
    EvaluateKeywords,
    EvaluateOptions,
    split_options,
)
from normlens.evaluate.plan import Reading, make_plan
from normlens.lens import Lens
from normlens.loading import load
from normlens.option_fields import names_of, shows_fields_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

MEASURE = "faithfulness"
_READING = ("column", "pair_column", "paragraphs", "limit")
_NOT_TAKEN = tuple(name for name in names_of(RunOptions) if name not in RUN_FIELDS)


@shows_fields_of(EvaluateOptions, RunOptions, Execution, without=_NOT_TAKEN)
def evaluate(
    model: str | os.PathLike[str] | Lens,
    data: str | os.PathLike[str] | Data,
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[EvaluateKeywords],
) -> Run:
    """Put attribution methods to the test on every text of `data`; the run's tables say it all.

    ``evaluate("minilm", "sts-dev.csv", "my-evaluation")`` explains why the pairs' cosines are what
    they are; a classifier's predictions and a causal model's next tokens alike. `out` is a new
    folder, or one that holds the same evaluation, which is then finished. The options are those of
    `EvaluateOptions` (methods, protocols, columns), of `normlens.run` and of `Execution`. What the
    model or the data does not allow is refused before the run begins.
    """
    own, of_run = _options(dict(options))
    folder = open_folder(out)
    progress = progress or Progress()
    if MANIFEST in folder.names():
        return _finish(folder, model, data, own, of_run, progress)
    check_free(folder)
    here = (of_run.get("engine", "local"), of_run.get("workers", 1)) == ("local", 1)
    lens = model if isinstance(model, Lens) else _load(model, of_run, here)
    progress.say(f"choosing methods and protocols for {lens.name}")
    reading = Reading(data, **{name: of_run[name] for name in _READING if name in of_run})
    plan = make_plan(lens, EvaluateOptions(**own), reading, progress)
    if plan.columns.good is not None and of_run.setdefault("truncate", False):
        raise InputError(
            "the next words follow the whole text, so that a text cannot be cut; leave --truncate "
            "out, or raise --max-length"
        )
    of_run |= {"column": plan.reading.column, "extra_columns": plan.columns.names}
    if isinstance(data, Data):
        del of_run["column"]
    return run(
        lens if here else model,
        data,
        out,
        progress=progress,
        measures=(MEASURE,),
        settings={MEASURE: plan.settings},
        **of_run,
    )


@shows_fields_of(EvaluateOptions, RunOptions, Execution, without=_NOT_TAKEN)
def resume_evaluation(
    out: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | Lens | None = None,
    data: str | os.PathLike[str] | Data | None = None,
    progress: Progress | None = None,
    **options: Unpack[EvaluateKeywords],
) -> Run:
    """Finish an evaluation that was stopped; its options may be given again, but no others."""
    own, of_run = _options(dict(options))
    return _finish(open_folder(out), model, data, own, of_run, progress or Progress())


def _finish(
    folder: Folder,
    model: str | os.PathLike[str] | Lens | None,
    data: str | os.PathLike[str] | Data | None,
    own: dict[str, Any],
    of_run: dict[str, Any],
    progress: Progress,
) -> Run:
    manifest = Manifest.load(folder)
    settings = manifest.options.settings.get(MEASURE)
    if manifest.options.measures != (MEASURE,) or settings is None:
        raise RunError(
            f"{str(folder)!r} holds another run, not an evaluation; choose another --out"
        )
    # None is whatever was chosen when the evaluation began.
    given = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in own.items()
        if value is not None
    }
    refuse(
        folder,
        [
            Difference(f"--{name.replace('_', '-')}", settings.get(name), value)
            for name, value in given.items()
            if value != settings.get(name)
        ],
    )
    if code_named(settings) and "methods" not in given:
        raise InputError(
            f"{str(folder)!r} takes code of your own, which is imported only if you name it: add "
            f"--methods {','.join(settings['methods'])}"
        )
    return resume(
        folder.url,
        model=model,
        data=data,
        progress=progress,
        measures=(MEASURE,),
        settings={MEASURE: settings},
        **of_run,
    )


def _options(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    allowed = (*names_of(EvaluateOptions), *RUN_FIELDS, *names_of(Execution))
    for name in given:
        if name not in allowed:
            raise InputError(f"evaluate takes no option {name!r}")
    return split_options(given)


def _load(model: str | os.PathLike[str], of_run: dict[str, Any], here: bool) -> Lens:
    """The model that runs here, or one on the CPU to be asked what it allows."""
    return load(
        model_name(model),
        device=of_run.get("device", "auto") if here else "cpu",
        dtype=of_run.get("dtype", "auto"),
        revision=of_run.get("revision"),
        trust_remote_code=of_run.get("trust_remote_code", False),
    )
