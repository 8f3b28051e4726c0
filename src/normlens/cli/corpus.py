"""``normlens run``, ``status``, ``check`` and ``query``: measure a corpus, and look at its run.

`check` without a run looks at the installation.

Options:
    run RUN: The run's folder or URL.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from normlens.cli.common import check_needs, console_for, print_table
from normlens.cli.parameters import Fields
from normlens.corpus.runs import progress
from normlens.corpus.runs.folder import LocalFolder, RunError, SomeFailedWarning
from normlens.corpus.runs.options import Execution, RunOptions
from normlens.errors import TABLES, NormLensError, check_installed, require
from normlens.loading.embedded import DEFAULT
from normlens.results.words import write_csv

if TYPE_CHECKING:
    from normlens.corpus.runs.results import Run


# Questions to begin with, by the table of a run that answers them.


#: Questions in words, and the SQL that asks them.
EXAMPLES = {
    "How much does each step change the map of a layer?": "SELECT layer, scope_a, scope_b, "
    "avg(rho) AS rho FROM similarity GROUP BY ALL ORDER BY ALL",
    "How much of a vector do other tokens supply, by layer and kind of token?": "SELECT layer, "
    "category, avg(ratio) AS ratio FROM mixing GROUP BY ALL ORDER BY ALL",
    "Which pairs of subwords are amplified most?": "SELECT layer, source_token, target_token, "
    "sum(sum) / sum(count) AS amp, sum(count) AS count FROM amplification_pairs GROUP BY ALL "
    "ORDER BY amp DESC LIMIT 20",
    "How large is what the feed-forward block adds beside what passes it by?": "SELECT layer, "
    "avg(ff_output_norm / bypassed_norm) AS share FROM norms GROUP BY layer ORDER BY layer",
    "Of which sequences does no token own most of the score?": "SELECT sequence, target, value, "
    "remainder FROM explanations ORDER BY abs(remainder) DESC LIMIT 20",
    "How many sequences and tokens are there, and how exact are they?": "SELECT count(*) AS "
    "sequences, sum(tokens) AS tokens, max(completeness) AS completeness FROM sequences",
}


# Watching a run: a live view on a terminal, lines in a pipe.


#: Seconds between two looks, at a folder on a disk and at one in an object store.
EVERY_LOCAL, EVERY_REMOTE = 2.0, 30.0
#: Seconds between two lines in a pipe.
LINE_EVERY = 10.0


def watch_run(run: Run, as_json: bool = False) -> None:
    """Show how far a run is until nobody works on it any more."""
    console = console_for()
    every = EVERY_LOCAL if isinstance(run.folder, LocalFolder) else EVERY_REMOTE
    is_live = console.is_terminal and not as_json
    with Live(console=console, auto_refresh=False) if is_live else nullcontext() as live:
        while True:
            status = run.status()
            if live is None:
                print(json.dumps(status.as_json()) if as_json else status.line(), flush=True)
            else:
                total, done = max(1, status.sequences), status.done
                bar = ProgressBar(total=total, completed=done, width=60)
                live.update(Group(Text(str(status)), bar), refresh=True)
            if not status.running:
                return
            time.sleep(every if is_live else max(every, LINE_EVERY))


# ``normlens run``: measure a corpus, or go on with a run that was stopped.


#: Exit status of a run in which some sequences failed.
SOME_FAILED = 3
#: What a run may be told on the command line of its tables, and of how the work is done; Python
#: takes the others, too.
_HOW = (
    *("device", "dtype", "engine", "workers", "batch_size", "trust_remote_code"),
    *("sequence_timeout", "address", "resources", "file_minutes"),
)
_TABLES = (
    *("measures", "settings", "mask", "seed", "limit", "max_length", "truncate", "column"),
    *("pair_column", "revision", "block_size"),
)
#: Exit status after Ctrl-C, as shells have it.
INTERRUPTED = 130


@dataclass(frozen=True)
class RunArguments:
    """What a run is of and where it is: a new one, or one that was stopped.

    Options:
        model NAME (--model, -m): Hub name, folder or embedded model.
        data DATA (--data, -d): File, folder, pattern or named data set.
        out RUN (--out, -o): New folder (or fsspec URL) for the run.
        resume RUN: Finish the run in this folder; it knows its options.
        quiet (--quiet, -q): Print no progress.
    """

    model: str | None = None
    data: str | None = None
    out: str | None = None
    resume: str | None = None
    quiet: bool = False

    def do(
        self,
        begin: Callable[..., Run],
        go_on: Callable[..., Run],
        noun: str,
        options: Mapping[str, Any],
    ) -> Run:
        """Do a new run, or go on with one; Ctrl-C says how to go on, and exits with 130.

        `noun` is what the command calls its runs; the command is called like the function `begin`.
        """
        place, is_new = self.resume or self.out or "", self.resume is None
        require(
            (self.out is not None) == is_new,
            f"give --out for a new {noun} or --resume for one that was stopped",
        )
        needed = "--data" if noun == "run" else "--model, --data"
        given = self.model is not None and self.data is not None
        require(given or not is_new, f"a new {noun} needs {needed} and --out")
        try:
            with shown_progress(self.quiet) as shown, warnings.catch_warnings():
                warnings.simplefilter("ignore", SomeFailedWarning)  # `report_run` says it
                call, model, data = begin if is_new else go_on, self.model, self.data
                return call(model=model, data=data, out=place, progress=shown, **options)
        except KeyboardInterrupt:
            print(_stopped(place, begin.__name__), file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None


def run_command(
    *,
    arguments: RunArguments,
    options: Annotated[dict[str, Any], Fields(of=(RunOptions,), only=_TABLES)],
    execution: Annotated[dict[str, Any], Fields(of=(Execution,), only=_HOW)],
) -> None:
    """Measure every sequence of a corpus; stop and resume at any time.

    A sequence that cannot be analysed is a row of the table `failures`; the exit status is 3 then.

    Example: normlens run --model minilm --data sample --out my-run && normlens query my-run
    "SELECT layer, avg(ratio) FROM mixing GROUP BY layer"

    Often: model data out resume measures limit max_length column device workers

    Options:
        model NAME (--model, -m): Hub name, local folder, or embedded model. Default: minilm.
    """
    if arguments.resume is None:
        arguments = replace(arguments, model=arguments.model or DEFAULT)
    check_needs(arguments.model, execution=execution)

    from normlens.corpus.runs import runs

    given = {**options, **execution}
    report_run(arguments.do(runs.run, runs.resume, "run", given), arguments.quiet)


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
        raise RunError(f"files of {run.folder} vanished; compute them again with --resume")
    if status.failures:
        print(failures_told(run.folder, status.failures, status.done), file=sys.stderr)
        raise typer.Exit(SOME_FAILED)
    if not quiet:
        print(f"{status.done} sequences are done, none failed: {run.folder}", file=sys.stderr)


# ``normlens status``, ``check`` and ``query``: what a run's folder holds.


#: Exit status of a check that found something.
NOT_SOUND = 1
SHOWN_ROWS = 40


def status_command(run: str, *, watch: bool = False, as_json: bool = False) -> None:
    """How far a run is: done, left, rate, failures, workers, and where the time goes.

    Example: normlens status my-run

    Options:
        watch (--watch, -w): Go on showing it until the run ends.
    """
    from normlens.corpus.runs.results import Run

    opened = Run.open(run)
    if watch:
        watch_run(opened, as_json)
    else:
        _print(opened.status(), as_json)


def check_command(run: str | None = None, *, as_json: bool = False) -> None:
    """Read all files of a run: which are missing, damaged or stray? One line for each; the exit
    status is 1 if there is one. Without a run: versions, devices, models, and a check of the
    numbers that this machine computes.

    In the list: A run's files: missing, damaged or stray? Without a run: the installation.

    Example: normlens check my-run
    """
    if run is None:
        _check_installation()
        return

    from normlens.corpus.runs.results import Run

    result = Run.open(run).check()
    _print(result, as_json)
    if not result.sound:
        raise typer.Exit(NOT_SOUND)


def _check_installation() -> None:
    """Print what is installed, and compare tiny models' maps with a materialised computation."""
    from normlens.loading import doctor

    for section, facts in doctor.installation().items():
        print_table(section.capitalize(), ("", ""), facts.items(), left=(0, 1))
    checks = doctor.self_check()
    rows = []
    for check in checks:
        numbers = f"{check.completeness:.1e}", f"{check.difference:.1e}"
        rows.append([check.model_type, *numbers, "ok" if check.passed else "FAILED"])
    title = "Self-check: tiny models against a materialised computation in float64"
    print_table(title, ("model", "completeness", "difference", "result"), rows)
    if not all(check.passed for check in checks):
        _note(
            "error: the self-check failed: maps on this machine cannot be trusted; reinstall "
            "normlens and torch, and report this output if it stays"
        )
        raise typer.Exit(NOT_SOUND)


def query_command(
    run: str,
    sql: str | None = None,
    *,
    csv: bool = False,
    as_json: bool = False,
    out: Path | None = None,
    force: bool = False,
    measures: str | None = None,
) -> None:
    """Ask a run's tables in SQL (DuckDB).

    Example: normlens query my-run
    "SELECT scope_a, scope_b, avg(rho) FROM similarity GROUP BY ALL" --csv

    Options:
        sql SQL: A query over the run's tables. Without: the tables, and examples.
        csv: As CSV.
        as_json (--json): As JSON, a row per object.
        out FILE (--out, -o): .csv, .json, .jsonl or .parquet.
        measures LIST: Your own measures (module:name) that merge tables.
    """
    from normlens.corpus.runs.results import Run

    named = sql is not None or re.match(r"(select|with|from)\s", run.strip(), re.I) is None
    require(named, f'query asks a run: normlens query RUN "{run}"')
    if sql is not None:
        check_installed(TABLES)
    opened = Run.open(run, measures=measures)
    if sql is None:
        _print_tables(run, opened.manifest.tables, as_json)
        return
    tables = opened.snapshot()
    if not tables.complete:
        _note(f"note: only blocks that are done answer; see: normlens status {run}")
    if out is not None:
        tables.export(sql, out, overwrite=force)
        return
    frame = tables.sql(sql)
    if csv:
        write_csv(frame, sys.stdout)
    elif as_json:
        print(frame.to_json(orient="records", indent=1, double_precision=15))
    else:
        words = [place for place, dtype in enumerate(frame.dtypes) if dtype.kind not in "iuf"]
        rows = (map(_cell, row) for row in frame.head(SHOWN_ROWS).itertuples(index=False))
        print_table("", map(str, frame.columns), rows, left=words)
        if len(frame) > SHOWN_ROWS:
            _note(f"{SHOWN_ROWS} of {len(frame)} rows; --csv, --json or --out give all")


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print(result: Any, as_json: bool) -> None:
    print(json.dumps(result.as_json(), indent=1) if as_json else result)


def _print_tables(run: str, tables: Mapping[str, Mapping[str, Any]], as_json: bool) -> None:
    """List a run's tables with their columns, and questions that they answer."""
    columns = {table: list(described["columns"]) for table, described in tables.items()}
    asks = re.compile(rf"FROM ({'|'.join(columns)})\b")
    examples = {question: sql for question, sql in EXAMPLES.items() if asks.search(sql)}
    if as_json:
        queries = [{"question": question, "sql": sql} for question, sql in examples.items()]
        print(json.dumps({"tables": columns, "examples": queries}, indent=1))
        return
    for table, names in columns.items():
        print(f"{table}({', '.join(names)})")
    for question, sql in examples.items():
        print(f"\n# {question}\nnormlens query {shlex.quote(run)} {shlex.quote(sql)}")
