"""``normlens ablate``, ``align``, ``evaluate``, ``reproduce``, ``report`` and ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlens.ablation.options import AblateOptions
from normlens.alignment.options import RUN_FIELDS, AlignOptions
from normlens.cli.common import (
    NoProgressOption,
    PageOption,
    RunDataOption,
    RunModelOption,
    TypedFields,
    check_run_needs,
    with_field_options,
)
from normlens.cli.corpus import Asked, report_run
from normlens.corpus.runs import progress
from normlens.corpus.runs.options import Execution, RunOptions
from normlens.errors import GRADIENTS, REPORT, TABLES, check_installed
from normlens.faithfulness.options import RUN_FIELDS as EVALUATE_FIELDS
from normlens.faithfulness.options import EvaluateOptions
from normlens.papers.settings import (
    EVALUATE,
    OF_PARTS,
    Settings,
    parse_kinds,
)
from normlens.reports.needs import NO_PAGE

if TYPE_CHECKING:
    import pandas as pd

    from normlens.corpus.runs.results import Run


# ``normlens ablate``: what each component of a model is worth, as its loss shows.


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
    options: Annotated[dict[str, Any], TypedFields(of=(AblateOptions,))],
    reading: Annotated[dict[str, Any], TypedFields(of=(RunOptions,), only=_READING, panel=_DATA)],
    execution: Annotated[Any, TypedFields(of=(Execution,), panel=_RUNS)],
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


# ``normlens align``: links between the words of a source and of its translation.


@with_field_options
def align_command(
    *,
    model: RunModelOption = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "-d",
            metavar="DATA",
            help="Pairs: lines source ||| target, or a table with --column and --pair-column.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="RUN",
            help="Folder (or fsspec URL) of the alignment; one that was stopped is finished.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Finish the alignment in this folder."),
    ] = None,
    options: Annotated[dict[str, Any], TypedFields(of=(AlignOptions,))],
    reading: Annotated[
        dict[str, Any],
        TypedFields(of=(RunOptions,), only=RUN_FIELDS, panel="Data, and how it is read"),
    ],
    execution: Annotated[Any, TypedFields(of=(Execution,), panel="How the work is done")],
    quiet: NoProgressOption = False,
) -> None:
    """Links between the words of a source and of its translation, in Pharaoh's format.

    With gold links, a table of error rates for every layer, scope and way. A pair that cannot be
    aligned is a row of the table `failures`; the exit status is 3 then.
    """
    check_run_needs(model, execution, TABLES)

    from normlens.alignment.align import align, resume_alignment

    given: dict[str, Any] = {**options, **reading, **execution}
    asked = Asked("align", "alignment", model, data, out, resume, quiet)
    done = asked.carry_out(align, resume_alignment, **given)
    _print(done)
    report_run(done, quiet)


def _print(run: Run) -> None:
    """Error rates where there are gold links, or else where the links are."""
    from normlens.alignment.error_rates import error_rates
    from normlens.alignment.link_files import FOLDER

    settings = run.manifest.options.settings["alignment"]
    if settings.get("gold") is None:
        print(f"{run.folder}/{FOLDER}")
        return
    print(_written(error_rates(run).table))


def _rate(value: float, low: float, high: float) -> str:
    if value != value:
        return "–"
    return f"{100 * value:.1f}" + (f" ({100 * low:.1f}–{100 * high:.1f})" if low == low else "")


def _written(table: pd.DataFrame) -> str:
    """The table as text: rates in per cent with their intervals, the best marked."""
    shown = table[["scope", "way"]].copy()
    shown["layer"] = ["all" if layer < 0 else layer for layer in table["layer"]]
    if (table["head"] >= 0).any():
        shown["head"] = ["all" if head < 0 else head for head in table["head"]]
    for name in ("aer", "precision", "recall"):
        shown[name] = [
            _rate(value, low, high)
            for value, low, high in zip(
                table[name], table[f"{name}_low"], table[f"{name}_high"], strict=True
            )
        ]
    shown[""] = ["best" if best else "" for best in table["best"]]
    return shown.to_string(index=False)


# ``normlens evaluate``: attribution methods, put to the test on a corpus.


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
        TypedFields(of=(RunOptions,), only=EVALUATE_FIELDS, panel="Data, and how it is read"),
    ],
    execution: Annotated[Any, TypedFields(of=(Execution,), panel="How the work is done")],
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


# ``normlens reproduce``, ``report`` and ``compare``: the papers' tables and figures.


_PAPER_DATA = "Data, and how it is read"
_PARTS = "Of the parts evaluate and ablate"
_PAPER_RUNS = "How the runs are done"
_PAPER_READING = ("limit", "max_length", "column", "pair_column", "paragraphs")


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
    settings: Annotated[dict[str, Any], TypedFields(of=(Settings,), without=tuple(OF_PARTS))],
    of_parts: Annotated[
        dict[str, Any], TypedFields(of=(Settings,), only=tuple(OF_PARTS), panel=_PARTS)
    ],
    reading: Annotated[
        dict[str, Any], TypedFields(of=(RunOptions,), only=_PAPER_READING, panel=_PAPER_DATA)
    ],
    execution: Annotated[Any, TypedFields(of=(Execution,), panel=_PAPER_RUNS)],
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
