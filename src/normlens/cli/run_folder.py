"""``normlens status``, ``check`` and ``query``: what a run's folder holds."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from normlens.cli.options import ForceOption, JsonOption
from normlens.cli.query_examples import examples_for
from normlens.cli.watch import watch_run
from normlens.corpus.runs.options import FILE_SIZE
from normlens.exports.spreadsheet import write_csv
from normlens.extras import TABLES, check_installed

if TYPE_CHECKING:
    import pandas as pd

#: Exit status of a check that found something.
NOT_SOUND = 1
SHOWN_ROWS = 40

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's folder or URL.")]


def status_command(
    run: RunArgument,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on showing it until the run ends.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """How far a run is: done, left, rate, failures, workers, and where the time goes."""
    from normlens.corpus.runs.results import Run

    opened = Run.open(run)
    if watch:
        watch_run(opened, as_json)
        return
    watched = opened.watched()
    print(json.dumps(watched.as_json(), indent=1) if as_json else watched)


def check_command(
    run: RunArgument,
    as_json: JsonOption = False,
) -> None:
    """Read all files of a run: which are missing, damaged or stray?

    One line for each; the exit status is 1 if there is one.
    """
    from normlens.corpus.runs.results import Run

    result = Run.open(run).check()
    print(json.dumps(result.as_json(), indent=1) if as_json else result)
    if not result.sound:
        raise typer.Exit(NOT_SOUND)


def compact_command(
    run: RunArgument,
    file_size: Annotated[
        float, typer.Option(metavar="MB", help="Size of the files; they have from half to twice.")
    ] = FILE_SIZE,
    as_json: JsonOption = False,
) -> None:
    """Join the files of a run's finished shards: few large ones instead of many small ones.

    A run does this by itself while it goes on. The tables stay the same, bit for bit.
    """
    from normlens.corpus.runs.results import Run

    result = Run.open(run).compact(file_size=file_size)
    print(json.dumps(result.as_json(), indent=1) if as_json else result)


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
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help=".csv, .json, .jsonl or .parquet."),
    ] = None,
    force: ForceOption = False,
    measures: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Your own measures (module:name) that merge tables."),
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
