"""Report progress to a user's function, or show it as a bar."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

#: Called with the layers done and the layers asked for; what it raises ends the computation.
Progress = Callable[[int, int], None]

#: Seconds before a bar appears that nobody asked for.
DELAY = 2.0


def by_layers(progress: Progress | None, layers: int) -> Callable[[float], None] | None:
    """A function of the part that is done, from 0 to 1, that tells it in layers."""
    if progress is None:
        return None
    return lambda part: progress(int(part * layers), layers)


@contextmanager
def layers_shown(progress: Progress | bool | None, device: str) -> Iterator[Progress | None]:
    """The function to tell of each layer: a user's, or that of a bar (tqdm's).

    True is a bar at once. None is one where somebody looks on (a terminal or a notebook), for work
    on a CPU that takes longer than `DELAY`: on a GPU layers are not waited for, and a call that is
    recorded goes through all of them at once.
    """
    if callable(progress):
        yield progress
        return
    bar = None
    if progress or (progress is None and device == "cpu" and _is_watched()):
        with suppress(ImportError), warnings.catch_warnings():  # transformers brings tqdm along
            warnings.simplefilter("ignore")  # without ipywidgets it is a bar of characters
            from tqdm.auto import tqdm  # type: ignore[import-untyped]

            bar = LayerBar(tqdm, 0.0 if progress else DELAY)
    try:
        yield bar
    finally:
        if bar is not None and bar.shown is not None:
            bar.shown.close()


class LayerBar:
    """A bar of layers, in a terminal or a notebook; it begins anew with every batch."""

    def __init__(self, tqdm: Callable[..., Any], delay: float):
        # A bar that nobody asked for goes when it is done.
        options = {"unit": "layer", "desc": "layers", "delay": delay, "leave": not delay}
        self._make = partial(tqdm, **options)
        self.shown: Any = None
        self._batch = 1

    def __call__(self, done: int, total: int) -> None:
        if self.shown is None:
            self.shown = self._make(total=total)
        if done <= self.shown.n and done < total:
            self._batch += 1
            self.shown.set_description(f"layers of batch {self._batch}", refresh=False)
            self.shown.reset(total=total)
        self.shown.update(done - self.shown.n)


def _is_watched() -> bool:
    """Whether somebody sees what is printed: a terminal, or a notebook."""
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and hasattr(running, "kernel")
