"""``normlens reproduce``, ``report`` and ``compare``: the papers' tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normlens.cli.fields import TypedFields, with_field_options
from normlens.cli.options import NoProgressOption
from normlens.corpus.runs import progress
from normlens.corpus.runs.manifest import NAME as RUN
from normlens.corpus.runs.options import Execution, ExecutionKeywords, RunOptions
from normlens.errors import InputError
from normlens.papers.settings import KINDS, Settings, SettingsKeywords
from normlens.wording import listed

_DATA = "Data, and how it is read"
_RUNS = "How the runs are done"
_READING = ("limit", "max_length", "column", "pair_column", "paragraphs")


@with_field_options
def reproduce_command(
    *,
    experiments: Annotated[
        str,
        typer.Argument(
            metavar="ff|mixing|all",
            help="ff: Kobayashi et al. 2024. mixing: Kobayashi et al. 2021. all: both.",
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
    settings: Annotated[SettingsKeywords, TypedFields(of=(Settings,))],
    reading: Annotated[dict[str, Any], TypedFields(of=(RunOptions,), only=_READING, panel=_DATA)],
    execution: Annotated[ExecutionKeywords, TypedFields(of=(Execution,), panel=_RUNS)],
    quiet: NoProgressOption = False,
) -> None:
    """Every table and figure of the papers for a model, as one report.

    Runs that are there already are resumed; a folder may be used again for the other experiments.
    """
    from normlens.papers.reproduce import reproduce

    kinds = KINDS if experiments == "all" else experiments
    shown = progress.for_stream(quiet)
    try:
        report = reproduce(
            kinds, model, data, out, progress=shown, execution=execution, **reading, **settings
        )
    finally:
        shown.stop()
    print(report)


def report_command(
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="A folder that reproduce, evaluate or align has made."),
    ],
) -> None:
    """Build the report again from what is on disk; needs neither model nor data."""
    if (out / RUN).is_file():
        print(_run_report(out))
        return
    from normlens.papers.reporting import build_report

    print(build_report(out))


def _run_report(folder: Path) -> Path:
    """Build the report of a single run, by the tables that it has."""
    from normlens.alignment.report import build as alignment
    from normlens.corpus.runs.results import Run
    from normlens.evaluate.report import build as faithfulness

    tables = Run.open(folder).tables
    if alignment.TABLE in tables:
        return alignment.build_report(folder)
    if faithfulness.TABLE in tables:
        return faithfulness.build_report(folder)
    raise InputError(
        f"there is no report for the run in {str(folder)!r}, whose tables are {listed(tables)}; "
        "ask it with normlens query"
    )


def compare_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="OUT…", help="Folders that reproduce has made.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the comparison goes.")
    ] = Path("comparison"),
) -> None:
    """Several models side by side: their numbers, and their layers over each other."""
    from normlens.reports.compare import write_comparison

    write_comparison(folders, out)
    print(out / "comparison.html")
