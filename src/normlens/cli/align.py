"""``normlens align``: links between the words of a source and of its translation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlens.alignment.options import RUN_FIELDS, AlignOptions
from normlens.cli.fields import TypedFields, with_field_options
from normlens.cli.options import NoProgressOption
from normlens.cli.run import INTERRUPTED, report_run, stopped
from normlens.corpus.runs import progress
from normlens.corpus.runs.options import Execution, ExecutionKeywords, RunOptions
from normlens.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from normlens.corpus.runs.results import Run


@with_field_options
def align_command(
    *,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="NAME", help="Hub name or folder."),
    ] = None,
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
    execution: Annotated[
        ExecutionKeywords, TypedFields(of=(Execution,), panel="How the work is done")
    ],
    quiet: NoProgressOption = False,
) -> None:
    """Links between the words of a source and of its translation, in Pharaoh's format.

    With gold links, a table of error rates for every layer, scope and way. A pair that cannot be
    aligned is a row of the table `failures`; the exit status is 3 then.
    """
    from normlens.alignment.align import align, resume_alignment

    if (out is None) == (resume is None):
        raise InputError("give --out for a new alignment or --resume for one that was stopped")
    shown = progress.for_stream(quiet)
    given: dict[str, Any] = {**options, **reading, **execution}
    try:
        if resume is not None:
            done = resume_alignment(resume, model=model, data=data, progress=shown, **given)
        elif model is None or data is None or out is None:
            raise InputError("a new alignment needs --model, --data and --out")
        else:
            done = align(model, data, out, progress=shown, **given)
    except KeyboardInterrupt:
        shown.stop()
        print(stopped(resume or out or "", "align"), file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        shown.stop()
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
    if run.status().done > run.status().failures:
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
