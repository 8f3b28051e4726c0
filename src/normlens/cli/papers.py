"""``normlens reproduce``, ``report`` and ``compare``: the papers' tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normlens.cli.fields import TypedFields, with_field_options
from normlens.cli.needs import check_run_needs
from normlens.cli.options import NoProgressOption
from normlens.corpus.runs import progress
from normlens.corpus.runs.options import Execution, ExecutionKeywords, RunOptions
from normlens.extras import REPORT, check_installed
from normlens.papers.settings import (
    EVALUATE,
    OF_PARTS,
    Settings,
    SettingsKeywords,
    parse_kinds,
)

_DATA = "Data, and how it is read"
_PARTS = "Of the parts evaluate and ablate"
_RUNS = "How the runs are done"
_READING = ("limit", "max_length", "column", "pair_column", "paragraphs")


@with_field_options
def reproduce_command(
    *,
    experiments: Annotated[
        str,
        typer.Argument(
            metavar="ff|mixing|all[,evaluate][,ablate]",
            help="ff: Kobayashi et al. 2024. mixing: Kobayashi et al. 2021. all: both. evaluate: "
            "are attributions true of the model? ablate: what is each component worth? Several "
            "with commas.",
        ),
    ],
    model: Annotated[
        str,
        typer.Option("--model", "-m", metavar="NAME", help="Hub name, folder or embedded model."),
    ],
    data: Annotated[
        list[str],
        typer.Option(
            "--data",
            "-d",
            metavar="DATA",
            help="File, folder, pattern or named data set; may be repeated.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="Folder for results.")],
    settings: Annotated[SettingsKeywords, TypedFields(of=(Settings,), without=tuple(OF_PARTS))],
    of_parts: Annotated[
        dict[str, Any], TypedFields(of=(Settings,), only=tuple(OF_PARTS), panel=_PARTS)
    ],
    reading: Annotated[dict[str, Any], TypedFields(of=(RunOptions,), only=_READING, panel=_DATA)],
    execution: Annotated[ExecutionKeywords, TypedFields(of=(Execution,), panel=_RUNS)],
    quiet: NoProgressOption = False,
) -> None:
    """Every table and figure of the papers for a model, as one report.

    Optional parts ask what no paper has published: see normlens evaluate and normlens ablate. Runs
    that are there already are resumed; a folder may be used again for the other experiments.
    """
    extra = EVALUATE if EVALUATE in parse_kinds(experiments) else "reproduce"
    check_run_needs(model, execution, REPORT, extra=extra)

    from normlens.papers.reproduce import reproduce

    shown = progress.for_stream(quiet)
    try:
        report = reproduce(
            experiments,
            model,
            data,
            out,
            progress=shown,
            execution=execution,
            **reading,
            **settings,
            **of_parts,
        )
    finally:
        shown.stop()
    print(report)


def report_command(
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="A folder that reproduce, evaluate, ablate or align has made."
        ),
    ],
) -> None:
    """Build the report again from what is on disk; needs neither model nor data."""
    check_installed(REPORT, extra="reproduce")

    from normlens.reports.registry import builder

    print(builder(out)(out))


def compare_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="OUT…", help="Folders that reproduce has made.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the comparison goes.")
    ] = Path("comparison"),
) -> None:
    """Several models side by side: their numbers, and their layers over each other."""
    check_installed(REPORT, extra="reproduce")

    from normlens.reports.compare import write_comparison

    write_comparison(folders, out)
    print(out / "comparison.html")
