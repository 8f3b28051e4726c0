"""The driver of all studies: load the model once, do or resume the runs, read and write settings.

`normlens.evaluate` and `normlens.align` are runs of one measure in a folder of their own
(`one_measure`). `normlens.ablate` and `normlens.reproduce` keep several runs under a folder with a
settings file (`Runs`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from normlens.corpus.data.records import Data
from normlens.corpus.runs.choice import check_free
from normlens.corpus.runs.folder import TEMPORARY, model_name, open_folder
from normlens.corpus.runs.manifest import NAME as MANIFEST
from normlens.corpus.runs.manifest import settings_again
from normlens.corpus.runs.options import code_named
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.results import Run
from normlens.corpus.runs.runs import resume, run
from normlens.errors import InputError, OutputError, system_reason
from normlens.lens import Lens
from normlens.loading.load import load
from normlens.studies.reports.files import SETTINGS

if TYPE_CHECKING:
    from normlens._keywords import ExecutionKeywords

GivenModel: TypeAlias = "str | os.PathLike[str] | Lens"
GivenData: TypeAlias = str | os.PathLike[str] | Data

# The model of a study, loaded once where one process does all the work.


def is_here(execution: Mapping[str, Any]) -> bool:
    """Whether everything is computed in this process."""
    return (execution.get("engine", "local"), execution.get("workers", 1)) == ("local", 1)


def loaded(
    model: GivenModel, execution: Mapping[str, Any], revision: str | None = None, **how: Any
) -> Lens:
    """Load the model as a lens; `how` overrides the execution's options."""
    if isinstance(model, Lens):
        return model
    names = ("device", "dtype", "trust_remote_code")
    given = {name: execution[name] for name in names if name in execution}
    return load(model_name(model), revision=revision, **given | how)


# Runs of one measure: evaluations and alignments.


class Planned(NamedTuple):
    """Model, settings and options of a new run."""

    model: GivenModel
    settings: dict[str, Any]  # of the measure
    options: dict[str, Any]  # of the run


def one_measure(
    measure: str,
    what: str,
    out: str | os.PathLike[str],
    model: GivenModel | None,
    data: GivenData | None,
    given: Mapping[str, Any],
    of_run: dict[str, Any],
    progress: Progress | None,
    plan: Callable[[GivenModel, GivenData], Planned] | None,
) -> Run:
    """Start a run of this measure in `out`, or resume the one there.

    `plan` settles a new run before anything long starts; without it there must be one to finish.
    `given` are settings that are given again and must be those that the run was begun with; `what`
    calls the run in errors.
    """
    folder = open_folder(out)
    named: dict[str, Any] = {"measures": (measure,), "progress": progress}
    if plan is not None and MANIFEST not in folder.names():
        check_free(folder)
        assert model is not None
        assert data is not None
        planned = plan(model, data)
        settings = {measure: planned.settings}
        return run(planned.model, data, out, settings=settings, **named, **planned.options)
    settings = settings_again(folder, measure, what, given)
    for option, names in code_named(settings).items():
        if option not in given:
            own = f"--{option} {','.join(settings[option] or names)}"
            raise InputError(f"{str(folder)!r} takes code of your own; name it: {own}")
    settings = {measure: settings}
    return resume(folder.url, model=model, data=data, settings=settings, **named, **of_run)


# Several runs in one folder: reproductions and ablations.


class Runs:
    """Start or resume the runs of a folder with one model."""

    def __init__(
        self,
        model: GivenModel,
        revision: str | None,
        execution: ExecutionKeywords | None,
        progress: Progress | None,
    ):
        self.execution, self.progress = execution or {}, progress or Progress()
        self.here = is_here(self.execution)
        self.lens = loaded(model, self.execution, revision)
        #: the lens, unless other processes load their own
        self.model = self.lens if self.here else model
        self.revision = None if self.here else revision
        of_the_lens = ("device", "dtype", "trust_remote_code") if self.here else ()
        #: how a run is done
        self.how = {name: v for name, v in self.execution.items() if name not in of_the_lens}

    def do(
        self, folder: Path, said: str, new: Mapping[str, Any], again: Mapping[str, Any] = {}
    ) -> Run:
        """Start a run with the options `new`, or resume one with the options `again`."""
        self.progress.say(f"{said}: {folder}")
        common: dict[str, Any] = {"model": self.model, "progress": self.progress, **self.how}
        if (folder / MANIFEST).is_file():
            return resume(folder, **again, **common)
        return run(out=folder, revision=self.revision, **new, **common)


def is_begun(folder: Path) -> bool:
    """Whether the folder holds a study's settings; one with other files is refused."""
    if (folder / SETTINGS).is_file():
        return True
    if folder.is_dir() and any(folder.iterdir()):
        raise OutputError(f"{str(folder)!r} holds other files; give --out a new folder")
    return False


def save_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings atomically."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{SETTINGS}{TEMPORARY}"
        temporary.write_text(json.dumps(settings, indent=1, ensure_ascii=False) + "\n", "utf-8")
        temporary.replace(folder / SETTINGS)
    except OSError as error:
        raise OutputError(f"cannot write to {str(folder)!r}: {system_reason(error)}") from error
