"""The one thread that calls torch.

OpenMP keeps a team of threads for every thread that calls it, and two teams on the same cores slow
each other down; so analyses wait for each other, and loading a model is part of the first one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from normlens.errors import NormLensError, one_line
from normlens.memory_shortage import is_out_of_memory
from normlens.serve.jobs import Job, Jobs, Question, Stopped

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
