"""Runs of one measure that has a command of its own: finishing one that was stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normlens.corpus.runs.folder import Folder, RunError
from normlens.corpus.runs.manifest import Difference, Manifest, refuse


def settings_again(
    folder: Folder, measure: str, what: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings that a run of this measure was begun with.

    A run of other measures is refused (the folder holds no `what`), and so is a setting that is
    given again with another value.
    """
    options = Manifest.load(folder).options
    settings = options.settings.get(measure)
    if options.measures != (measure,) or settings is None:
        raise RunError(f"{str(folder)!r} holds another run, not {what}; choose another --out")
    refuse(
        folder,
        [
            Difference(f"--{name.replace('_', '-')}", settings.get(name), value)
            for name, value in given.items()
            if value != settings.get(name)
        ],
    )
    return settings
