"""Analyses from the moment they are asked for until their results are dropped.

Every method may be called from any thread: requests arrive in one, analyses run in another.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from normlens.options import AnalysisOptions
from normlens.serve.limits import Limits

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"


@dataclass(frozen=True)
class Question:
    """The request of an analysis; equal questions of a kind have equal answers."""

    model: str
    text: str
    pair: str | None = None
    rule: str = AnalysisOptions.nonlinearity
    target_text: str | None = None  # of an encoder–decoder; None: the model generates it
    heads: bool = False  # whether maps of single heads are asked for, too

    #: What the answer is.
    answer = "maps"


@dataclass(frozen=True)
class WhyQuestion(Question):
    """Why a model says what it says: asks for an explanation.

    Of an encoder–decoder, `target` is a token of the target text: a word, or its place from 0.
    """

    target: str | int | None = None
    contrast: str | int | None = None
    position: int | None = None

    answer = "an explanation"


@dataclass(frozen=True)
class CosineQuestion(Question):
    """How the tokens of a text and of its pair made their cosine."""

    answer = "a cosine"


@dataclass
class Job:
    """One analysis."""

    id: str
    question: Question
    layers: int
    state: str = QUEUED
    position: int = 0  # analyses ahead of it, the running one included; filled in when asked for
    layers_done: int = 0
    error: str | None = None
    result: bytes | None = None
    started: float = 0.0
    finished: float = 0.0


class QueueFullError(Exception):
    """No more analyses can wait; `seconds` is when it is worth asking again."""

    def __init__(self, waiting: int, seconds: int):
        super().__init__(
            f"{waiting} analyses are waiting already; try again in {seconds} "
            f"{'second' if seconds == 1 else 'seconds'}"
        )
        self.seconds = seconds


class Stopped(Exception):
    """Raised inside an analysis that nobody waits for any more."""


class Jobs:
    """The queue, the running analysis, and finished ones for a while."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic):
        self._limits, self._clock = limits, clock
        self._lock = threading.Condition()
        self._queue: deque[Job] = deque()
        self._running: Job | None = None
        self._finished: OrderedDict[str, Job] = OrderedDict()  # oldest first
        self._seconds = 1.0  # what an analysis took of late
        self._closed = False

    # For requests -------------------------------------------------------------------------------

    def submit(self, question: Question, layers: int) -> Job:
        """Add an analysis: queued, or done at once if its answer is at hand."""
        with self._lock:
            self._expire()
            # 128 random bits: knowing one id helps nobody to guess another.
            job = Job(secrets.token_urlsafe(16), question, layers)
            if self._answer_from_memory(job):
                return replace(job)
            if self._closed or len(self._queue) >= self._limits.queue:
                seconds = min(60, max(1, math.ceil(self._seconds)))
                raise QueueFullError(len(self._queue), seconds)
            self._queue.append(job)
            self._lock.notify()
            return replace(job)

    def find(self, id: str) -> Job | None:
        """Find an analysis as it stands now; None if there is none, or none any more."""
        with self._lock:
            self._expire()
            return self._snapshot(id)

    def cancel(self, id: str) -> Job | None:
        """Take an analysis out of the queue, or have it stopped; a finished one stays as it is."""
        with self._lock:
            self._expire()
            job = self._search(id)
            if job is not None and job.state in (QUEUED, RUNNING):
                if job.state == QUEUED:
                    self._queue.remove(job)
                self._file(job, CANCELLED)
            return self._snapshot(id)

    def close(self) -> None:
        """Cancel everything and end the analysis thread's wait."""
        with self._lock:
            self._closed = True
            if self._running is not None and self._running.state == RUNNING:
                self._file(self._running, CANCELLED)
            while self._queue:
                self._file(self._queue.popleft(), CANCELLED)
            self._lock.notify_all()

    # For the analysis thread --------------------------------------------------------------------

    def take(self) -> Job | None:
        """Wait for the next analysis; None when the queue is closed."""
        with self._lock:
            while True:
                while not self._queue and not self._closed:
                    self._lock.wait()
                if self._closed:
                    return None
                job = self._queue.popleft()
                if self._answer_from_memory(job):
                    continue
                job.state, job.started = RUNNING, self._clock()
                self._running = job
                return job

    def progress(self, job: Job, done: int) -> None:
        """Note that layers are done; raises `Stopped` in an analysis that was cancelled."""
        with self._lock:
            if job.state != RUNNING:
                raise Stopped
            job.layers_done = done

    def complete(self, job: Job, result: bytes) -> None:
        with self._lock:
            if job.state == RUNNING:
                job.result, job.layers_done = result, job.layers
                self._seconds = self._clock() - job.started
                self._file(job, DONE)
            self._running = None

    def fail(self, job: Job, reason: str) -> None:
        with self._lock:
            if job.state == RUNNING:
                job.error = reason
                self._file(job, FAILED)
            self._running = None

    def stopped(self, job: Job) -> None:
        """Note that the thread has let go of an analysis that was cancelled."""
        with self._lock:
            assert job.state == CANCELLED
            self._running = None

    # With the lock held -------------------------------------------------------------------------

    def _search(self, id: str) -> Job | None:
        if self._running is not None and self._running.id == id:
            return self._running
        if id in self._finished:
            return self._finished[id]
        return next((job for job in self._queue if job.id == id), None)

    def _snapshot(self, id: str) -> Job | None:
        job = self._search(id)
        if job is None:
            return None
        position = 0
        if job.state == QUEUED:
            position = self._queue.index(job) + (self._running is not None)
        return replace(job, position=position)

    def _answer_from_memory(self, job: Job) -> bool:
        for finished in reversed(self._finished.values()):
            if finished.state == DONE and finished.question == job.question:
                job.result, job.layers_done = finished.result, job.layers
                self._file(job, DONE)
                return True
        return False

    def _file(self, job: Job, state: str) -> None:
        """Finish a job, and drop old ones until the limits are kept."""
        job.state, job.finished = state, self._clock()
        self._finished[job.id] = job
        while len(self._finished) > self._limits.kept or self._kept_bytes() > (
            self._limits.kept_bytes
        ):
            if len(self._finished) == 1:
                break  # whoever asked for something large gets it
            self._finished.popitem(last=False)

    def _kept_bytes(self) -> int:
        results = {id(job.result): job.result for job in self._finished.values() if job.result}
        return sum(map(len, results.values()))

    def _expire(self) -> None:
        oldest = self._clock() - self._limits.kept_seconds
        while self._finished:
            first = next(iter(self._finished.values()))
            if first.finished >= oldest:
                break
            self._finished.popitem(last=False)
