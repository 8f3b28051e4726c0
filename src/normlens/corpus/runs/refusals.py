"""Reasons to refuse a run before it starts or goes on."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normlens.corpus.data.formats import has_target
from normlens.corpus.data.readers import NAME as IN_MEMORY
from normlens.corpus.data.records import Data, sha256_of
from normlens.corpus.runs import manifest as manifests
from normlens.corpus.runs.folder import OBJECT, TEMPORARY, Folder, RunError
from normlens.corpus.runs.ledger import SIDE_FILES
from normlens.corpus.runs.manifest import Manifest
from normlens.corpus.runs.merging import code_named
from normlens.corpus.runs.options import RunOptions
from normlens.errors import InputError, OutputError
from normlens.loading.hub import is_cached, is_embedded, is_local

#: Settings of measures that name a file, whose checksum the manifest has among their options.
FILES = (("alignment", "gold"),)


def check_free(folder: Folder) -> None:
    """Refuse a folder that holds anything else."""
    names = folder.names()
    if manifests.NAME in names:
        raise RunError(
            f"{str(folder)!r} holds a run already; finish it with normlens run --resume {folder}, "
            "or choose another --out"
        )
    # The manifest comes before everything else but the lock.
    foreign = [name for name in names if name not in SIDE_FILES and not name.endswith(TEMPORARY)]
    if foreign:
        raise OutputError(
            f"{str(folder)!r} holds other files ({foreign[0]!r}); give --out a new folder"
        )


def check_targets(model: Mapping[str, Any], data: Data) -> None:
    """Refuse sources without any target for an encoder–decoder that cannot generate them."""
    if model.get("generates", True) or any(has_target(record) for record in data):
        return
    raise InputError(
        f"{data.name!r} has no targets, and {model['name']} has no head that could generate them; "
        "give pairs (source ||| target, or --pair-column), or a model with its head"
    )


def check_named(folder: Folder, options: RunOptions, measures: bool, settings: bool) -> None:
    """Refuse to import code that a run's options name unless the user names it too."""
    user_measures = [name for name in options.measures if ":" in name]
    functions = any(code_named(given) for given in options.settings.values())
    if (not user_measures or measures) and (not functions or settings):
        return
    again = [f"--measures {','.join(options.measures)}"] if user_measures else []
    for measure, given in options.settings.items() if functions else ():
        for name, value in given.items():
            text = value if isinstance(value, str) else json.dumps(value)
            again.append(f"--set {shlex.quote(f'{measure}.{name}={text}')}")
    raise InputError(
        f"{str(folder)!r} takes code of your own, which is imported only if you name it: add "
        f"{' '.join(again)}"
    )


def check_model_is_here(folder: Folder, options: RunOptions) -> None:
    """Refuse to fetch a model from the hub because a run's files name it."""
    name = options.model
    if is_embedded(name) or is_local(name) or is_cached(name, options.revision):
        return
    raise InputError(
        f"{str(folder)!r} names a model that is not on this machine, and a model is fetched from "
        f"the hub only if you name it: add --model {shlex.quote(name[:200])}"
    )


def check_files(folder: Folder, manifest: Manifest) -> None:
    """Refuse files that the settings of a run's measures name unless they are the run's.

    Whoever wrote the run's files may have named any file, so they are compared before they are
    read.
    """
    for measure, option in FILES:
        path = manifest.options.settings.get(measure, {}).get(option)
        if path is None:
            continue
        recorded = manifest.measures.get(measure, {}).get("options", {}).get(option)
        try:
            file = Path(str(path)).expanduser()
            same = file.is_file() and f"sha256:{sha256_of(file)}" == recorded
        except (OSError, ValueError, RuntimeError):  # a name that no file can have
            same = False
        if not same:
            raise RunError(
                f"cannot resume {str(folder)!r}: {str(path)[:200]!r} is not the file ({option}) "
                "that the run began with; put that one back, or start a new run with another --out"
            )


def check_objects(options: RunOptions, model: bool, data: bool) -> None:
    """Refuse to go on without the objects that a run was given, which no name can bring back."""
    lacking = [
        f"{name}=…"
        for name, given, is_object in (
            ("model", model, options.model.endswith(OBJECT)),
            ("data", data, options.data == IN_MEMORY),
        )
        if is_object and not given
    ]
    if lacking:
        raise InputError(
            "this run was given objects, so pass the same again in Python: "
            f"normlens.resume(out, {', '.join(lacking)})"
        )
