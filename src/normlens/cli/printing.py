"""Tables and signs of life, on a terminal or in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


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
