"""``normlens run``: measure a corpus, or go on with a run that was stopped."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from normlens.cli.fields import TypedFields, with_field_options
from normlens.cli.options import NoProgressOption
from normlens.corpus.runs import progress
from normlens.corpus.runs.errors import RunError
from normlens.corpus.runs.options import Execution, RunKeywords, RunOptions
from normlens.errors import InputError, NormLensError

# torch takes seconds to import, so only a command that needs it does it.
if TYPE_CHECKING:
    from normlens.corpus.runs.results import Run

#: Exit status of a run in which some sequences failed.
SOME_FAILED = 3
#: Exit status after Ctrl-C, as shells have it.
INTERRUPTED = 130


@with_field_options
def run_command(
    *,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="NAME", help="Hub name, folder or embedded model."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", "-d", metavar="DATA", help="File, folder, pattern or named data set."
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="RUN", help="New folder (or fsspec URL) for the run."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Finish the run in this folder; it knows its options."),
    ] = None,
    options: Annotated[RunKeywords, TypedFields(of=(RunOptions, Execution))],
    quiet: NoProgressOption = False,
) -> None:
    """Measure every sequence of a corpus; stop and resume at any time.

    A sequence that cannot be analysed is a row of the table `failures`; the exit status is 3 then.
    """
    from normlens.corpus.runs import runs

    if (out is None) == (resume is None):
        raise InputError("give --out for a new run or --resume for one that was stopped")
    shown = progress.for_stream(quiet)
    try:
        if resume is not None:
            done = runs.resume(resume, model=model, data=data, progress=shown, **options)
        elif model is None or data is None or out is None:
            raise InputError("a new run needs --model, --data and --out")
        else:
            done = runs.run(model, data, out, progress=shown, **options)
    except KeyboardInterrupt:
        shown.stop()
        print(stopped(resume or out or "", "run"), file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        shown.stop()
    report_run(done, quiet)


def stopped(place: str, command: str) -> str:
    """What to say after Ctrl-C, with the command that goes on."""
    from normlens.corpus.runs.results import Run

    try:
        Run.open(place)
    except NormLensError:
        return "stopped before the run began"
    return f"stopped; what is done is kept, go on with: normlens {command} --resume {place}"


def report_run(run: Run, quiet: bool) -> None:
    """Say how a run ended; exits with 3 where sequences failed."""
    status = run.status()
    if not status.complete:
        raise RunError(f"shards of {run.folder} vanished; compute them again with --resume")
    if status.failures:
        print(
            f"{status.failures} of {status.done} sequences failed; see: "
            f'normlens query {run.folder} "SELECT * FROM failures"',
            file=sys.stderr,
        )
        raise typer.Exit(SOME_FAILED)
    if not quiet:
        print(f"{status.done} sequences are done, none failed: {run.folder}", file=sys.stderr)
