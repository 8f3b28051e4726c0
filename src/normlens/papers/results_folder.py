"""The folder of a reproduction: its settings file and the names of its parts."""

from __future__ import annotations

import json
import os
from pathlib import Path

from normlens.corpus.runs.folder_base import TEMPORARY
from normlens.corpus.runs.manifest import NAME
from normlens.corpus.runs.results import Run
from normlens.errors import InputError, OutputError, parse_json, system_reason
from normlens.papers.settings import KINDS, Settings

SETTINGS = "settings.json"
#: The folders of the papers' runs and of what comes from the model alone; an optional part has one
#: of its name, with a folder per data set.
RUNS, MODEL = "runs", "model"


def load_settings(folder: str | os.PathLike[str]) -> Settings:
    """Read the settings of a folder that `reproduce` has made."""
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
    """Write the settings, the whole file or none of it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{SETTINGS}{TEMPORARY}"
        temporary.write_text(json.dumps(settings.as_json(), indent=1, ensure_ascii=False) + "\n")
        temporary.replace(folder / SETTINGS)
    except OSError as error:
        raise OutputError(f"cannot write to {str(folder)!r}: {system_reason(error)}") from error


def finished_run(path: Path) -> Run:
    """Open a run of the folder; one that is not there or not finished is refused."""
    again = "run the same normlens reproduce again to go on"
    if not (path / NAME).is_file():
        raise InputError(f"{str(path)!r} holds no run yet; {again}")
    run = Run.open(path)
    status = run.status()
    if not status.complete:
        raise InputError(
            f"{str(path)!r} is not finished ({status.done} of {status.sequences} sequences); "
            + again
        )
    return run
