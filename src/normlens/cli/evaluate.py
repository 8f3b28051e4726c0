"""``normlens evaluate``: attribution methods, put to the test on a corpus."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from normlens.cli.fields import TypedFields, with_field_options
from normlens.cli.options import NoProgressOption
from normlens.cli.run import INTERRUPTED, report_run, stopped
from normlens.corpus.runs import progress
from normlens.corpus.runs.options import Execution, ExecutionKeywords, RunOptions
from normlens.errors import InputError
from normlens.evaluate.options import RUN_FIELDS, EvaluateOptions


@with_field_options
def evaluate_command(
    *,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="NAME", help="Hub name, folder or embedded model."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", "-d", metavar="DATA", help="File, folder, pattern or named data set."
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="RUN",
            help="Folder (or fsspec URL) of the evaluation; one that was stopped is finished.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Finish the evaluation in this folder."),
    ] = None,
    options: Annotated[dict[str, Any], TypedFields(of=(EvaluateOptions,))],
    reading: Annotated[
        dict[str, Any],
        TypedFields(of=(RunOptions,), only=RUN_FIELDS, panel="Data, and how it is read"),
    ],
    execution: Annotated[
        ExecutionKeywords, TypedFields(of=(Execution,), panel="How the work is done")
    ],
    quiet: NoProgressOption = False,
) -> None:
    """Which attributions are true of the model: every method side by side, on a corpus.

    A sequence that cannot be evaluated is a row of the table `failures`; the exit status is 3 then.
    """
    from normlens.evaluate.evaluate import evaluate, resume_evaluation

    if (out is None) == (resume is None):
        raise InputError("give --out for a new evaluation or --resume for one that was stopped")
    shown = progress.for_stream(quiet)
    given: dict[str, Any] = {**options, **reading, **execution}
    try:
        if resume is not None:
            done = resume_evaluation(resume, model=model, data=data, progress=shown, **given)
        elif model is None or data is None or out is None:
            raise InputError("a new evaluation needs --model, --data and --out")
        else:
            done = evaluate(model, data, out, progress=shown, **given)
    except KeyboardInterrupt:
        shown.stop()
        print(stopped(resume or out or "", "evaluate"), file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        shown.stop()
    report_run(done, quiet)
