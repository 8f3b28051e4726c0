"""The directive ``option-fields``: fields of an option dataclass, with flag, default and help."""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, fields
from importlib import import_module
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from normlens.options import option_of


class OptionFields(SphinxDirective):
    """A table with a row for each field: ``normlens.options.AnalysisOptions``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        kind = getattr(import_module(module), name)
        rows = [_row(item) for item in fields(kind)]
        text = "\n".join(["| keyword | default | flag | |", "|---|---|---|---|", *rows])
        return self.parse_text_to_nodes(text)


def _row(item: Field[Any]) -> str:
    option = option_of(item)
    flags = help_text = ""
    if option is not None:
        flags = ", ".join(option.flags or (f"--{item.name.replace('_', '-')}",))
        help_text = re.sub(r"([\\`*_\[\]<>|{}])", r"\\\1", option.help)
    shown = f"`{flags}`" if flags else ""
    return f"| `{item.name}` | {_default(item)} | {shown} | {help_text} |"


def _default(item: Field[Any]) -> str:
    if item.default is not MISSING:
        return f"`{item.default!r}`".replace("|", "\\|")
    return "" if item.default_factory is MISSING else f"`{item.default_factory()!r}`"


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("option-fields", OptionFields)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
