"""``normlens.evaluate``: how true attributions are of a model, over a corpus."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens.corpus.data.readers import open_data
from normlens.corpus.data.records import Data, Record
from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.options import Execution, RunOptions
from normlens.corpus.runs.progress import Progress, for_caller
from normlens.corpus.runs.results import Run
from normlens.errors import InputError
from normlens.lens import Lens
from normlens.options import AUTO, check_keywords, names_of, shows_fields_of, split_keywords
from normlens.studies.driver import GivenData, GivenModel, Planned, is_here, loaded, one_measure
from normlens.studies.faithfulness.citations import check_citations
from normlens.studies.faithfulness.measure import (
    Asking,
    choose_protocols,
    default_kind,
    default_methods,
)
from normlens.studies.faithfulness.methods import method
from normlens.studies.faithfulness.options import (
    ANSWER_COLUMN,
    BLIMP,
    CITATION_METHODS,
    CITATIONS,
    GOLD_COLUMN,
    QUESTION_COLUMN,
    RUN_FIELDS,
    SOURCES_COLUMN,
    Columns,
    EvaluateOptions,
)
from normlens.studies.faithfulness.protocols import kind_of
from normlens.studies.faithfulness.questions import COSINE, NEXT_TOKEN
from normlens.studies.faithfulness.report import build_report
from normlens.studies.reports.files import FOLDER
from normlens.studies.reports.words import NO_PAGE, check_packages

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from normlens._keywords import EvaluateKeywords

# What an evaluation will do, settled before anything long starts.


#: An interval over sequences needs so many.
LEAST_SEQUENCES = 2
#: Options of a run that say how data is read.
READING = ("column", "pair_column", "paragraphs", "limit")


@dataclass(frozen=True)
class Plan:
    """The settings of the measure, and how the data is read for it, with which further columns."""

    settings: dict[str, Any]
    column: str | None
    extra: tuple[str, ...]
    whole: bool = False  # whether a text must not be cut


def make_plan(
    lens: Lens,
    options: EvaluateOptions,
    data: GivenData,
    reading: Mapping[str, Any],
    progress: Progress,
) -> Plan:
    """Fill in defaults; refuse what the model or the data does not allow.

    `reading` says how data that is not open yet is read.
    """
    named, columns = options.protocols, options.columns
    kind = kind_of(named) if named else default_kind(lens, pairs=True)
    if kind == CITATIONS:
        return _plan_of_citations(lens, options, data, reading)
    if kind == NEXT_TOKEN and columns == Columns():
        reading, columns = _recognised(data, reading)
    first = _first(data, reading, columns.names)
    if kind == COSINE and not isinstance(first.text, tuple):
        if named:
            raise InputError(f"{named[0]} needs pairs of texts; give --pair-column")
        default_kind(lens)  # says what the model could be evaluated on
    protocols = choose_protocols(lens, kind, named, columns)
    if columns.label is not None:
        Asking(lens, kind, columns, AUTO).class_of(first.extra[columns.label])
    methods, missing = (options.methods, []) if options.methods else default_methods(lens)
    for reason in missing:
        progress.say(f"note: {reason}")
    for name in options.methods or ():
        method(name).needs(lens)
    settings = {"methods": list(methods), "protocols": list(protocols), "steps": options.steps}
    whole = columns.good is not None  # the next words follow all of it
    return Plan({**settings, **columns.settings}, reading.get("column"), columns.names, whole)


def _plan_of_citations(
    lens: Lens, options: EvaluateOptions, data: GivenData, reading: Mapping[str, Any]
) -> Plan:
    """Plan an evaluation of citations; the model answers where the data has no answer."""
    if options.columns != Columns():
        raise InputError("citations read columns of their own; leave others out")
    check_citations(lens, options.methods or ())
    column = reading.get("column") or QUESTION_COLUMN
    reading = {**reading, "column": column}
    known = (SOURCES_COLUMN, GOLD_COLUMN, ANSWER_COLUMN)
    extra = tuple(name for name in known if _has(data, reading, (name,)))
    if SOURCES_COLUMN not in extra:
        raise InputError(f"citations need rows with {column!r} and a list of {SOURCES_COLUMN!r}")
    _first(data, reading, extra)
    methods = list(options.methods or CITATION_METHODS)
    settings = {"methods": methods, "protocols": [CITATIONS], "steps": options.steps}
    return Plan(settings, column, extra, whole=True)


def _recognised(data: GivenData, reading: Mapping[str, Any]) -> tuple[Mapping[str, Any], Columns]:
    """Read the data with BLiMP's column names if it has them."""
    if not any(reading.get(name) for name in ("column", "pair_column", "paragraphs")):
        text, *own = BLIMP
        blimp = {**reading, "column": text}
        for columns in (own, own[:2]):
            if _has(data, blimp, columns):
                return blimp, Columns(None, *columns)
    return reading, Columns()


def _open(data: GivenData, reading: Mapping[str, Any], extra: Sequence[str]) -> Data:
    """The data with these columns beside its text."""
    if isinstance(data, Data):
        return data
    return open_data(os.fspath(data), extra=tuple(extra), **reading)


def _has(data: GivenData, reading: Mapping[str, Any], extra: Sequence[str]) -> bool:
    """Whether the data can be read with these columns."""
    try:
        first = next(iter(_open(data, reading, extra)), None)
    except InputError:
        return False
    return first is not None and all(name in first.extra for name in extra)


def _first(data: GivenData, reading: Mapping[str, Any], extra: Sequence[str]) -> Record:
    """Return the first text; refuse data with too few texts for an interval."""
    opened = _open(data, reading, extra)
    count, first = 0, None
    for count, record in enumerate(opened, 1):  # noqa: B007
        first = first or (record if record.unreadable is None else None)
    if count < LEAST_SEQUENCES or first is None:
        raise InputError(f"{opened.name} gives {count} sequences; give {LEAST_SEQUENCES} or more")
    for name in extra:
        if name not in first.extra:
            raise InputError(f"the data lacks the column {name!r}; open it with extra=")
    return first


# ``normlens.studies.faithfulness``: how true attributions are of a model, over a corpus.


MEASURE = "faithfulness"
_NOT_TAKEN = tuple(name for name in names_of(RunOptions) if name not in RUN_FIELDS)


@shows_fields_of(EvaluateOptions, RunOptions, Execution, without=_NOT_TAKEN)
def evaluate(
    model: GivenModel,
    data: GivenData,
    out: str | os.PathLike[str],
    *,
    page: bool = True,
    progress: Progress | None = None,
    **options: Unpack[EvaluateKeywords],
) -> Run:
    """Put attribution methods to the test on every text of `data`: tables, and a page on them.

    ``evaluate("minilm", "sts-dev.csv", "my-evaluation")`` explains why the pairs' cosines are what
    they are; a classifier's predictions and a causal model's next tokens alike. `out` is a new
    folder, or one that holds the same evaluation, which is then finished; the `page` is
    ``report/report.html`` in it. The options are those of `EvaluateOptions` (methods, protocols,
    columns), of `normlens.run` and of `Execution`. What the model or the data does not allow is
    refused before the run begins.
    """
    check_keywords(evaluate, options)
    return _evaluated(model, data, out, page, progress or for_caller(), options, new=True)


def resume_evaluation(
    out: str | os.PathLike[str],
    *,
    model: GivenModel | None = None,
    data: GivenData | None = None,
    page: bool = True,
    progress: Progress | None = None,
    **options: Any,
) -> Run:
    """Finish an evaluation that was stopped; its options may be given again, but no others."""
    check_keywords(evaluate, options)
    return _evaluated(model, data, out, page, progress or for_caller(), options, new=False)


def _evaluated(
    model: GivenModel | None,
    data: GivenData | None,
    out: str | os.PathLike[str],
    page: bool,
    progress: Progress,
    options: Mapping[str, Any],
    new: bool,
) -> Run:
    if page:
        check_packages(NO_PAGE, "evaluate")
    own, of_run = split_keywords(options, EvaluateOptions)
    chosen = EvaluateOptions(**own)
    # None is whatever was chosen when the evaluation began.
    given = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(chosen).items()
        if name in own and value is not None
    }
    plan = partial(_planned, chosen, of_run, progress) if new else None
    done = one_measure(MEASURE, "an evaluation", out, model, data, given, of_run, progress, plan)
    if not page:
        return done
    if isinstance(done.folder, LocalFolder):
        progress.say("building the page")
        build_report(done.folder.url)
    else:
        progress.say(f"note: {done.folder} is not on this machine, so that it has no page yet")
    return done


def _planned(
    options: EvaluateOptions,
    of_run: dict[str, Any],
    progress: Progress,
    model: GivenModel,
    data: GivenData,
) -> Planned:
    here = is_here(of_run)
    # The model that runs here, or one on the CPU to be asked what it allows.
    lens = loaded(model, of_run, of_run.get("revision"), **({} if here else {"device": "cpu"}))
    progress.say(f"choosing methods and protocols for {lens.name}")
    reading = {name: of_run[name] for name in READING if name in of_run}
    plan = make_plan(lens, options, data, reading, progress)
    if plan.whole and of_run.setdefault("truncate", False):
        raise InputError("the whole text is needed; leave truncate out, or raise --max-length")
    of_run["extra_columns"] = plan.extra
    if not isinstance(data, Data):
        of_run["column"] = plan.column
    return Planned(lens if here else model, plan.settings, of_run)


def page_of(done: Run) -> Path | None:
    """The page of an evaluation, if it has one."""
    page = Path(done.folder.url) / FOLDER / "report.html"
    return page if page.is_file() else None
