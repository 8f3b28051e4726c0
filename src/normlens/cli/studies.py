"""``normlens ablate``, ``align``, ``evaluate``, ``reproduce``, ``report`` and ``compare``.

Options:
    model NAME (--model, -m): Hub name, folder or embedded model.
    data DATA (--data, -d): File, folder, pattern or named data set.
    page (--page/--no-page): Build the page when the tables are done.
    quiet (--quiet, -q): Print no progress.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from normlens.cli.common import check_needs
from normlens.cli.corpus import RunArguments, report_run, shown_progress
from normlens.cli.parameters import Fields
from normlens.corpus.runs.options import Execution, RunOptions
from normlens.errors import GRADIENTS, REPORT, TABLES, check_installed
from normlens.studies.ablation.options import AblateOptions
from normlens.studies.alignment.options import RUN_FIELDS, AlignOptions
from normlens.studies.faithfulness.options import RUN_FIELDS as EVALUATE_FIELDS
from normlens.studies.faithfulness.options import EvaluateOptions
from normlens.studies.papers.settings import EVALUATE, OF_PARTS, Settings, parse_kinds

if TYPE_CHECKING:
    from normlens.corpus.runs.results import Run


# Parameters that several studies take.


_READING = ("limit", "max_length", "column", "pair_column", "paragraphs")
_DATA = "Data, and how it is read"
_Reading = Annotated[dict[str, Any], Fields(of=(RunOptions,), only=_READING, panel=_DATA)]
_RunsDone = Annotated[Any, Fields(of=(Execution,), panel="How the runs are done")]
_WorkDone = Annotated[Any, Fields(of=(Execution,), panel="How the work is done")]


# ``normlens ablate``: what each component of a model is worth, as its loss shows.


def ablate_command(
    *,
    model: str,
    data: str,
    out: Path,
    options: Annotated[dict[str, Any], Fields(of=(AblateOptions,))],
    reading: _Reading,
    execution: _RunsDone,
    page: bool = True,
    quiet: bool = False,
) -> None:
    """What each component of a model is worth: taken away, how does the loss change?

    And does the change of the maps tell? Components of the real model are replaced one by one; the
    page sets the change of the loss beside the change of the maps. The same command again goes on
    with what was stopped.

    In the list: What each component of a model is worth: taken away, how does the loss change?

    Example: normlens ablate --model smollm2 --data wikitext:wiki.valid.raw --limit 300
    --out my-ablation

    Options:
        out OUT (--out, -o): Folder for results.
    """
    check_needs(model, execution=execution, extra="reproduce", page=page)

    from normlens.studies.ablation.ablate import ablate

    given = {**options, **reading, "execution": execution, "page": page}
    with shown_progress(quiet) as shown:
        report = ablate(model, data, out, progress=shown, **given)
    print(report)


# ``normlens align``: links between the words of a source and of its translation.


def align_command(
    *,
    arguments: RunArguments,
    options: Annotated[dict[str, Any], Fields(of=(AlignOptions,))],
    reading: Annotated[dict[str, Any], Fields(of=(RunOptions,), only=RUN_FIELDS, panel=_DATA)],
    execution: _WorkDone,
) -> None:
    """Links between the words of a source and of its translation, in Pharaoh's format.

    With gold links, a table of error rates for every layer, scope and way. A pair that cannot be
    aligned is a row of the table `failures`; the exit status is 3 then.

    In the list: Words of a source and of its translation, linked by an encoder–decoder's maps.

    Example: normlens align --model my-marian --data parallel:pairs.txt --gold pairs.gold
    --scope all --out my-alignment

    Options:
        data DATA (--data, -d): Pairs: lines source ||| target, or a table with --column and
            --pair-column.
        out RUN (--out, -o): Folder (or fsspec URL) of the alignment; one that was stopped is
            finished.
        resume RUN: Finish the alignment in this folder.
    """
    check_needs(arguments.model, TABLES, execution=execution)

    from normlens.studies.alignment.align import align, resume_alignment

    given = {**options, **reading, **execution}
    done = arguments.do(align, resume_alignment, "alignment", given)
    _print_alignment(done)
    report_run(done, arguments.quiet)


def _print_alignment(run: Run) -> None:
    """Error rates in per cent with their intervals, the best marked; without gold links, where the
    links are."""
    from normlens.studies.alignment.gold import FOLDER, error_rates

    if run.manifest.options.settings["alignment"].get("gold") is None:
        print(f"{run.folder}/{FOLDER}")
        return
    table = error_rates(run).table
    shown = table[["scope", "way"]].copy()
    for name in ("layer", "head"):
        if name == "layer" or (table[name] >= 0).any():
            shown[name] = ["all" if number < 0 else number for number in table[name]]
    for name in ("aer", "precision", "recall"):
        columns = [table[f"{name}{end}"] for end in ("", "_low", "_high")]
        shown[name] = [_rate(*row) for row in zip(*columns, strict=True)]
    shown[""] = ["best" if best else "" for best in table["best"]]
    print(shown.to_string(index=False))


def _rate(value: float, low: float, high: float) -> str:
    if value != value:
        return "–"
    return f"{100 * value:.1f}" + (f" ({100 * low:.1f}–{100 * high:.1f})" if low == low else "")


# ``normlens evaluate``: attribution methods, put to the test on a corpus.


def evaluate_command(
    *,
    arguments: RunArguments,
    options: Annotated[dict[str, Any], Fields(of=(EvaluateOptions,))],
    reading: Annotated[dict[str, Any], Fields(of=(RunOptions,), only=EVALUATE_FIELDS, panel=_DATA)],
    execution: _WorkDone,
    page: bool = True,
) -> None:
    """Which attributions are true of the model: every method side by side, on a corpus.

    A sequence that cannot be evaluated is a row of the table `failures`; the exit status is 3 then.

    In the list: Which attributions are true of the model: every method put to the test.

    Example: normlens evaluate --model minilm --data stsb:path/sts-dev.csv --limit 60
    --out my-evaluation

    Options:
        out RUN (--out, -o): Folder (or fsspec URL) of the evaluation; one that was stopped is
            finished.
        resume RUN: Finish the evaluation in this folder.
    """
    needs = [GRADIENTS] if "integrated-gradients" in options.get("methods", ()) else []
    check_needs(arguments.model, *needs, execution=execution, extra="evaluate", page=page)

    from normlens.studies.faithfulness.evaluate import evaluate, page_of, resume_evaluation

    given = {**options, **reading, **execution, "page": page}
    done = arguments.do(evaluate, resume_evaluation, "evaluation", given)
    if page and (built := page_of(done)) is not None:
        print(built)
    report_run(done, arguments.quiet)


# ``normlens reproduce``, ``report`` and ``compare``: the papers' tables and figures.


_PARTS = "Of the parts evaluate and ablate"


def reproduce_command(
    experiments: str,
    *,
    model: str,
    data: list[str],
    out: Path,
    settings: Annotated[dict[str, Any], Fields(of=(Settings,), without=tuple(OF_PARTS))],
    of_parts: Annotated[dict[str, Any], Fields(of=(Settings,), only=tuple(OF_PARTS), panel=_PARTS)],
    reading: _Reading,
    execution: _RunsDone,
    quiet: bool = False,
) -> None:
    """Every table and figure of the papers for a model, as one report.

    Optional parts ask what no paper has published: see normlens evaluate and normlens ablate. Runs
    that are there already are resumed; a folder may be used again for the other experiments.

    Example: normlens reproduce ff --model minilm --data sample --out my-results

    Options:
        experiments ff|mixing|all[,evaluate][,ablate]: ff: Kobayashi et al. 2024. mixing: Kobayashi
            et al. 2021. all: both. evaluate: are attributions true of the model? ablate: what is
            each component worth? Several with commas.
        data DATA (--data, -d): File, folder, pattern or named data set; may be repeated.
        out OUT (--out, -o): Folder for results.
    """
    extra = EVALUATE if EVALUATE in parse_kinds(experiments) else "reproduce"
    check_needs(model, REPORT, execution=execution, extra=extra)

    from normlens.studies.papers.reproduce import reproduce

    given = {**reading, **settings, **of_parts, "execution": execution}
    with shown_progress(quiet) as shown:
        report = reproduce(experiments, model, data, out, progress=shown, **given)
    print(report)


def report_command(out: Path) -> None:
    """Build the report again from what is on disk; needs neither model nor data.

    Example: normlens report my-results

    Options:
        out OUT: A folder that reproduce, evaluate, ablate or align has made.
    """
    check_installed(REPORT, extra="reproduce")

    from normlens.studies.reports.files import builder

    print(builder(out)(out))


def compare_command(folders: list[Path], *, out: Path = Path("comparison")) -> None:
    """Several models side by side: their numbers, and their layers over each other.

    Example: normlens compare bert/ gpt2/ --out comparison

    Options:
        folders OUT…: Folders that reproduce has made.
        out FOLDER (--out, -o): Where the comparison goes.
    """
    check_installed(REPORT, extra="reproduce")

    from normlens.studies.reports.compare import write_comparison

    write_comparison(folders, out)
    print(out / "comparison.html")
