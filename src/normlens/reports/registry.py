"""Which room builds the report of a folder, as the folder's settings say."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from normlens.json_text import parse_json

SETTINGS = "settings.json"
#: The function that builds a report, by what the settings say that it is of.
BUILDERS = {"ablation": "normlens.ablation.report.reporting:build_report"}
PAPERS = "normlens.papers.reporting:build_report"


def builder(folder: str | os.PathLike[str]) -> Callable[[str | os.PathLike[str]], Path]:
    """The function that builds a folder's report; that of the papers unless the settings say."""
    module, _, name = BUILDERS.get(_kind(Path(folder) / SETTINGS), PAPERS).partition(":")
    return getattr(import_module(module), name)


def _kind(settings: Path) -> str:
    try:
        contents = parse_json(settings.read_text("utf-8"))
        return str(contents["report"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""
