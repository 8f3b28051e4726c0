"""The commands ``run``, ``status``, ``check`` and ``query`` of ``normlens``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from normlens.cli.options import DTYPE_HELP
from normlens.corpus.runs import progress
from normlens.corpus.runs.errors import RunError
from normlens.corpus.runs.options import MEASURES, parse_batch_size, parse_measures, parse_settings
from normlens.errors import InputError, NormLensError
from normlens.precisions import PRECISIONS
from normlens.spreadsheet import write_csv
from normlens.wording import listed

# torch and DuckDB take time to import, so only the commands that need them do it.
if TYPE_CHECKING:
    from normlens.corpus.runs.results import Run

#: Exit status of a run in which some sequences failed.
SOME_FAILED = 3
#: Exit status of a check that found something.
NOT_SOUND = 1
#: Exit status after Ctrl-C, as shells have it.
INTERRUPTED = 130
SHOWN_ROWS = 40

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's folder or URL.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")]


@app.command(
    "run",
    epilog="Example: normlens run --model minilm --data sample --out my-run && "
    'normlens query my-run "SELECT layer, avg(ratio) FROM mixing GROUP BY layer"',
)
def run_command(
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
    measures: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help=f"Measures, or your own as module:name. Default: {','.join(MEASURES)}.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="MEASURE.OPTION=VALUE",
            help="An option of a measure, e.g. amplification.axis=target; may be repeated.",
        ),
    ] = None,
    mask: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Mask this share of the tokens; the papers take 0.12."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="The first N sequences only.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens per sequence. Default: 128.")
    ] = None,
    truncate: Annotated[
        bool | None,
        typer.Option(
            "--truncate/--no-truncate",
            help="Take the beginning of longer sequences (default), or count them as failures.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of masks and samples. Default: 0.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column of a table that holds the text.")
    ] = None,
    pair_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column of the second text of a pair.")
    ] = None,
    paragraphs: Annotated[
        bool | None,
        typer.Option("--paragraphs", help="Paragraphs of a .txt file instead of lines."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="REV", help="Branch, tag or commit on the hub.")
    ] = None,
    shard_size: Annotated[
        int | None, typer.Option(metavar="N", help="Sequences per shard. Default: 64.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, mps, …")
    ] = None,
    dtype: Annotated[str | None, typer.Option(metavar="TYPE", help=DTYPE_HELP)] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help=f"Of FF products on a GPU: {listed(PRECISIONS, 'or')}. Default: auto.",
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="local (default) or ray.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes, each with a model. Default: 1.")
    ] = None,
    batch_size: Annotated[
        str | None, typer.Option(metavar="N", help="Sequences at a time. Default: auto.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Ray cluster: auto, ray://host:10001 or local."),
    ] = None,
    gpus_per_worker: Annotated[
        float | None, typer.Option(metavar="N", help="GPUs of a Ray worker; may be a fraction.")
    ] = None,
    trust_remote_code: Annotated[
        bool | None,
        typer.Option("--trust-remote-code", help="Run Python code that the model brings along."),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Measure every sequence of a corpus; stop and resume at any time.

    A sequence that cannot be analysed is a row of the table `failures`; the exit status is 3 then.
    """
    from normlens.corpus.runs import runs

    given: dict[str, Any] = {
        "settings": parse_settings(settings) if settings else None,
        "mask": mask,
        "limit": limit,
        "max_length": max_length,
        "truncate": truncate,
        "seed": seed,
        "column": column,
        "pair_column": pair_column,
        "paragraphs": paragraphs,
        "revision": revision,
        "precision": precision,
        "shard_size": shard_size,
        "device": device,
        "dtype": dtype,
        "engine": engine,
        "workers": workers,
        "batch_size": None if batch_size is None else parse_batch_size(batch_size),
        "address": address,
        "gpus_per_worker": gpus_per_worker,
        "trust_remote_code": trust_remote_code,
        "measures": None if measures is None else parse_measures(measures),
    }
    given = {name: value for name, value in given.items() if value is not None}
    if (out is None) == (resume is None):
        raise InputError("give --out for a new run or --resume for one that was stopped")
    shown = progress.for_stream(quiet)
    try:
        if resume is not None:
            done = runs.resume(resume, model=model, data=data, progress=shown, **given)
        elif model is None or data is None or out is None:
            raise InputError("a new run needs --model, --data and --out")
        else:
            done = runs.run(model, data, out, progress=shown, **given)
    except KeyboardInterrupt:
        shown.stop()
        print(_stopped(resume or out or ""), file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        shown.stop()
    _report(done, quiet)


def _stopped(place: str) -> str:
    from normlens.corpus.runs.results import Run

    try:
        Run.open(place)
    except NormLensError:
        return "stopped before the run began"
    return f"stopped; what is done is kept, go on with: normlens run --resume {place}"


def _report(run: Run, quiet: bool) -> None:
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


@app.command("status", epilog="Example: normlens status my-run")
def status_command(
    run: RunArgument,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """How far a run is: done, left, rate, failures, and where the time goes."""
    from normlens.corpus.runs.results import Run

    status = Run.open(run).status()
    print(json.dumps(status.as_json(), indent=1) if as_json else status)


@app.command("check", epilog="Example: normlens check my-run")
def check_command(
    run: RunArgument,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Read all files of a run: which are missing, damaged or stray?

    One line for each; the exit status is 1 if there is one.
    """
    from normlens.corpus.runs.results import Run

    found = Run.open(run).check()
    print(json.dumps(found.as_json(), indent=1) if as_json else found)
    if not found.sound:
        raise typer.Exit(NOT_SOUND)


@app.command(
    "query",
    epilog='Example: normlens query my-run "SELECT scope_a, scope_b, avg(rho) FROM similarity '
    'GROUP BY ALL" --csv',
)
def query_command(
    run: RunArgument,
    sql: Annotated[
        str | None,
        typer.Argument(metavar="SQL", help="A query over the run's tables. Without: its tables."),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="As CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, a row per object.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help=".csv, .json, .jsonl or .parquet."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite what is there.")] = False,
    measures: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Your own measures (module:name) that merge tables."),
    ] = None,
) -> None:
    """Ask a run's tables in SQL (DuckDB)."""
    from normlens.corpus.runs.results import Run

    found = Run.open(run, measures=measures)
    if sql is None:
        for table, described in found.manifest.tables.items():
            print(f"{table}({', '.join(described['columns'])})")
        return
    tables = found.snapshot()
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


def _print_table(frame: Any) -> None:
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


def _cell(value: Any) -> str:
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))
