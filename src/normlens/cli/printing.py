"""Tables and signs of life, on a terminal or in a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from normlens.advancing import Progress

#: Seconds between two lines about progress, where there is no terminal.
LINE_EVERY = 10.0


def console_for(*, stderr: bool = False) -> Console:
    """A terminal, or a pipe whose lines are never broken."""
    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console = Console(stderr=stderr, highlight=False, emoji=False, markup=False, width=1 << 16)
    return console


@contextmanager
def status(message: str, quiet: bool) -> Iterator[None]:
    """A sign of life on a terminal; nothing anywhere else."""
    console = console_for(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(f"{message} …"):
        yield


@contextmanager
def layers_status(message: str, quiet: bool) -> Iterator[Progress | None]:
    """What to tell of each layer: a terminal shows it, elsewhere stderr gets a line now and then.

    Nothing is printed to stdout, and nothing at all about work that is done at once.
    """
    console = console_for(stderr=True)
    if quiet:
        yield None
    elif console.is_terminal:
        with console.status(f"{message} …") as shown:
            yield lambda done, total: shown.update(f"{message}: layer {done} of {total} …")
    else:
        yield _now_and_then(message, console)


def _now_and_then(message: str, console: Console) -> Progress:
    said = time.monotonic()

    def say(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= LINE_EVERY:
            said = time.monotonic()
            console.print(f"{message}: layer {done} of {total}")

    return say


def new_table(*columns: str, left: int = 1) -> Table:
    """A plain table: the first `left` columns are words, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        justify: Any = "left" if index < left else "right"
        table.add_column(Text(column), justify=justify, overflow="fold")
    return table


def print_table(console: Console, title: str, table: Table) -> None:
    # As a table's own title it would be broken at the table's width.
    console.print(Text(f"\n{title}"))
    console.print(table)


def add_row(table: Table, *cells: str) -> None:
    # Tokens such as [CLS] would be taken for markup if they were passed as strings.
    table.add_row(*(Text(cell) for cell in cells))
