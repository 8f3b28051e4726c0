"""``normlens help``: pages that are installed with the package."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markdown import Markdown

from normlens import help as pages
from normlens.cli.printing import add_row, console_for, new_table, print_table


def help_command(
    topic: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC]", help="A page, or the name of an error's class."),
    ] = None,
) -> None:
    """Pages that need no network: errors with cause and cure, and what errors refer to."""
    console = console_for()
    if topic is not None:
        text = pages.page(topic)
        console.print(Markdown(text) if console.is_terminal else text)
        return
    table = new_table("topic", "about", left=2)
    for name, title in pages.topics().items():
        add_row(table, name, title)
    print_table(console, "normlens help TOPIC prints a page", table)
