"""``normlens run``, ``status``, ``check`` and ``query``: measure a corpus, and look at its run."""

from __future__ import annotations

import json
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from normlens.cli import parameters
from normlens.cli.common import add_row, check_run_needs, console_for, new_table
from normlens.cli.parameters import TypedFields, option, with_field_options
from normlens.corpus.runs import progress
from normlens.corpus.runs.errors import RunError, SomeFailedWarning
from normlens.corpus.runs.folder import LocalFolder
from normlens.corpus.runs.options import FILE_SIZE, Execution, RunOptions
from normlens.corpus.runs.progress import clock
from normlens.errors import TABLES, InputError, NormLensError, check_installed
from normlens.loading.embedded import DEFAULT
from normlens.results.words import write_csv

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

    from normlens.corpus.runs.results import Run
    from normlens.corpus.runs.watched import Watched


# Questions to begin with, by the table of a run that answers them.


#: A question in words, and the SQL that asks it.
EXAMPLES: dict[str, tuple[str, str]] = {
    "similarity": (
        "How much does each step change the map of a layer?",
        "SELECT layer, scope_a, scope_b, avg(rho) AS rho FROM similarity GROUP BY ALL ORDER BY ALL",
    ),
    "mixing": (
        "How much of a vector do other tokens supply, by layer and kind of token?",
        "SELECT layer, category, avg(ratio) AS ratio FROM mixing GROUP BY ALL ORDER BY ALL",
    ),
    "amplification_pairs": (
        "Which pairs of subwords are amplified most?",
        "SELECT layer, source_token, target_token, sum(sum) / sum(count) AS amp, "
        "sum(count) AS count FROM amplification_pairs GROUP BY ALL ORDER BY amp DESC LIMIT 20",
    ),
    "norms": (
        "How large is what the feed-forward block adds beside what passes it by?",
        "SELECT layer, avg(ff_output_norm / bypassed_norm) AS share FROM norms GROUP BY layer "
        "ORDER BY layer",
    ),
    "explanations": (
        "Of which sequences does no token own most of the score?",
        "SELECT sequence, target, value, remainder FROM explanations "
        "ORDER BY abs(remainder) DESC LIMIT 20",
    ),
    "sequences": (
        "How many sequences and tokens are there, and how exact are they?",
        "SELECT count(*) AS sequences, sum(tokens) AS tokens, max(completeness) AS completeness "
        "FROM sequences",
    ),
}


def examples_for(tables: Iterable[str]) -> list[tuple[str, str]]:
    """The questions that a run with these tables can answer."""
    there = set(tables)
    return [example for table, example in EXAMPLES.items() if table in there]


# Watching a run: a live view on a terminal, lines in a pipe.


#: Seconds between two looks, at a folder on a disk and at one in an object store.
EVERY_LOCAL, EVERY_REMOTE = 2.0, 30.0
#: Seconds between two lines in a pipe.
LINE_EVERY = 10.0
#: Workers that a terminal shows; the last to finish a shard come first.
SHOWN = 20


def watch_run(run: Run, as_json: bool = False) -> None:
    """Show how far a run is until nobody works on it any more."""
    every = EVERY_LOCAL if isinstance(run.folder, LocalFolder) else EVERY_REMOTE
    console = console_for()
    watched = run.watched()
    if as_json or not console.is_terminal:
        while True:
            print(json.dumps(watched.as_json()) if as_json else watched.line(), flush=True)
            if not watched.running:
                return
            time.sleep(max(every, LINE_EVERY))
            watched = run.watched()
    with Live(_view(watched), console=console, auto_refresh=False) as live:
        while watched.running:
            time.sleep(every)
            watched = run.watched()
            live.update(_view(watched), refresh=True)
        live.update(_view(watched), refresh=True)


def _view(watched: Watched) -> RenderableType:
    status, activity = watched.status, watched.activity
    parts: list[RenderableType] = [Text(line) for line in str(status).splitlines()[:1]]
    parts += [
        Text(f"state      {watched.state}" + (f" ({watched.running})" if watched.running else "")),
        ProgressBar(total=max(1, status.sequences), completed=status.done, width=60),
        Text(watched.line()),
    ]
    if activity is None:
        return Group(*parts, *(Text(line) for line in watched.activity_lines()))
    table = new_table("worker", "device", "shards", "sequences/s", "failed", "last", left=2)
    for worker in activity.workers[:SHOWN]:
        ago = f"{clock(max(0.0, time.time() - worker.last))} ago"
        numbers = (str(worker.shards), f"{worker.rate:.1f}", str(worker.failures), ago)
        add_row(table, worker.name, worker.device, *numbers)
    hidden = len(activity.workers) - SHOWN
    more = [Text(f"and {hidden} more workers")] if hidden > 0 else []
    return Group(*parts, Text(watched.activity_lines()[1]), table, *more)


# ``normlens run``: measure a corpus, or go on with a run that was stopped.


# torch takes seconds to import, so only a command that needs it does it.

#: Exit status of a run in which some sequences failed.
SOME_FAILED = 3
#: Exit status after Ctrl-C, as shells have it.
INTERRUPTED = 130


@with_field_options
def run_command(
    *,
    model: parameters.Model = None,
    data: parameters.RunData = None,
    out: Annotated[
        str | None, option("RUN", "New folder (or fsspec URL) for the run.", "--out", "-o")
    ] = None,
    resume: Annotated[
        str | None, option("RUN", "Finish the run in this folder; it knows its options.")
    ] = None,
    options: Annotated[dict[str, Any], TypedFields(of=(RunOptions, Execution))],
    quiet: parameters.NoProgress = False,
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
        try:
            with shown_progress(self.quiet) as shown, warnings.catch_warnings():
                warnings.simplefilter("ignore", SomeFailedWarning)  # `report_run` says it
                if self.resume is not None:
                    return go_on(self.resume, model=model, data=data, progress=shown, **options)
                if model is None or data is None:
                    needed = "--data" if self.default else "--model, --data"
                    raise InputError(f"a new {self.noun} needs {needed} and --out")
                return begin(model, data, self.out, progress=shown, **options)
        except KeyboardInterrupt:
            print(_stopped(self.resume or self.out or "", self.command), file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None


@contextmanager
def shown_progress(quiet: bool) -> Iterator[progress.Progress]:
    """Progress on stderr, which ends with the work."""
    shown = progress.for_stream(quiet)
    try:
        yield shown
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


# ``normlens status``, ``check`` and ``query``: what a run's folder holds.


#: Exit status of a check that found something.
NOT_SOUND = 1
SHOWN_ROWS = 40

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's folder or URL.")]


def status_command(
    run: RunArgument,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on showing it until the run ends.")
    ] = False,
    as_json: parameters.Json = False,
) -> None:
    """How far a run is: done, left, rate, failures, workers, and where the time goes."""
    from normlens.corpus.runs.results import Run

    opened = Run.open(run)
    if watch:
        watch_run(opened, as_json)
        return
    watched = opened.watched()
    _print(watched, as_json)


def check_command(run: RunArgument, as_json: parameters.Json = False) -> None:
    """Read all files of a run: which are missing, damaged or stray?

    One line for each; the exit status is 1 if there is one.
    """
    from normlens.corpus.runs.results import Run

    result = Run.open(run).check()
    _print(result, as_json)
    if not result.sound:
        raise typer.Exit(NOT_SOUND)


def compact_command(
    run: RunArgument,
    file_size: Annotated[
        float, option("MB", "Size of the files; they have from half to twice.")
    ] = FILE_SIZE,
    as_json: parameters.Json = False,
) -> None:
    """Join the files of a run's finished shards: few large ones instead of many small ones.

    A run does this by itself while it goes on. The tables stay the same, bit for bit.
    """
    from normlens.corpus.runs.results import Run

    result = Run.open(run).compact(file_size=file_size)
    _print(result, as_json)


def query_command(
    run: RunArgument,
    sql: Annotated[
        str | None,
        typer.Argument(
            metavar="SQL", help="A query over the run's tables. Without: the tables, and examples."
        ),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="As CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, a row per object.")] = False,
    out: Annotated[
        Path | None, option("FILE", ".csv, .json, .jsonl or .parquet.", "--out", "-o")
    ] = None,
    force: parameters.Force = False,
    measures: Annotated[
        str | None, option("LIST", "Your own measures (module:name) that merge tables.")
    ] = None,
) -> None:
    """Ask a run's tables in SQL (DuckDB)."""
    from normlens.corpus.runs.results import Run

    if sql is not None:
        check_installed(TABLES)
    opened = Run.open(run, measures=measures)
    if sql is None:
        _print_tables(run, opened.manifest.tables, as_json)
        return
    tables = opened.snapshot(moves_on=True)
    if not tables.complete:
        print(
            f"note: only shards that are done answer; see: normlens status {run}", file=sys.stderr
        )
    if out is not None:
        tables.export(sql, out, overwrite=force)
        return
    frame = tables.sql(sql)
    if csv:
        write_csv(frame, sys.stdout)
    elif as_json:
        print(frame.to_json(orient="records", indent=1, double_precision=15))
    else:
        _print_table(frame)


def _print(result: Any, as_json: bool) -> None:
    print(json.dumps(result.as_json(), indent=1) if as_json else result)


def _print_tables(run: str, tables: Mapping[str, Mapping[str, Any]], as_json: bool) -> None:
    """List a run's tables with their columns, and questions that they answer."""
    columns = {table: list(described["columns"]) for table, described in tables.items()}
    examples = examples_for(columns)
    if as_json:
        queries = [{"question": question, "sql": sql} for question, sql in examples]
        print(json.dumps({"tables": columns, "examples": queries}, indent=1))
        return
    for table, names in columns.items():
        print(f"{table}({', '.join(names)})")
    for question, sql in examples:
        print(f"\n# {question}\nnormlens query {shlex.quote(run)} {shlex.quote(sql)}")


def _print_table(frame: pd.DataFrame) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for name in frame.columns:
        numeric = frame[name].dtype.kind in "iuf"
        table.add_column(str(name), justify="right" if numeric else "left", overflow="fold")
    for row in frame.head(SHOWN_ROWS).itertuples(index=False):
        table.add_row(*(_cell(value) for value in row))
    console = Console()
    console.print(table)
    if len(frame) > SHOWN_ROWS:
        print(
            f"{SHOWN_ROWS} of {len(frame)} rows; --csv, --json or --out give all", file=sys.stderr
        )


def _cell(value: object) -> str:
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))
