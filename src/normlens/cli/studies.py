"""``normlens ablate``, ``align``, ``evaluate``, ``reproduce``, ``report`` and ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlens.ablation.options import AblateOptions
from normlens.alignment.options import RUN_FIELDS, AlignOptions
from normlens.cli import parameters
from normlens.cli.common import check_run_needs
from normlens.cli.corpus import Asked, report_run, shown_progress
from normlens.cli.parameters import TypedFields, option, with_field_options
from normlens.corpus.runs.options import Execution, RunOptions
from normlens.errors import GRADIENTS, REPORT, TABLES, check_installed
from normlens.faithfulness.options import RUN_FIELDS as EVALUATE_FIELDS
from normlens.faithfulness.options import EvaluateOptions
from normlens.papers.settings import EVALUATE, OF_PARTS, Settings, parse_kinds
from normlens.reports.needs import NO_PAGE

if TYPE_CHECKING:
    import pandas as pd

    from normlens.corpus.runs.results import Run


# Parameters that several studies take.


_READING = ("limit", "max_length", "column", "pair_column", "paragraphs")
_DATA = "Data, and how it is read"
_Reading = Annotated[dict[str, Any], TypedFields(of=(RunOptions,), only=_READING, panel=_DATA)]
_RunsDone = Annotated[Any, TypedFields(of=(Execution,), panel="How the runs are done")]
_WorkDone = Annotated[Any, TypedFields(of=(Execution,), panel="How the work is done")]
_Model = Annotated[str, parameters.RUN_MODEL]
_ResultsFolder = Annotated[Path, option("OUT", "Folder for results.", "--out", "-o")]


def _out_of(noun: str) -> Any:
    text = f"Folder (or fsspec URL) of the {noun}; one that was stopped is finished."
    return option("RUN", text, "--out", "-o")


# ``normlens ablate``: what each component of a model is worth, as its loss shows.


@with_field_options
def ablate_command(
    *,
    model: _Model,
    data: Annotated[str, parameters.RUN_DATA],
    out: _ResultsFolder,
    options: Annotated[dict[str, Any], TypedFields(of=(AblateOptions,))],
    reading: _Reading,
    execution: _RunsDone,
    page: parameters.Page = True,
    quiet: parameters.NoProgress = False,
) -> None:
    """What each component of a model is worth: taken away, how does the loss change?

    And does the change of the maps tell? Components of the real model are replaced one by one; the
    page sets the change of the loss beside the change of the maps. The same command again goes on
    with what was stopped.
    """
    results = [REPORT] if page else []
    check_run_needs(model, execution, *results, extra="reproduce", instead=NO_PAGE)

    from normlens.ablation.ablate import ablate

    with shown_progress(quiet) as shown:
        report = ablate(
            model, data, out, page=page, progress=shown, execution=execution, **options, **reading
        )
    print(report)


# ``normlens align``: links between the words of a source and of its translation.


@with_field_options
def align_command(
    *,
    model: parameters.RunModel = None,
    data: Annotated[
        str | None,
        option(
            "DATA",
            "Pairs: lines source ||| target, or a table with --column and --pair-column.",
            "--data",
            "-d",
        ),
    ] = None,
    out: Annotated[str | None, _out_of("alignment")] = None,
    resume: Annotated[str | None, option("RUN", "Finish the alignment in this folder.")] = None,
    options: Annotated[dict[str, Any], TypedFields(of=(AlignOptions,))],
    reading: Annotated[dict[str, Any], TypedFields(of=(RunOptions,), only=RUN_FIELDS, panel=_DATA)],
    execution: _WorkDone,
    quiet: parameters.NoProgress = False,
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
    model: parameters.RunModel = None,
    data: parameters.RunData = None,
    out: Annotated[str | None, _out_of("evaluation")] = None,
    resume: Annotated[str | None, option("RUN", "Finish the evaluation in this folder.")] = None,
    options: Annotated[dict[str, Any], TypedFields(of=(EvaluateOptions,))],
    reading: Annotated[
        dict[str, Any], TypedFields(of=(RunOptions,), only=EVALUATE_FIELDS, panel=_DATA)
    ],
    execution: _WorkDone,
    page: parameters.Page = True,
    quiet: parameters.NoProgress = False,
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


_PARTS = "Of the parts evaluate and ablate"


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
    model: _Model,
    data: Annotated[
        list[str],
        option("DATA", "File, folder, pattern or named data set; may be repeated.", "--data", "-d"),
    ],
    out: _ResultsFolder,
    settings: Annotated[dict[str, Any], TypedFields(of=(Settings,), without=tuple(OF_PARTS))],
    of_parts: Annotated[
        dict[str, Any], TypedFields(of=(Settings,), only=tuple(OF_PARTS), panel=_PARTS)
    ],
    reading: _Reading,
    execution: _RunsDone,
    quiet: parameters.NoProgress = False,
) -> None:
    """Every table and figure of the papers for a model, as one report.

    Optional parts ask what no paper has published: see normlens evaluate and normlens ablate. Runs
    that are there already are resumed; a folder may be used again for the other experiments.
    """
    extra = EVALUATE if EVALUATE in parse_kinds(experiments) else "reproduce"
    check_run_needs(model, execution, REPORT, extra=extra)

    from normlens.papers.reproduce import reproduce

    with shown_progress(quiet) as shown:
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
    out: Annotated[Path, option("FOLDER", "Where the comparison goes.", "--out", "-o")] = Path(
        "comparison"
    ),
) -> None:
    """Several models side by side: their numbers, and their layers over each other."""
    check_installed(REPORT, extra="reproduce")

    from normlens.reports.compare import write_comparison

    write_comparison(folders, out)
    print(out / "comparison.html")
