"""Analyses from request to result: what can be asked for, the queue, and results for a while."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from normlens.options import (
    LINEAR_RULES,
    RULES,
    AnalysisOptions,
    CosineOptions,
    ExplainOptions,
    options_of,
)

# How much a visitor may ask for, and how much is kept.


# A character outside the basic plane takes two escapes of six bytes in JSON.
_BYTES_PER_CHARACTER = 12
_BYTES_AROUND = 4096


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request, the queue and the memory may hold."""

    text_characters: int = 10_000  # of a text, of its pair, and of a target text
    tokens: int = 512
    connections: int = 256  # open at once; fewer where the system allows fewer
    request_seconds: float = 20.0  # for the whole of a request to arrive
    stall_seconds: float = 20.0  # in which a client must take some of its answer
    queue: int = 32  # analyses that wait; one more is worked on
    models: int = 2  # models in memory at once
    kept: int = 256  # finished analyses that can be asked for
    kept_bytes: int = 256 << 20  # their results, together
    kept_seconds: float = 30 * 60.0

    @property
    def body_bytes(self) -> int:
        """The largest body; three texts of the greatest length fit, however written."""
        return 3 * _BYTES_PER_CHARACTER * self.text_characters + _BYTES_AROUND


# What can be asked for, as OpenAPI shows it and as models answer it.


#: The options of an analysis that a visitor may choose.
_RULE, _HEADS = (options_of(AnalysisOptions)[name] for name in ("nonlinearity", "heads"))
_LINEAR_RULE = options_of(ExplainOptions)["nonlinearity"]
_LARGEST = 10_000_000  # of token ids and positions
# To JSON 3.0 is a whole number, too.
_WHOLE = BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)
_Number = Annotated[int, Field(ge=0, le=_LARGEST), _WHOLE]
_Target = Annotated[str, Field(min_length=1, max_length=100)] | _Number
_Place = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST), _WHOLE]
# White space of Python, of Rust's regular expressions and of ECMAScript's differ a little.
_Text = Annotated[str, Field(pattern=r"[^\s\x1c-\x1f\x85\ufeff]")]
_TARGET_TEXT = "What an encoder–decoder's decoder reads; without it the model generates it."


class Question(BaseModel):
    """What every request has; equal questions of a kind have equal answers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    answer: ClassVar[str]  # what the answer is
    rules: ClassVar[tuple[str, ...]] = LINEAR_RULES  # that may be chosen

    model: str
    text: _Text
    pair: _Text | None = None
    rule: str

    @property
    def texts(self) -> list[str]:
        """Every text that was sent."""
        given = (self.text, self.pair, getattr(self, "target_text", None))
        return [text for text in given if text is not None]


class AnalysisRequest(Question):
    """A text, or a pair of texts, for one of the models."""

    answer = "maps"
    rules = RULES

    target_text: _Text | None = Field(default=None, description=_TARGET_TEXT)
    rule: str = Field(default=AnalysisOptions.nonlinearity, description=_RULE.help)
    heads: bool = Field(default=False, description=_HEADS.help)


class ExplanationRequest(Question):
    """A text, or a pair of texts, and what to explain: by default what the model says."""

    answer = "an explanation"

    target_text: _Text | None = Field(default=None, description=_TARGET_TEXT)
    target: _Target | None = Field(
        default=None,
        description="A word, a label, or the number of one; of an encoder–decoder, a token of "
        "the target text: a word, or its place from 0.",
    )
    contrast: _Target | None = Field(default=None, description="Why the target and not this.")
    position: _Place | None = Field(
        default=None, description="Where the score is read, from 0, or from the end if negative."
    )
    rule: str = Field(default=ExplainOptions.nonlinearity, description=_LINEAR_RULE.help)


class CosineRequest(Question):
    """Two texts for one of the models."""

    answer = "a cosine"

    pair: _Text
    rule: str = Field(default=CosineOptions.nonlinearity, description=_LINEAR_RULE.help)


# Analyses from the moment they are asked for until their results are dropped.
#
# Every method may be called from any thread: requests arrive in one, analyses run in another.


QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"


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

    def finish(self, job: Job, result: bytes | None = None, error: str | None = None) -> None:
        """Note that the thread is done with an analysis; one that was cancelled stays cancelled."""
        with self._lock:
            self._running = None
            if job.state != RUNNING:
                return
            if error is None:
                job.layers_done, self._seconds = job.layers, self._clock() - job.started
            job.result, job.error = result, error
            self._file(job, DONE if error is None else FAILED)

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
