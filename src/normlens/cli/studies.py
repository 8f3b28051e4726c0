"""``normlens evaluate`` and ``reproduce``: attribution methods put to the test, and the studies.

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
from normlens.errors import GRADIENTS, REPORT, TABLES, InputError, check_installed, require
from normlens.options import parse_layers
from normlens.studies.faithfulness.options import EvaluateOptions
from normlens.studies.papers.settings import ABLATE, EVALUATE, Settings, parse_kinds

if TYPE_CHECKING:
    from normlens.corpus.runs.results import Run


# Parameters that several studies take.


_DATA, _WORK = "Data, and how it is read", "How the work is done"
_READ = ("limit", "column", "pair_column")
_Reading = Annotated[dict[str, Any], Fields(of=(RunOptions,), only=_READ, panel=_DATA)]
_WorkDone = Annotated[
    dict[str, Any],
    Fields(of=(Execution,), only=("device", "workers"), panel=_WORK),
]


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
    options: Annotated[dict[str, Any], Fields(of=(EvaluateOptions,), without=("steps",))],
    reading: _Reading,
    execution: _WorkDone,
    page: bool = True,
) -> None:
    """Which attributions are true of the model: every method side by side, on a corpus.

    A sequence that cannot be evaluated is a row of the table `failures`; the exit status is 3 then.

    In the list: Which attributions are true of the model: every method put to the test.

    Example: normlens evaluate --model minilm --data stsb:path/sts-dev.csv --limit 60
    --out my-evaluation

    Often: model data out resume methods protocols label_column limit device workers

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


# ``normlens reproduce``: the papers' tables and figures, and the studies beside them.


#: What is no experiment of a report: a look at the embedded models, and what is made of folders.
_DEMO, _REPORT, _COMPARE, _ALIGN = "demo", "report", "compare", "align"
_SETTINGS = ("mask", "methods", "label_column", "components")
_HOW = ("device", "engine", "workers")


def reproduce_command(
    experiments: str,
    folders: list[Path] | None = None,
    *,
    model: str | None = None,
    data: list[str] | None = None,
    out: Path | None = None,
    settings: Annotated[dict[str, Any], Fields(of=(Settings,), only=_SETTINGS)],
    layers: str | None = None,
    scope: list[str] | None = None,
    gold: str | None = None,
    reading: _Reading,
    execution: Annotated[dict[str, Any], Fields(of=(Execution,), only=_HOW, panel=_WORK)],
    force: bool = False,
    quiet: bool = False,
) -> None:
    """Every table and figure of the papers for a model, as one report; and the studies beside them.
    The same command again goes on with what was stopped, and a folder may be used again for other
    experiments. Python has every option: normlens.ablate, normlens.align,
    normlens.studies.papers.reproduce.

    In the list: The papers' tables and figures as one report; also ablate, align, report, compare
    and demo.

    Example: normlens reproduce ff --model minilm --data sample --out my-results

    Often: model data out layers scope gold limit device workers quiet

    Options:
        experiments WHAT: Some of ff (Kobayashi et al. 2024), mixing (2021), all (both), evaluate
            (are attributions true of the model?) and ablate (what is each component worth?), with
            commas; or align (links between the words of a text and of its translation), report (the
            page of a folder, built again), compare (folders side by side), or demo (a tour with the
            embedded models, without data).
        folders [FOLDER]…: Of report and compare.
        data DATA (--data, -d): File, folder, pattern or named data set; may be repeated.
        out OUT (--out, -o): Folder for results.
        layers LIST: Of ablate alone: each, all, or layers such as 0,3-5. Of align: of the decoder.
        scope NAME (--scope, -s): Of align: a scope of the decoder, all, or explain; repeat it for
            more.
        gold FILE: Of align: gold links, one line per pair: 1-1 (sure) 2p3 (possible).
    """
    if experiments in (_REPORT, _COMPARE):
        require(folders, f"normlens reproduce {experiments} takes the folders of earlier results")
        _of_folders(experiments, folders or [], out)
        return
    require(not folders, f"only {_REPORT} and {_COMPARE} take folders, not {experiments!r}")
    if experiments == _DEMO:
        from normlens.studies.papers.demo import run_demo

        run_demo(out or Path("normlens-demo"), force=force)
        return
    if model is None or not data or out is None:
        raise InputError(f"{experiments} needs --model, --data and --out")
    given = {**settings, **reading}
    own = {"layers": layers, "scopes": scope or None, "gold": gold}
    own = {name: value for name, value in own.items() if value is not None}
    alone = experiments in (ABLATE, _ALIGN)
    require(alone or not own, "--layers, --scope and --gold are of ablate or align alone")
    require(not alone or len(data) == 1, f"{experiments} alone reads one --data")
    if experiments == _ALIGN:
        _align(model, data[0], out, given | own, execution, quiet)
        return
    extra = EVALUATE if EVALUATE in parse_kinds(experiments) else "reproduce"
    check_needs(model, REPORT, execution=execution, extra=extra)

    from normlens.studies.ablation.ablate import ablate
    from normlens.studies.papers.reproduce import reproduce

    with shown_progress(quiet) as shown:
        how: Any = {"progress": shown, "execution": execution}
        if alone:
            given = given | own
            if "label_column" in given:
                given["label"] = given.pop("label_column")
            report = ablate(model, data[0], out, **how, **given)
        else:
            report = reproduce(experiments, model, data, out, **how, **given)
    print(report)


def _align(
    model: str,
    data: str,
    out: Path,
    options: dict[str, Any],
    execution: dict[str, Any],
    quiet: bool,
) -> None:
    """Align the words of pairs of sentences, and print links or error rates."""
    check_needs(model, TABLES, execution=execution)

    from normlens.studies.alignment.align import align, resume_alignment

    if "layers" in options:
        options["layers"] = parse_layers(options["layers"])
    arguments = RunArguments(model=model, data=data, out=str(out), quiet=quiet)
    done = arguments.do(align, resume_alignment, "alignment", {**options, **execution})
    _print_alignment(done)
    report_run(done, quiet)


def _of_folders(what: str, folders: list[Path], out: Path | None) -> None:
    """Build the pages of folders again, or one page that compares them; needs no model or data."""
    check_installed(REPORT, extra="reproduce")

    from normlens.studies.reports.compare import write_comparison
    from normlens.studies.reports.files import builder

    if what == _COMPARE:
        out = out or Path("comparison")
        write_comparison(folders, out)
        print(out / "comparison.html")
        return
    for folder in folders:
        print(builder(folder)(folder))
