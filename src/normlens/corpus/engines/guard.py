"""Calling code that may hang or exit: a user's measures, and models with code of their own."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

from normlens.errors import NormLensError, reason_of

#: Tokens up to which a sequence has the plain limit; longer ones have more, by their square.
SHORT = 128
#: How much longer than another step a measure may take that runs the model itself, often.
RUNS = 10
#: Seconds after which code that caught the interruption is interrupted again.
AGAIN = 1.0
T = TypeVar("T")


class Unfinished(NormLensError):
    """The work on a sequence has ended without a result."""


class TookTooLong(BaseException):
    """Raised inside code that takes too long; no `Exception`, which that code might handle."""


@dataclass(frozen=True)
class Late:
    """A sequence that has been at work for longer than it may."""

    index: int
    reason: str


@dataclass(frozen=True)
class _AtWork:
    index: int
    seconds: float  # that it may take
    until: float


class Guard:
    """Calls code on behalf of a sequence: it may take so many `seconds`, and cannot exit.

    In the main thread an alarm interrupts code that takes longer, as soon as it is back in Python.
    No other thread can be interrupted; there, `late` tells whoever can end the process.
    """

    def __init__(self, seconds: float | None = None):
        self.seconds = seconds or 0.0
        self._at_work: dict[int, _AtWork] = {}  # by thread
        self._rings = False  # whether the main thread's alarm is meant

    def call(self, work: Callable[[], T], index: int = 0, lengths: Sequence[int] = ()) -> T:
        """What `work` returns for sequences of these lengths, of which `index` is the first.

        Whatever else ends it is raised as an `Exception`; only Ctrl-C passes.
        """
        thread, seconds = threading.current_thread(), self.allowed(lengths)
        in_main_thread = thread is threading.main_thread()
        before: Any = None
        try:
            if seconds:
                until = time.monotonic() + seconds
                self._at_work[threading.get_ident()] = _AtWork(index, seconds, until)
                # Somebody else's alarm is left alone.
                if in_main_thread and not signal.getitimer(signal.ITIMER_REAL)[0]:
                    before = signal.signal(signal.SIGALRM, self._ring) or signal.SIG_DFL
                    self._rings = True
                    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
            return work()
        except BaseException as error:
            if in_main_thread:
                self._rings = False  # before any call, in which it could ring once more
            ordinary = isinstance(error, Exception)
            if ordinary or (isinstance(error, KeyboardInterrupt) and in_main_thread):
                raise
            if isinstance(error, TookTooLong):
                raise Unfinished(_too_long(seconds)) from None
            raise Unfinished(_ended_by(error)) from error
        finally:
            if in_main_thread:
                self._rings = False
            if before is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
            self._at_work.pop(threading.get_ident(), None)

    def allowed(self, lengths: Sequence[int]) -> float:
        """Seconds that sequences of so many tokens may take together; 0: as many as they like."""
        return self.seconds * sum(max(1.0, (length / SHORT) ** 2) for length in lengths)

    def late(self) -> Late | None:
        """A sequence that takes too long, in whichever thread."""
        now = time.monotonic()
        for work in list(self._at_work.values()):
            if now > work.until:
                return Late(work.index, _too_long(work.seconds))
        return None

    def longest(self) -> float:
        """Seconds that what is at work may take, and a short sequence at least."""
        return max([self.seconds, *(work.seconds for work in list(self._at_work.values()))])

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._rings:
            raise TookTooLong


def _too_long(seconds: float) -> str:
    return f"it took longer than {seconds:g} s (sequence_timeout)"


def _ended_by(error: BaseException) -> str:
    said = "" if not str(error) else f" ({reason_of(error)})"
    return f"it ended with {type(error).__name__}{said} instead of a result"
