"""Shards computed on this machine: by this process, or by several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from normlens.corpus.engines.base import Engine
from normlens.corpus.engines.prepared import Prepared
from normlens.corpus.engines.worker import Task, Worker
from normlens.corpus.runs.errors import RunError
from normlens.corpus.runs.shards import Finished, Shard
from normlens.hushed import hush
from normlens.lens import Lens


class ThreadEngine(Engine):
    """One model in this process, which runs in the caller's thread.

    While it works on one shard, other threads read and tokenise the next and make tables of the
    last.
    """

    def __init__(self, task: Task, lens: Lens | None = None):
        self.worker = Worker(task, lens)
        self.identity, self.by = self.worker.identity, self.worker.by
        self._before = ThreadPoolExecutor(1, thread_name_prefix="normlens-read")
        self._after = ThreadPoolExecutor(1, thread_name_prefix="normlens-tables")

    def compute(self, shards: Iterable[Shard]) -> Iterator[Finished]:
        remaining = iter(shards)

        def following() -> Prepared | None:
            shard = next(remaining, None)
            return None if shard is None else self.worker.prepare(shard)

        ahead = self._before.submit(following)
        last: Future[Finished] | None = None  # never more than one, so that memory is bounded
        while (prepared := ahead.result()) is not None:
            ahead = self._before.submit(following)
            for _ in self.worker.analyse(prepared):
                if last is not None and last.done():
                    yield last.result()
                    last = None
            if last is not None:
                yield last.result()
            last = self._after.submit(self.worker.finish, prepared)
        if last is not None:
            yield last.result()

    def close(self) -> None:
        self._before.shutdown(cancel_futures=True)
        self._after.shutdown(cancel_futures=True)


class ProcessEngine(Engine):
    """Several processes of this machine, each with a model of its own."""

    def __init__(self, task: Task, workers: int):
        self.workers = workers
        context = multiprocessing.get_context("spawn")  # a forked torch may hang
        threads = task.threads or max(1, (os.cpu_count() or 1) // workers)
        lifeline, self._lifeline = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(
            workers,
            mp_context=context,
            initializer=_start,
            initargs=(replace(task, threads=threads), context.Value("i", 0), lifeline),
        )
        try:
            self.identity, self.by = self._submit(_describe).result()
        except BrokenProcessPool as error:
            raise _died() from error
        except BaseException:
            self.abandon()
            self.close()
            raise

    def _submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Hand over work, which may start a process.

        Ctrl-C reaches every process of a terminal. What to do then is for this one alone to
        decide, so workers are born with the signal blocked.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._pool.submit(work, *arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def compute(self, shards: Iterable[Shard]) -> Iterator[Finished]:
        try:
            # One more than there are workers, so that none waits for this process.
            yield from self._windowed(shards, self.workers + 1)
        except BrokenProcessPool as error:
            raise _died() from error

    def _windowed(self, shards: Iterable[Shard], window: int) -> Iterator[Finished]:
        """Yield results as they come, with no more than `window` shards in work or in waiting."""
        remaining = iter(shards)
        running = {self._submit(_compute, shard) for shard in islice(remaining, window)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()
                running |= {self._submit(_compute, shard) for shard in islice(remaining, 1)}
                yield result

    def abandon(self) -> None:
        self._lifeline.close()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._lifeline.close()


def _died() -> RunError:
    return RunError(
        "a worker process died (killed, or out of memory); what is done is kept: resume the run, "
        "with fewer --workers if memory is short"
    )


# In a worker process ----------------------------------------------------------------------------

_worker: Worker | None = None
_failure: BaseException | None = None


def _start(task: Task, counter: Any, lifeline: Any) -> None:
    global _worker, _failure
    hush()
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    with counter.get_lock():
        number, counter.value = counter.value, counter.value + 1
    try:
        _worker = Worker(replace(task, device=_device(task.device, number)))
    except Exception as error:
        _failure = error  # raised here, it would only break the pool


def _end_with(lifeline: Any) -> None:
    """End when the process that gives the work lets go of its end: it stopped, or was killed."""
    lifeline.poll(None)
    os._exit(1)


def _device(device: str, number: int) -> str:
    """Assign the GPUs in turn, where there are several."""
    if device in ("auto", "cuda") and torch.cuda.device_count() > 1:
        return f"cuda:{number % torch.cuda.device_count()}"
    return device


def _ready() -> Worker:
    if _worker is None:
        raise _failure or RunError("the worker was not started")
    return _worker


def _describe() -> tuple[dict[str, Any], dict[str, Any]]:
    worker = _ready()
    return worker.identity, worker.by


def _compute(shard: Shard) -> Finished:
    return _ready().compute(shard)
