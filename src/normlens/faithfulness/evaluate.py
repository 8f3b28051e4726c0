"""``normlens.faithfulness``: how true attributions are of a model, over a corpus."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.corpus.data.records import Data
from normlens.corpus.runs.folder import LocalFolder, open_folder
from normlens.corpus.runs.folder_base import Folder
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.merging import code_named
from normlens.corpus.runs.one_measure import settings_again
from normlens.corpus.runs.options import Execution, RunOptions
from normlens.corpus.runs.paths import model_name
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.refusals import check_free
from normlens.corpus.runs.results import Run
from normlens.corpus.runs.runs import resume, run
from normlens.errors import InputError
from normlens.faithfulness.options import (
    RUN_FIELDS,
    EvaluateOptions,
    evaluate_options,
)
from normlens.faithfulness.plan import Reading, make_plan
from normlens.faithfulness.report.build import build_report
from normlens.lens import Lens
from normlens.loading.load import load
from normlens.options import check_keywords, names_of, shows_fields_of
from normlens.reports.needs import NO_PAGE, check_packages
from normlens.reports.run_report import FOLDER

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from normlens._keywords import EvaluateKeywords

MEASURE = "faithfulness"
_READING = ("column", "pair_column", "paragraphs", "limit")
_NOT_TAKEN = tuple(name for name in names_of(RunOptions) if name not in RUN_FIELDS)


@shows_fields_of(EvaluateOptions, RunOptions, Execution, without=_NOT_TAKEN)
def evaluate(
    model: str | os.PathLike[str] | Lens,
    data: str | os.PathLike[str] | Data,
    out: str | os.PathLike[str],
    *,
    page: bool = True,
    progress: Progress | None = None,
    **options: Unpack[EvaluateKeywords],
) -> Run:
    """Put attribution methods to the test on every text of `data`: tables, and a page on them.

    ``evaluate("minilm", "sts-dev.csv", "my-evaluation")`` explains why the pairs' cosines are what
    they are; a classifier's predictions and a causal model's next tokens alike. `out` is a new
    folder, or one that holds the same evaluation, which is then finished; the `page` is
    ``report/report.html`` in it. The options are those of `EvaluateOptions` (methods, protocols,
    columns), of `normlens.run` and of `Execution`. What the model or the data does not allow is
    refused before the run begins.
    """
    if page:
        check_packages(NO_PAGE, "evaluate")
    check_keywords(evaluate, options)
    own, of_run = evaluate_options(options)
    folder = open_folder(out)
    progress = progress or Progress()
    if MANIFEST in folder.names():
        return _finish(folder, model, data, own, of_run, page, progress)
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
    done = run(
        lens if here else model,
        data,
        out,
        progress=progress,
        measures=(MEASURE,),
        settings={MEASURE: plan.settings},
        **of_run,
    )
    return _with_page(done, progress) if page else done


@shows_fields_of(EvaluateOptions, RunOptions, Execution, without=_NOT_TAKEN)
def resume_evaluation(
    out: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | Lens | None = None,
    data: str | os.PathLike[str] | Data | None = None,
    page: bool = True,
    progress: Progress | None = None,
    **options: Unpack[EvaluateKeywords],
) -> Run:
    """Finish an evaluation that was stopped; its options may be given again, but no others."""
    if page:
        check_packages(NO_PAGE, "evaluate")
    check_keywords(resume_evaluation, options)
    own, of_run = evaluate_options(options)
    return _finish(open_folder(out), model, data, own, of_run, page, progress or Progress())


def _finish(
    folder: Folder,
    model: str | os.PathLike[str] | Lens | None,
    data: str | os.PathLike[str] | Data | None,
    own: dict[str, Any],
    of_run: dict[str, Any],
    page: bool,
    progress: Progress,
) -> Run:
    # None is whatever was chosen when the evaluation began.
    given = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in own.items()
        if value is not None
    }
    settings = settings_again(folder, MEASURE, "an evaluation", given)
    if code_named(settings) and "methods" not in given:
        raise InputError(
            f"{str(folder)!r} takes code of your own, which is imported only if you name it: add "
            f"--methods {','.join(settings['methods'])}"
        )
    done = resume(
        folder.url,
        model=model,
        data=data,
        progress=progress,
        measures=(MEASURE,),
        settings={MEASURE: settings},
        **of_run,
    )
    return _with_page(done, progress) if page else done


def page_of(done: Run) -> Path | None:
    """The page of an evaluation, if it has one."""
    page = Path(done.folder.url) / FOLDER / "report.html"
    return page if page.is_file() else None


def _with_page(done: Run, progress: Progress) -> Run:
    """The run, with its page where there is a disk to write it to."""
    if not isinstance(done.folder, LocalFolder):
        progress.say(f"note: {done.folder} is not on this machine, so that it has no page yet")
        return done
    progress.say("building the page")
    build_report(done.folder.url)
    return done


def _load(model: str | os.PathLike[str], of_run: dict[str, Any], here: bool) -> Lens:
    """The model that runs here, or one on the CPU to be asked what it allows."""
    return load(
        model_name(model),
        device=of_run.get("device", "auto") if here else "cpu",
        dtype=of_run.get("dtype", "auto"),
        revision=of_run.get("revision"),
        trust_remote_code=of_run.get("trust_remote_code", False),
    )
