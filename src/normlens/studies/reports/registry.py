"""The folders of studies: their settings and finished runs, and which room builds their pages."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.results import Run
from normlens.errors import InputError, listed, parse_json
from normlens.studies.reports.contents import Report
from normlens.studies.reports.files import write

#: Where the report of a single run goes, in the run's own folder.
FOLDER = "report"
#: The settings of a study of several runs, beside its page.
SETTINGS = "settings.json"
PAPERS = "normlens.studies.papers.reporting:build_report"
#: The function that builds a report, by what the settings of a folder say that it is of.
BUILDERS = {"ablation": "normlens.studies.ablation.report:build_report"}
#: The function that builds the report of a single run, by a table that the run has.
RUN_BUILDERS = {
    "faithfulness": "normlens.studies.faithfulness.report:build_report",
    "alignment": "normlens.studies.alignment.report:build_report",
}


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


def check_finished(run: Run, again: str = "resume it before its report is made") -> None:
    """Refuse to describe a run that is not complete."""
    status = run.status()
    if not status.complete:
        raise InputError(
            f"{str(run.folder)!r} is not finished ({status.done} of {status.sequences} sequences); "
            + again
        )


def finished_run(path: Path, command: str) -> Run:
    """Open a run of a study's folder; one that is not there or not finished is refused."""
    again = f"run the same normlens {command} again to go on"
    if not (path / MANIFEST).is_file():
        raise InputError(f"{str(path)!r} holds no run yet; {again}")
    run = Run.open(path)
    check_finished(run, again)
    return run


def read_settings(folder: str | os.PathLike[str], kind: str, nothing: str) -> dict[str, Any]:
    """Read the settings of a study's folder; `nothing` says what to do where there are none."""
    path = Path(folder) / SETTINGS
    if not path.is_file():
        raise InputError(f"{str(folder)!r} holds no {nothing} --out {folder}")
    try:
        settings = parse_json(path.read_text("utf-8"))
        if settings.get("report", "") != kind:
            raise InputError(f"{str(folder)!r} holds results of another command; give a new --out")
    except InputError:
        raise
    except (ValueError, AttributeError) as error:
        raise damaged(folder, error) from error
    return settings


def damaged(folder: str | os.PathLike[str], error: Exception) -> InputError:
    """What is raised where settings cannot be read."""
    return InputError(f"{str(Path(folder) / SETTINGS)!r} is damaged: {error}")


def builder(folder: str | os.PathLike[str]) -> Callable[[str | os.PathLike[str]], Path]:
    """The function that builds a folder's report; that of the papers unless its contents say."""
    place = Path(folder)
    module, _, name = (
        _of_run(place) if (place / MANIFEST).is_file() else BUILDERS.get(_kind(place), PAPERS)
    ).partition(":")
    return getattr(import_module(module), name)


def _of_run(folder: Path) -> str:
    tables = Run.open(folder).tables
    for table, function in RUN_BUILDERS.items():
        if table in tables:
            return function
    raise InputError(
        f"there is no report for the run in {str(folder)!r}, whose tables are {listed(tables)}; "
        "ask it with normlens query"
    )


def _kind(folder: Path) -> str:
    try:
        return str(parse_json((folder / SETTINGS).read_text("utf-8"))["report"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""
