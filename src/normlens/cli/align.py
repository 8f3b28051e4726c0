"""``normlens align``: links between the words of a source and of its translation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlens.alignment.options import RUN_FIELDS, AlignOptions
from normlens.cli.fields import TypedFields, with_field_options
from normlens.cli.needs import check_run_needs
from normlens.cli.options import NoProgressOption, RunModelOption
from normlens.cli.run import Asked, report_run
from normlens.corpus.runs.options import Execution, ExecutionKeywords, RunOptions
from normlens.extras import TABLES

if TYPE_CHECKING:
    import pandas as pd

    from normlens.corpus.runs.results import Run


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
    execution: Annotated[
        ExecutionKeywords, TypedFields(of=(Execution,), panel="How the work is done")
    ],
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
