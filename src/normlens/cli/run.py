"""``normlens run``: measure a corpus, or go on with a run that was stopped."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlens.checkpoints.embedded import DEFAULT
from normlens.cli.fields import TypedFields, with_field_options
from normlens.cli.needs import check_run_needs
from normlens.cli.options import ModelOption, NoProgressOption, RunDataOption
from normlens.corpus.runs import progress
from normlens.corpus.runs.errors import RunError, SomeFailedWarning
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
    model: ModelOption = None,
    data: RunDataOption = None,
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
    check_run_needs(model or (DEFAULT if resume is None else None), options)

    from normlens.corpus.runs import runs

    asked = Asked("run", "run", model, data, out, resume, quiet, default=DEFAULT)
    report_run(asked.carry_out(runs.run, runs.resume, **options), quiet)


@dataclass(frozen=True)
class Asked:
    """A new run, or one to go on with, as a command line asks for it."""

    command: str
    noun: str  # what the command calls its runs
    model: str | None
    data: str | None
    out: str | None
    resume: str | None
    quiet: bool
    default: str | None = None  # the model of a new run that names none

    def carry_out(
        self, begin: Callable[..., Run], go_on: Callable[..., Run], **options: Any
    ) -> Run:
        """Do the run with its progress shown; Ctrl-C says how to go on, and exits with 130."""
        if (self.out is None) == (self.resume is None):
            raise InputError(
                f"give --out for a new {self.noun} or --resume for one that was stopped"
            )
        model, data = self.model, self.data
        if self.resume is None:
            model = model or self.default
        shown = progress.for_stream(self.quiet)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SomeFailedWarning)  # `report_run` says it
                if self.resume is not None:
                    return go_on(self.resume, model=model, data=data, progress=shown, **options)
                if model is None or data is None:
                    needed = "--data" if self.default else "--model, --data"
                    raise InputError(f"a new {self.noun} needs {needed} and --out")
                return begin(model, data, self.out, progress=shown, **options)
        except KeyboardInterrupt:
            shown.stop()
            print(_stopped(self.resume or self.out or "", self.command), file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        finally:
            shown.stop()


def _stopped(place: str, command: str) -> str:
    """What to say after Ctrl-C, with the command that goes on."""
    from normlens.corpus.runs.results import Run

    try:
        Run.open(place)
    except NormLensError:
        return "stopped before the run began"
    return f"stopped; what is done is kept, go on with: normlens {command} --resume {place}"


def report_run(run: Run, quiet: bool) -> None:
    """Say how a run ended; exits with 3 where sequences failed."""
    from normlens.corpus.runs.results import failures_told

    status = run.status()
    if not status.complete:
        raise RunError(f"shards of {run.folder} vanished; compute them again with --resume")
    if status.failures:
        print(failures_told(run.folder, status.failures, status.done), file=sys.stderr)
        raise typer.Exit(SOME_FAILED)
    if not quiet:
        print(f"{status.done} sequences are done, none failed: {run.folder}", file=sys.stderr)
