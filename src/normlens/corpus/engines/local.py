"""Shards computed on this machine, by this process or by several; the choice of an engine."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import islice, takewhile
from typing import TypeVar

import torch

from normlens.corpus.engines.base import Attempts, Engine
from normlens.corpus.engines.dispatch import opened
from normlens.corpus.engines.processes import LOOK, ProcessCrew
from normlens.corpus.engines.ray_engine import RayEngine
from normlens.corpus.engines.shard_rows import Prepared
from normlens.corpus.engines.worker import EACH, Station, Task, Worker, model_threads
from normlens.corpus.runs.folder import StuckError
from normlens.corpus.runs.options import Execution
from normlens.corpus.runs.shards import Finished, Shard
from normlens.errors import InputError
from normlens.lens import Lens
from normlens.options import AUTO

# Shards computed on this machine: by this process, or by several.


T = TypeVar("T")


class ThreadEngine(Engine):
    """One model in this process; other threads read and tokenise, and make tables, beside it.

    Nothing survives the death of this process. So when the run is resumed, the first shard that is
    not done is suspect; after so many deaths it is tried in a process of its own.
    """

    def __init__(self, task: Task, lens: Lens | None = None, attempts: int = 3):
        self._task, self._given, self._attempts = task, lens is not None, attempts
        self.worker = Worker(task, lens)
        self.identity, self.by = self.worker.identity, self.worker.by

    def compute(
        self, shards: Iterable[Shard], attempts: Attempts | None = None
    ) -> Iterator[Finished]:
        attempts = attempts or Attempts()
        remaining = iter(shards)
        if attempts.resumed:
            # Alone, so that its record is there before the next one can do harm.
            for first in islice(remaining, 1):
                attempts.add(first.number, "the process that computed it was stopped")
                yield from self._computed([first], attempts)
        yield from self._computed(remaining, attempts)

    def _computed(self, shards: Iterable[Shard], attempts: Attempts) -> Iterator[Finished]:
        remaining = iter(shards)
        on_gpu = model_threads(self.worker.lens) > 1
        compute = self._with_overlap if on_gpu else self._in_turn
        poisonous: deque[Shard] = deque()

        def harmless(shard: Shard) -> bool:
            """Whether a shard can be computed here; one that cannot is put aside."""
            # A model that is no name cannot be loaded elsewhere.
            if attempts[shard.number] < self._attempts or self._given:
                return True
            poisonous.append(shard)
            return False

        while True:
            # Up to the next poisonous shard, which waits until those before it are done.
            yield from compute(takewhile(harmless, remaining))
            if not poisonous:
                return
            yield from self._in_a_process(poisonous.popleft(), attempts)

    def _in_turn(self, shards: Iterable[Shard]) -> Iterator[Finished]:
        """The model runs in the caller's thread.

        While it works on one shard, other threads read and tokenise the next and make tables of the
        last.
        """
        remaining = iter(shards)
        before = ThreadPoolExecutor(1, thread_name_prefix="normlens-read")
        after = ThreadPoolExecutor(1, thread_name_prefix="normlens-tables")

        def following() -> Prepared | None:
            shard = next(remaining, None)
            return None if shard is None else self.worker.prepare(shard)

        try:
            ahead = before.submit(following)
            last: Future[Finished] | None = None  # never more than one, so that memory is bounded
            while (prepared := self._first_of({ahead})[0].pop().result()) is not None:
                ahead = before.submit(following)
                for _ in self.worker.analyse(prepared):
                    if last is not None and last.done():
                        yield last.result()
                        last = None
                if last is not None:
                    yield last.result()
                last = after.submit(self.worker.finish, prepared)
            if last is not None:
                yield last.result()
        finally:
            self._let_go(before)
            after.shutdown(cancel_futures=True)

    def _with_overlap(self, shards: Iterable[Shard]) -> Iterator[Finished]:
        """Several shards at once, so that the GPU has work while the CPU measures."""
        station = Station(self.worker)
        threads = ThreadPoolExecutor(EACH, thread_name_prefix="normlens-shard")
        running: set[Future[Finished]] = set()
        try:
            for shard in shards:
                running.add(threads.submit(station.compute, shard))
                if len(running) == EACH:
                    # Whichever it is: behind a slow one the GPU would run out of work.
                    done, running = self._first_of(running)
                    yield from (each.result() for each in done)
            while running:
                done, running = self._first_of(running)
                yield from (each.result() for each in done)
        finally:
            self._let_go(threads)
            station.close()

    def _first_of(self, running: set[Future[T]]) -> tuple[set[Future[T]], set[Future[T]]]:
        """Wait for one of them at least; those that are done, and the others."""
        while True:
            done, left = wait(running, LOOK, FIRST_COMPLETED)
            if done:
                return done, left
            if (late := self.worker.guard.late()) is not None:
                raise StuckError(
                    f"sequence {late.index} hangs in a thread that nothing can end: {late.reason}; "
                    "what is done is kept: resume the run with --workers 2, whose processes can be "
                    "ended"
                )

    def _let_go(self, threads: ThreadPoolExecutor) -> None:
        """Wait for threads, unless one would keep this process waiting for ever."""
        threads.shutdown(wait=self.worker.guard.late() is None, cancel_futures=True)

    def _in_a_process(self, shard: Shard, attempts: Attempts) -> Iterator[Finished]:
        """Compute a shard that may end the process which does it."""
        print(
            f"shard {shard.number} was at work in {attempts[shard.number]} processes that ended; "
            "its sequences are tried one by one, in a process of their own",
            file=sys.stderr,
        )
        # The same number of threads, which the last digits may depend on.
        task = replace(self._task, threads=torch.get_num_threads())
        with ProcessEngine(task, 1, self._attempts) as engine:
            yield from engine.compute([shard], attempts)

    def close(self) -> None:
        return


class ProcessEngine(Engine):
    """Several processes of this machine, each with a model of its own."""

    def __init__(self, task: Task, workers: int, attempts: int = 3):
        self._crew = ProcessCrew(task, workers)
        self._dispatcher, self.identity, self.by = opened(
            self._crew, attempts, task.sequence_timeout
        )

    def compute(
        self, shards: Iterable[Shard], attempts: Attempts | None = None
    ) -> Iterator[Finished]:
        return self._dispatcher.compute(shards, attempts or Attempts())

    def has_result(self) -> bool:
        return bool(self._dispatcher.results)

    def abandon(self) -> None:
        self._crew.abandon()

    def close(self) -> None:
        self._crew.close()


# Choosing the engine that computes a run.


#: CPUs of a worker, where there are no GPUs to count by.
CPUS_EACH = 4


def open_engine(task: Task, execution: Execution, lens: Lens | None = None) -> Engine:
    """Open the engine that was asked for, and load its model."""
    if lens is not None and (execution.engine == "ray" or execution.workers not in (1, AUTO)):
        raise InputError(
            "a loaded lens cannot be sent to other processes; pass the model's name or folder"
        )
    if execution.engine == "ray":
        return RayEngine(task, execution)
    workers = 1 if lens is not None else _workers(task, execution.workers)
    if workers > 1:
        return ProcessEngine(task, workers, execution.attempts)
    return ThreadEngine(task, lens, execution.attempts)


def _workers(task: Task, asked: int | str) -> int:
    """How many workers this machine has room for, unless a number was asked for."""
    if asked != AUTO:
        return int(asked)
    if task.device in (AUTO, "cuda") and torch.cuda.is_available():
        return torch.cuda.device_count()
    return max(1, (os.cpu_count() or 1) // CPUS_EACH)
