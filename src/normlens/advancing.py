"""How far a computation is: what a user's function is called with."""

from __future__ import annotations

from collections.abc import Callable

#: Called with the layers done and the layers asked for; what it raises ends the computation.
Progress = Callable[[int, int], None]


def by_layers(progress: Progress | None, layers: int) -> Callable[[float], None] | None:
    """A function of the part that is done, from 0 to 1, that tells it in layers."""
    if progress is None:
        return None
    return lambda part: progress(int(part * layers), layers)
