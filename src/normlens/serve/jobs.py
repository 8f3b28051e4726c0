"""Analyses from request to result: messages, the queue, the one thread that calls torch."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from normlens.errors import NormLensError, is_out_of_memory, one_line
from normlens.options import (
    LINEAR_RULES,
    RULES,
    AnalysisOptions,
    CosineOptions,
    ExplainOptions,
    options_of,
)
from normlens.serve.limits import Limits

# The shapes of requests and answers, as OpenAPI shows them.


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
_SOMETHING = r"[^\s\x1c-\x1f\x85\ufeff]"


_TARGET_TEXT = "What an encoder–decoder's decoder reads; without it the model generates it."


class ModelInfo(BaseModel):
    """A model that can be analysed."""

    name: str
    family: str = Field(description="Its architecture, such as bert.")
    layers: int = Field(ge=1)
    scopes: list[str]
    causal: bool
    max_tokens: int | None = Field(description="The longest text its positions allow, if any.")
    head: str | None = Field(
        description="The class with the head that it has, without which nothing can be explained."
    )
    two_stacks: bool = Field(description="Whether it is an encoder–decoder.")
    loaded: bool = Field(description="Whether it is in memory; the first analysis loads it.")


class LimitInfo(BaseModel):
    """What one text may be at most."""

    text_characters: int = Field(ge=1)
    tokens: int = Field(ge=1)


class Example(BaseModel):
    """The analysis that the page opens on."""

    model: str
    text: str


class ModelList(BaseModel):
    """What can be asked for."""

    models: list[ModelInfo]
    limits: LimitInfo
    example: Example | None = Field(description="What the page shows first, if anything.")


class AnalysisRequest(BaseModel):
    """A text, or a pair of texts, for one of the models."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    text: str = Field(pattern=_SOMETHING)
    pair: str | None = Field(default=None, pattern=_SOMETHING)
    target_text: str | None = Field(default=None, pattern=_SOMETHING, description=_TARGET_TEXT)
    rule: str = Field(default=AnalysisOptions.nonlinearity, description=_RULE.help)
    heads: bool = Field(default=False, description=_HEADS.help)


class ExplanationRequest(BaseModel):
    """A text, or a pair of texts, and what to explain: by default what the model says."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    text: str = Field(pattern=_SOMETHING)
    pair: str | None = Field(default=None, pattern=_SOMETHING)
    target_text: str | None = Field(default=None, pattern=_SOMETHING, description=_TARGET_TEXT)
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


class CosineRequest(BaseModel):
    """Two texts for one of the models."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    text: str = Field(pattern=_SOMETHING)
    pair: str = Field(pattern=_SOMETHING)
    rule: str = Field(default=CosineOptions.nonlinearity, description=_LINEAR_RULE.help)


class Submitted(BaseModel):
    """The name by which an analysis is asked about."""

    id: str


class Status(BaseModel):
    """Where an analysis stands."""

    id: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    position: int = Field(ge=0, description="Analyses ahead of this one.")
    layers_done: int = Field(ge=0)
    layers: int = Field(ge=1)
    error: str | None = Field(description="Why it failed, in one line.")


class Problem(BaseModel):
    """What went wrong, in one line."""

    detail: str


#: The rules that each kind of request may choose from.
RULES_OF: dict[type[BaseModel], tuple[str, ...]] = {
    AnalysisRequest: RULES,
    ExplanationRequest: LINEAR_RULES,
    CosineRequest: LINEAR_RULES,
}


def complete(schema: dict[str, Any], names: list[str], limits: Limits) -> None:
    """Write into the OpenAPI schema what is known only when the server starts."""
    schemas = schema["components"]["schemas"]
    for kind, rules in RULES_OF.items():
        request = schemas[kind.__name__]["properties"]
        request["model"]["enum"] = names
        request["rule"]["enum"] = list(rules)
        for name in ("text", "pair", "target_text"):
            if (text := request.get(name)) is not None:
                (text["anyOf"][0] if "anyOf" in text else text)["maxLength"] = (
                    limits.text_characters
                )
    # FastAPI declares its own form of 422 wherever an address has a part to fill in; any id is
    # well-formed here, and an unknown one is 404.
    for path in schema["paths"].values():
        for operation in path.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)


# Analyses from the moment they are asked for until their results are dropped.
#
# Every method may be called from any thread: requests arrive in one, analyses run in another.


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


# The one thread that calls torch.
#
# OpenMP keeps a team of threads for every thread that calls it, and two teams on the same cores
# slow each other down; so analyses wait for each other, and loading a model is part of the first
# one.


_log = logging.getLogger("normlens.serve")


class Answerer(Protocol):
    """The models as the thread calls them; see `models.ServedModels`."""

    def describe(self) -> None: ...

    def answer(self, question: Question, progress: Callable[[int, int], None]) -> bytes: ...


class AnalysisThread:
    """Takes one analysis after the other from the queue."""

    def __init__(self, jobs: Jobs, models: Answerer):
        self._jobs, self._models = jobs, models
        self._ready: Future[None] = Future()
        # A daemon: a layer or a download in work must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="normlens-analyses", daemon=True)

    def start(self) -> None:
        """Start the thread and wait until the models are described, or raise what is wrong."""
        self._thread.start()
        self._ready.result()

    def stop(self, seconds: float) -> bool:
        """Cancel everything; return whether the thread has ended within so many seconds."""
        self._jobs.close()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._models.describe()
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        while (job := self._jobs.take()) is not None:
            self._run(job)

    def _run(self, job: Job) -> None:
        try:
            result = self._models.answer(
                job.question, lambda done, _: self._jobs.progress(job, done)
            )
        except Stopped:
            self._jobs.stopped(job)
        except Exception as error:
            self._jobs.fail(job, _reason(error))
        else:
            self._jobs.complete(job, result)


def _reason(error: Exception) -> str:
    """Say in one line, for the visitor, why an analysis failed."""
    if isinstance(error, NormLensError):
        return one_line(str(error))
    if is_out_of_memory(error):
        return "there is not enough memory for this analysis; use a shorter text or a smaller model"
    _log.error("an analysis failed", exc_info=error)
    return f"the analysis failed ({type(error).__name__}); the server's terminal says more"
