"""Which room builds the report of a folder, and the report of a single run."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.results import Run
from normlens.errors import InputError, listed, parse_json
from normlens.studies.reports.contents import Report
from normlens.studies.reports.files import write

# The report of a single run, in a folder of its own beside the run's files.


FOLDER = "report"


def write_run_report(
    run: str | os.PathLike[str],
    describe: Callable[[Run], Report],
    out: str | os.PathLike[str] | None = None,
) -> Path:
    """Write what `describe` makes of a run to `out`, by default to the folder `FOLDER`.

    Gives the page's path.
    """
    opened = Run.open(run)
    if out is None and not isinstance(opened.folder, LocalFolder):
        raise InputError(f"{str(run)!r} is not on this machine; give the report a folder (out=…)")
    folder = Path(run) / FOLDER if out is None else Path(out)
    write(describe(opened), folder)
    return folder / "report.html"


def check_finished(run: Run) -> None:
    """Refuse to describe a run that is not complete."""
    status = run.status()
    if not status.complete:
        raise InputError(
            f"{str(run.folder)!r} is not finished ({status.done} of {status.sequences} sequences); "
            "resume it before its report is made"
        )


# Which room builds the report of a folder, as the folder's contents say.


SETTINGS = "settings.json"
#: The function that builds a report, by what the settings of a folder say that it is of.
BUILDERS = {"ablation": "normlens.studies.ablation.report.reporting:build_report"}
PAPERS = "normlens.studies.papers.reporting:build_report"
#: The function that builds the report of a single run, by a table that the run has.
RUN_BUILDERS = {
    "faithfulness": "normlens.studies.faithfulness.report.build:build_report",
    "alignment": "normlens.studies.alignment.report:build_report",
}


def builder(folder: str | os.PathLike[str]) -> Callable[[str | os.PathLike[str]], Path]:
    """The function that builds a folder's report; that of the papers unless its contents say."""
    place = Path(folder)
    if (place / MANIFEST).is_file():
        return _imported(_of_run(place))
    return _imported(BUILDERS.get(_kind(place / SETTINGS), PAPERS))


def _of_run(folder: Path) -> str:
    tables = Run.open(folder).tables
    for table, function in RUN_BUILDERS.items():
        if table in tables:
            return function
    raise InputError(
        f"there is no report for the run in {str(folder)!r}, whose tables are {listed(tables)}; "
        "ask it with normlens query"
    )


def _imported(function: str) -> Callable[[str | os.PathLike[str]], Path]:
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)


def _kind(settings: Path) -> str:
    try:
        contents = parse_json(settings.read_text("utf-8"))
        return str(contents["report"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""
