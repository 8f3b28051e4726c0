"""``normlens evaluate``: attribution methods, put to the test on a corpus."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from normlens.cli.fields import TypedFields, with_field_options
from normlens.cli.needs import check_run_needs
from normlens.cli.options import NoProgressOption, PageOption, RunDataOption, RunModelOption
from normlens.cli.run import Asked, report_run
from normlens.corpus.runs.options import Execution, ExecutionKeywords, RunOptions
from normlens.extras import GRADIENTS, REPORT
from normlens.faithfulness.options import RUN_FIELDS, EvaluateOptions
from normlens.reports.needs import NO_PAGE


@with_field_options
def evaluate_command(
    *,
    model: RunModelOption = None,
    data: RunDataOption = None,
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
    page: PageOption = True,
    quiet: NoProgressOption = False,
) -> None:
    """Which attributions are true of the model: every method side by side, on a corpus.

    A sequence that cannot be evaluated is a row of the table `failures`; the exit status is 3 then.
    """
    results = [REPORT] if page else []
    wanted = "integrated-gradients" in (options.get("methods") or ())
    check_run_needs(
        model,
        execution,
        *results,
        *([GRADIENTS] if wanted else []),
        extra="evaluate",
        instead="" if wanted else NO_PAGE,
    )

    from normlens.faithfulness.evaluate import evaluate, page_of, resume_evaluation

    given: dict[str, Any] = {**options, **reading, **execution, "page": page}
    asked = Asked("evaluate", "evaluation", model, data, out, resume, quiet)
    done = asked.carry_out(evaluate, resume_evaluation, **given)
    if page and (built := page_of(done)) is not None:
        print(built)
    report_run(done, quiet)
