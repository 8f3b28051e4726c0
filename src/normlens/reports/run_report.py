"""The report of a single run, in a folder of its own beside the run's files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.results import Run
from normlens.errors import InputError
from normlens.reports.content import Report
from normlens.reports.files import write

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
