"""Names of models and data as a run keeps them, which hold from any folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normlens.lens import Lens


#: What stands behind the name of a model that was passed as an object.
OBJECT = " (an object)"


def model_name(model: str | os.PathLike[str] | Lens) -> str:
    """What a run calls a model: a folder absolutely, everything else as it is given."""
    if not isinstance(model, (str, os.PathLike)):
        return model.source
    name = os.fspath(model)
    # A folder without a model may happen to be called like one that is not a folder.
    no_model = os.path.isdir(name) and not any(
        os.path.isfile(os.path.join(name, file)) for file in ("config.json", "adapter_config.json")
    )
    return name if no_model else fixed_path(name)


def fixed_path(spec: str | os.PathLike[str]) -> str:
    """A path made absolute, so that a run can be resumed from another folder; names as they are."""
    text = os.fspath(spec)
    prefix, separator, rest = text.partition(":")
    if separator and not Path(text).exists() and prefix.isalnum() and "//" not in rest:
        return f"{prefix}:{_absolute(rest)}"  # a data set's name with a local file
    return _absolute(text)


def shown_data(name: str) -> str:
    """What reports call a data set: its file or pattern without the folders that lead to it."""
    prefix, separator, rest = name.partition(":")
    if separator and prefix.isalnum() and not rest.startswith("//"):
        return f"{prefix}:{Path(rest).name or rest}"
    return Path(name).name if Path(name).is_absolute() else name


def _absolute(text: str) -> str:
    path = Path(text).expanduser()
    if path.exists() or (any(mark in text for mark in "*?[") and path.parent != Path(".")):
        return str(path.absolute())
    return text
