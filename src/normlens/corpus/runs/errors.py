"""What can go wrong with a run as a whole."""

from __future__ import annotations

from normlens.errors import NormLensError


class RunError(NormLensError):
    """A run that cannot be started, resumed or read."""
