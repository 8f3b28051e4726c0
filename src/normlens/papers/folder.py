"""A folder of results: what it was asked for, and what its parts are called."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from normlens.corpus.runs.folder import TEMPORARY
from normlens.errors import InputError, OutputError, system_reason
from normlens.json_text import parse_json
from normlens.papers.settings import KINDS, Settings

SETTINGS = "settings.json"
RUNS, MODEL = "runs", "model"


def short_names(data: Sequence[str]) -> dict[str, str]:
    """What reports and folders call each data set: its name, or its file's."""
    found: dict[str, str] = {}
    for spec in data:
        name, _, _ = spec.partition(":")
        short = name if name.isalnum() else Path(spec).stem
        short = "".join(c if c.isalnum() or c in "-_" else "-" for c in short).strip("-") or "data"
        taken, number = short, 2
        while taken in found.values():
            taken, number = f"{short}-{number}", number + 1
        found[spec] = taken
    return found


def load_settings(folder: str | os.PathLike[str]) -> Settings:
    """What a folder of results was asked for."""
    path = Path(folder) / SETTINGS
    if not path.is_file():
        raise InputError(
            f"{str(folder)!r} holds no results; make some with: normlens reproduce "
            f"{'|'.join(KINDS)} --model … --data … --out {folder}"
        )
    try:
        return Settings.from_json(parse_json(path.read_text("utf-8")))
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{str(path)!r} is damaged: {error}") from error


def save_settings(folder: Path, settings: Settings) -> None:
    """Write them, whole or not at all."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{SETTINGS}{TEMPORARY}"
        temporary.write_text(json.dumps(settings.as_json(), indent=1, ensure_ascii=False) + "\n")
        temporary.replace(folder / SETTINGS)
    except OSError as error:
        raise OutputError(f"cannot write to {str(folder)!r}: {system_reason(error)}") from error
