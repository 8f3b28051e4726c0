"""What can go wrong with a run as a whole."""

from __future__ import annotations

from normlens.errors import NormLensError


class RunError(NormLensError):
    """A run that cannot be started, resumed or read."""


def another_manifest(folder: object, name: str) -> RunError:
    """The manifest was exchanged, or two runs are mixed."""
    return RunError(
        f"{name} in {str(folder)!r} belongs to another manifest.json than the one that lies there; "
        "put the run's own back"
    )
