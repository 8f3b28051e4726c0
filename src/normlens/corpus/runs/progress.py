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
    """A bar with rate and time left, on a terminal or (without a stream) in a notebook's cell."""

    def __init__(self, stream: TextIO | None = None):
        self.stream, self.failures = stream, 0
        self.bar: Any = None

    def say(self, text: str) -> None:
        if self.stream is not None:
            print(text, file=self.stream, flush=True)

    def start(self, total: int, done: int) -> None:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without ipywidgets it is a bar of characters
            self.bar = tqdm(total=total, initial=done, unit=" sequences", file=self.stream)

    def advance(self, sequences: int, failures: int) -> None:
        self.failures += failures
        if failures:
            self.bar.set_postfix_str(f"{self.failures} failed")
        self.bar.update(sequences)

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.close()


def for_caller() -> Progress:
    """What a call in Python shows unless told otherwise: a bar in a notebook, elsewhere nothing."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return Bar() if hasattr(running, "kernel") else Progress()


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
