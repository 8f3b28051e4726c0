"""The folder of a reproduction, its experiments, and the numbers that the papers report."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from normlens.corpus.runs.folder import TEMPORARY
from normlens.corpus.runs.manifest import NAME
from normlens.corpus.runs.results import Run
from normlens.errors import (
    InputError,
    OutputError,
    parse_json,
    system_reason,
)
from normlens.studies.papers.settings import KINDS, Settings
from normlens.studies.reports import contents
from normlens.studies.reports.contents import Result
from normlens.studies.reports.words import Comparison, Published

# The numbers that the papers report, and a run's numbers beside them.


@cache
def published() -> tuple[Published, ...]:
    """Read all numbers in the package's data file."""
    contents = json.loads((files("normlens.studies.papers") / "published.json").read_text("utf-8"))
    return tuple(
        Published(key, **entry, **{name: group[name] for name in group if name != "values"})
        for group in contents["groups"]
        for key, entry in group["values"].items()
    )


def compare(
    prefix: str, measured: Mapping[str, float], model: Mapping[str, Any], data: str
) -> list[Comparison]:
    """Set each published number whose key begins with `prefix` beside the measured one.

    Of several published models, the run's model is taken, or the first one if it is not among them.
    `model` is described as in a run's manifest; `data` is the data set's short name.
    """
    entries = [entry for entry in published() if entry.key.startswith(prefix)]
    of_this_model = [entry for entry in entries if _same_model(entry.model, str(model["name"]))]
    shown = of_this_model or [entry for entry in entries if entry.model == entries[0].model]
    return [
        Comparison(
            published=entry,
            measured=measured.get(entry.key),
            same=bool(of_this_model) and entry.data in (None, data),
        )
        for entry in shown
    ]


def _same_model(ours: str, theirs: str) -> bool:
    """Compare hub names without their owner: google-bert/bert-base-uncased is bert-base-uncased."""
    return ours.lower().rpartition("/")[2] == theirs.lower().rpartition("/")[2]


# The folder of a reproduction: its settings file and the names of its parts.


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
        temporary.write_text(
            json.dumps(settings.as_json(), indent=1, ensure_ascii=False) + "\n", "utf-8"
        )
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


# An experiment of a paper: what it reads, and the function that answers its question.


@dataclass(frozen=True, kw_only=True)
class Evidence(contents.Evidence):
    """The data an experiment reads, with the settings of the reproduction."""

    settings: Settings


@dataclass(frozen=True, kw_only=True)
class Experiment(contents.Experiment):
    """One experiment of a paper: its question, and the function that answers it.

    `needs` says what it looks at: "masked" or "plain" runs, or the "model" alone. `work` gives
    None where it does not apply (a model without that component, data without entities); `absent`
    says why.
    """

    needs: str
    work: Callable[[Evidence], Result | None]
