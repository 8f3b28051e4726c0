"""``normlens ablate``: what each component of a model is worth, as its loss shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normlens.ablation.options import AblateKeywords, AblateOptions
from normlens.cli.fields import TypedFields, with_field_options
from normlens.cli.needs import check_run_needs
from normlens.cli.options import NoProgressOption, PageOption
from normlens.corpus.runs import progress
from normlens.corpus.runs.options import Execution, ExecutionKeywords, RunOptions
from normlens.extras import REPORT
from normlens.reports.needs import NO_PAGE

_DATA = "Data, and how it is read"
_RUNS = "How the runs are done"
_READING = ("limit", "max_length", "column", "pair_column", "paragraphs")


@with_field_options
def ablate_command(
    *,
    model: Annotated[
        str,
        typer.Option("--model", "-m", metavar="NAME", help="Hub name, folder or embedded model."),
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data", "-d", metavar="DATA", help="File, folder, pattern or named data set."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="Folder for results.")],
    options: Annotated[AblateKeywords, TypedFields(of=(AblateOptions,))],
    reading: Annotated[dict[str, Any], TypedFields(of=(RunOptions,), only=_READING, panel=_DATA)],
    execution: Annotated[ExecutionKeywords, TypedFields(of=(Execution,), panel=_RUNS)],
    page: PageOption = True,
    quiet: NoProgressOption = False,
) -> None:
    """What each component of a model is worth: taken away, how does the loss change?

    And does the change of the maps tell? Components of the real model are replaced one by one; the
    page sets the change of the loss beside the change of the maps. The same command again goes on
    with what was stopped.
    """
    results = [REPORT] if page else []
    check_run_needs(model, execution, *results, extra="reproduce", instead=NO_PAGE)

    from normlens.ablation.ablate import ablate

    shown = progress.for_stream(quiet)
    try:
        report = ablate(
            model, data, out, page=page, progress=shown, execution=execution, **options, **reading
        )
    finally:
        shown.stop()
    print(report)
