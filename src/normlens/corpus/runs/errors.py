"""What can go wrong with a run as a whole."""

from __future__ import annotations

from normlens.errors import NormLensError


class RunError(NormLensError):
    """A run that cannot be started, resumed or read."""


class StuckError(RunError):
    """A sequence takes too long in a thread of this process, which cannot be ended."""


class AllFailedError(RunError):
    """No sequence of a run could be analysed."""


class SomeFailedWarning(UserWarning):
    """Some sequences of a run could not be analysed."""


def another_manifest(folder: object, name: str) -> RunError:
    """The manifest was exchanged, or two runs are mixed."""
    return RunError(
        f"{name} in {str(folder)!r} belongs to another manifest.json than the one that lies there; "
        "put the run's own back"
    )
