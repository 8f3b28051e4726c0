"""``normlens help``: pages that are installed with the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markdown import Markdown

from normlens.cli.common import add_row, console_for, new_table, print_table
from normlens.errors import InputError

if TYPE_CHECKING:
    from importlib.abc import Traversable


# Pages that are installed with the package: each kind of error, and what errors refer to.
#
# A page about errors lies in ``errors/``, named like its class. The others are pages of the site
# that pyproject.toml puts into the wheel; in a checkout they are read where they are written.


_CHECKOUT = Path(__file__).resolve().parents[3] / "docs"
#: Pages of the site that a wheel holds, too; pyproject.toml names the same.
SITE_PAGES = ("adapters", "corpus", "glossary", "limits", "loading")


def topics() -> dict[str, str]:
    """Every page's name with its first line."""
    pages = {name: page for name in SITE_PAGES if (page := _site_page(name)) is not None}
    listed = {**pages, **_error_pages()}
    return {name: _title(page.read_text(encoding="utf-8")) for name, page in listed.items()}


def page(topic: str) -> str:
    """The Markdown of a page; capitals do not matter."""
    for name, place in _error_pages().items():
        if name.lower() == topic.lower():
            return place.read_text(encoding="utf-8")
    wanted = topic.lower()
    place_of_page = _site_page(wanted) if wanted in SITE_PAGES else None
    if place_of_page is None:
        raise InputError(f"there is no page about {topic!r}; choose one of: {', '.join(topics())}")
    return place_of_page.read_text(encoding="utf-8")


def _error_pages() -> dict[str, Traversable]:
    folder = resources.files("normlens") / "help" / "errors"
    pages = (place for place in folder.iterdir() if place.name.endswith(".md"))
    return {place.name.removesuffix(".md"): place for place in sorted(pages, key=lambda p: p.name)}


def _site_page(name: str) -> Traversable | None:
    installed = resources.files("normlens") / "help" / f"{name}.md"
    if installed.is_file():
        return installed
    written = _CHECKOUT / f"{name}.md"
    return written if written.is_file() else None


def _title(text: str) -> str:
    """A page's title; of a page about errors, what the error says."""
    lines = [line for line in text.splitlines() if line.strip()]
    heading = next(line for line in lines if line.startswith("# ")).removeprefix("# ")
    following = lines[lines.index(f"# {heading}") + 1]
    return following if heading.endswith("Error") else heading


def help_command(
    topic: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC]", help="A page, or the name of an error's class."),
    ] = None,
) -> None:
    """Pages that need no network: errors with cause and cure, and what errors refer to."""
    console = console_for()
    if topic is not None:
        text = page(topic)
        console.print(Markdown(text) if console.is_terminal else text)
        return
    table = new_table("topic", "about", left=2)
    for name, title in topics().items():
        add_row(table, name, title)
    print_table(console, "normlens help TOPIC prints a page", table)
