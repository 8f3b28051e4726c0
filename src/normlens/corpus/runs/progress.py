"""How far a run is: a bar in a terminal or a notebook, lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any, TextIO

LINE_EVERY = 10.0  # seconds


class Progress:
    """Says nothing; the base of those that do."""

    def say(self, text: str) -> None:
        """Print a line about what happens next."""

    def start(self, total: int, done: int) -> None:
        """Begin with `total` sequences, of which `done` were done before."""

    def advance(self, sequences: int, failures: int) -> None:
        """Count finished sequences, and how many of them failed."""

    def stop(self) -> None:
        """End the display."""


class Lines(Progress):
    """Plain lines, for log files."""

    def __init__(self, stream: TextIO, every: float = LINE_EVERY):
        self.stream, self.every = stream, every
        self.total = self.before = self.done = self.failures = 0
        self.started = self.said = time.monotonic()

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def start(self, total: int, done: int) -> None:
        self.total, self.before, self.done = total, done, done
        self.started = self.said = time.monotonic()
        self.say(f"{done}/{total} sequences are done")

    def advance(self, sequences: int, failures: int) -> None:
        self.done += sequences
        self.failures += failures
        now = time.monotonic()
        if now - self.said >= self.every or self.done == self.total:
            self.said = now
            self.say(self.line(now))

    def line(self, now: float) -> str:
        rate = (self.done - self.before) / max(now - self.started, 1e-9)
        left = clock((self.total - self.done) / rate) if rate else "?"
        failed = f", {self.failures} failed" if self.failures else ""
        return f"{self.done}/{self.total} sequences, {rate:.1f}/s, {left} left{failed}"


class Bar(Progress):
    """A bar with rate and time left."""

    def __init__(self, stream: TextIO):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.failures = 0
        self.task: Any = None
        self.bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(file=stream),
        )
        self.bar.start()

    def say(self, text: str) -> None:
        self.bar.console.print(text, markup=False, highlight=False)

    def start(self, total: int, done: int) -> None:
        self.before, self.done, self.started = done, done, time.monotonic()
        self.task = self.bar.add_task("sequences", total=total, completed=done, rate="")

    def advance(self, sequences: int, failures: int) -> None:
        self.done += sequences
        self.failures += failures
        rate = (self.done - self.before) / max(time.monotonic() - self.started, 1e-9)
        failed = f", {self.failures} failed" if self.failures else ""
        self.bar.update(self.task, completed=self.done, rate=f"{rate:.1f}/s{failed}")

    def stop(self) -> None:
        self.bar.stop()


class NotebookBar(Progress):
    """A bar in a notebook's cell, and what came of the run when it ends."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.failures = 0
        self.started = time.monotonic()

    def start(self, total: int, done: int) -> None:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        if done >= total:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without ipywidgets it is a bar of characters
            self.bar = tqdm(total=total, initial=done, unit="sequence", desc="sequences")

    def advance(self, sequences: int, failures: int) -> None:
        self.failures += failures
        self.bar.update(sequences)
        if self.bar.n >= self.bar.total:
            self.stop()
            took = clock(time.monotonic() - self.started)
            print(f"{self.bar.n} sequences, {self.failures} failed, in {took}")

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.close()


def for_caller() -> Progress:
    """What a call in Python shows unless told otherwise: a bar in a notebook, elsewhere nothing."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return NotebookBar() if hasattr(running, "kernel") else Progress()


def for_stream(quiet: bool, stream: TextIO | None = None) -> Progress:
    """Choose what suits a stream: stderr by default."""
    stream = sys.stderr if stream is None else stream
    if quiet:
        return Progress()
    return Bar(stream) if stream.isatty() else Lines(stream)


def clock(seconds: float) -> str:
    """Write seconds as 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
