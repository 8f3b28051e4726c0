"""The directive ``command-reference``: every command with its arguments and options, as typer has
them."""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from normlens.cli import app as command_line


class CommandReference(SphinxDirective):
    """A section for each command."""

    def run(self) -> list[nodes.Node]:
        group: Any = typer.main.get_command(command_line)
        text = "\n".join(section(name, command) for name, command in group.commands.items())
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def section(name: str, command: Any) -> str:
    """A command in Markdown: what it does, how it is called, an example, its options."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    call = " ".join([f"normlens {name}", "[OPTIONS]", *map(_placeholder, arguments)])
    about = _escaped(inspect.cleandoc(command.help or ""))
    parts = [f"## `normlens {name}`", about, f"```sh\n{call}\n```"]
    if epilog := getattr(command, "epilog", None):
        example = re.sub(r"^Example:\s*", "", epilog)
        parts.append(f"For example:\n\n```sh\n{example}\n```")
    panels: dict[str | None, list[Any]] = {}
    for option in options:
        panels.setdefault(getattr(option, "rich_help_panel", None), []).append(option)
    if arguments:
        parts.append(_table("argument", [(_placeholder(a), _help(a)) for a in arguments]))
    for panel, listed in panels.items():
        if panel:
            parts.append(f"*{panel}*")
        parts.append(_table("option", [(_flags(o), _help(o)) for o in listed]))
    return "\n\n".join(parts) + "\n"


def _table(what: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| {what} | |", "|---|---|"]
    return "\n".join(lines + [f"| `{left}` | {right} |" for left, right in rows])


def _placeholder(argument: Any) -> str:
    return _cell(argument.metavar or argument.name.upper())


def _flags(option: Any) -> str:
    flags = ", ".join([*option.opts, *option.secondary_opts])
    takes_value = not option.is_flag
    metavar = option.metavar or "VALUE"
    return _cell(f"{flags} {metavar}" if takes_value else flags)


def _help(parameter: Any) -> str:
    help_text = _escaped(" ".join((getattr(parameter, "help", None) or "").split()))
    default = parameter.default
    told = isinstance(default, str | int | float) and not isinstance(default, bool)
    if told and getattr(parameter, "show_default", True) and "Default:" not in help_text:
        help_text = f"{help_text} Default: `{default}`."
    return help_text.strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _escaped(text: str) -> str:
    """A help text whose characters mean nothing in Markdown, with its flags as code."""
    plain = text.replace("\\[", "[")  # as rich has it
    escaped = re.sub(r"([\\`*_\[\]<>|{}])", r"\\\1", plain)
    return re.sub(r"(?<![\w-])(--[a-z][a-z-]+)", r"`\1`", escaped)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("command-reference", CommandReference)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
