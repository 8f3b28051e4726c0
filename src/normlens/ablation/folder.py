"""The folder of an ablation: its settings, the statistics of the first pass, its two runs."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normlens.ablation.options import AblateOptions
from normlens.corpus.runs.folder_base import TEMPORARY
from normlens.corpus.runs.manifest import NAME
from normlens.corpus.runs.results import Run
from normlens.errors import InputError, OutputError, parse_json, system_reason

SETTINGS = "settings.json"
#: What a settings file says it is of, so that a report is built by the right room.
KIND = "ablation"
STATISTICS = "statistics.safetensors"
ABLATION, MAPS = "runs/ablation", "runs/maps"


@dataclass(frozen=True)
class Told:
    """What a report says about the making of the numbers."""

    loss: str
    reference: str  # what the first pass read, in words
    apart: bool  # pairs of texts were run text by text


def save_settings(folder: Path, options: AblateOptions, told: Told) -> None:
    """Write the settings, the whole file or none of it."""
    contents = {"report": KIND, "options": options.as_json(), "told": vars(told)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{SETTINGS}{TEMPORARY}"
        temporary.write_text(json.dumps(contents, indent=1, ensure_ascii=False) + "\n", "utf-8")
        temporary.replace(folder / SETTINGS)
    except OSError as error:
        raise OutputError(f"cannot write to {str(folder)!r}: {system_reason(error)}") from error


def load_settings(folder: str | os.PathLike[str]) -> tuple[AblateOptions, Told]:
    """Read the settings of a folder that `ablate` has made."""
    path = Path(folder) / SETTINGS
    if not path.is_file():
        raise InputError(
            f"{str(folder)!r} holds no ablation; make one with: normlens ablate --model … --data … "
            f"--out {folder}"
        )
    try:
        contents: Any = parse_json(path.read_text("utf-8"))
        if contents.get("report") != KIND:
            raise InputError(f"{str(folder)!r} holds results of another command; give a new --out")
        return AblateOptions.from_json(contents["options"]), Told(**contents["told"])
    except InputError:
        raise
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(f"{str(path)!r} is damaged: {error}") from error


def is_begun(folder: Path) -> bool:
    """Whether the folder holds an ablation; one with other files is refused."""
    if (folder / SETTINGS).is_file():
        return True
    if folder.is_dir() and any(folder.iterdir()):
        raise OutputError(f"{str(folder)!r} holds other files; give --out a new folder")
    return False


def finished_run(folder: Path, name: str) -> Run:
    """Open one of the two runs; one that is not finished is refused."""
    path = folder / name
    again = "run the same normlens ablate again to go on"
    if not (path / NAME).is_file():
        raise InputError(f"{str(folder)!r} holds no {name}; {again}")
    run = Run.open(path)
    status = run.status()
    if not status.complete:
        raise InputError(
            f"{str(path)!r} is not finished ({status.done} of {status.sequences} sequences); "
            + again
        )
    return run
