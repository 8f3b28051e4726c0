"""Workers on this machine: this process, or several others; the choice of workers for a run."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch

from normlens.corpus.engines.block_rows import Prepared
from normlens.corpus.engines.pool import (
    EACH,
    LAST_WORD,
    Answered,
    Call,
    Crew,
    Died,
    Event,
    Pool,
    Read,
)
from normlens.corpus.engines.ray_engine import ray_pool
from normlens.corpus.engines.worker import Task, Worker, model_threads, on_device
from normlens.corpus.runs.folder import RunError, StuckError
from normlens.corpus.runs.ledger import FileSet, Unwritten
from normlens.corpus.runs.options import Execution
from normlens.errors import InputError, reason_of
from normlens.lens import Lens
from normlens.loading.hub import hush
from normlens.options import AUTO

#: Seconds without an event after which the driver looks at its workers.
LOOK = 1.0

# One worker, in this process.


class HereCrew(Crew):
    """One worker in this process: other threads tokenise and make tables beside its model.

    On a CPU the model runs in the thread that asks for events; on a GPU, several threads call it.
    """

    wanted = 1

    def __init__(self, task: Task, lens: Lens | None = None):
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.worker = Worker(task, lens)
        self._on_gpu = model_threads(self.worker.lens) > 1
        self._threads = ThreadPoolExecutor(EACH + 1, thread_name_prefix="normlens-block")

    def hire(self, worker: int) -> None:
        self._name = worker  # the only one

    def ask(self, worker: int, number: int, call: Call) -> None:
        if call.method == "compute" and len(call.arguments) == 2 and not self._on_gpu:
            block, alone = call.arguments
            self._submit(lambda: _Prepared(number, self.worker.prepare(block), alone))
        else:
            method = getattr(self.worker, call.method)
            self._submit(lambda: Answered(worker, number, method(*call.arguments)))

    def _submit(self, make: Callable[[], Any]) -> None:
        """Have a thread make an event; what it raises is one, too."""

        def work() -> None:
            try:
                self._events.put(make())
            except BaseException as error:
                self._events.put(error)

        self._threads.submit(work)

    def events(self) -> list[Event]:
        try:
            event = self._events.get(timeout=LOOK)
        except queue.Empty:
            self._check_late()
            return []
        if isinstance(event, BaseException):
            raise event
        if not isinstance(event, _Prepared):
            return [event]
        self.worker.analyse(event.prepared)
        add = self.worker.gatherer.add
        self._submit(lambda: Answered(self._name, event.number, add(event.prepared, event.alone)))
        return []

    def _check_late(self) -> None:
        if (late := self.worker.guard.late()) is not None:
            raise StuckError(
                f"sequence {late.index} hangs in a thread that nothing can end: {late.reason}; "
                "what is done is kept: resume the run with --workers 2, whose processes can be "
                "ended"
            )

    def rest(self) -> Iterator[FileSet]:
        """What was written and not yet told, and what was gathered."""
        while not self._events.empty():
            event = self._events.get()
            if isinstance(event, Answered) and isinstance(event.answer, FileSet):
                yield event.answer
        written = self.worker.write()
        if written is not None:
            yield written

    def dismiss(self, worker: int) -> None:
        raise NotImplementedError  # nothing can end a thread

    def close(self, at_once: bool = False) -> None:
        self.worker.close()
        # A thread that hangs would keep this process waiting for ever.
        self._threads.shutdown(wait=self.worker.guard.late() is None, cancel_futures=True)


class _Prepared(NamedTuple):
    """A block that is tokenised and waits for the model."""

    number: int
    prepared: Prepared
    alone: bool


class HerePool(Pool):
    """One worker in this process, and no other: its death is that of the run's driver.

    So when the run is resumed, the first block that is not done is suspect; after so many deaths it
    is tried in a process of its own.
    """

    crew: HereCrew
    dies_with_workers = True

    def __init__(self, task: Task, lens: Lens | None = None):
        self._task, self._given = task, lens is not None
        super().__init__(HereCrew(task, lens), task.execution.attempts)

    def write_early(self) -> None:
        """Write after one block, then after two more, then four: a run that dies again and again
        comes to the block that it dies of."""
        self.crew.worker.gatherer.most = 1

    def compute(
        self, numbers: Iterable[int], read: Read, deaths: Counter[int] | None = None
    ) -> Iterator[FileSet | Unwritten]:
        deaths = Counter() if deaths is None else deaths
        remaining, poisonous = iter(numbers), deque[int]()

        def harmless(number: int) -> bool:
            """Whether a block can be computed here; one that cannot is put aside."""
            # A model that is no name cannot be loaded elsewhere.
            if deaths[number] < self.attempts or self._given:
                return True
            poisonous.append(number)
            return False

        while True:
            # Up to the next poisonous block, which waits until those before it are done.
            yield from super().compute(takewhile(harmless, remaining), read, deaths)
            if not poisonous:
                return
            number = poisonous.popleft()
            print(
                f"block {number} was at work in {deaths[number]} processes that ended; its "
                "sequences are tried one by one, in a process of their own",
                file=sys.stderr,
            )
            # The same number of threads, which the last digits may depend on.
            task = replace(self._task, threads=torch.get_num_threads())
            with process_pool(task, 1) as pool:
                yield from pool.compute([number], read, deaths)

    def rest(self) -> Iterator[FileSet]:
        yield from (result for result in self._results if isinstance(result, FileSet))
        yield from self.crew.rest()


# Workers that are processes of this machine.


@dataclass(frozen=True)
class _Child:
    process: Any
    connection: Connection
    place: int  # among the workers, which decides about its GPU


class ProcessCrew(Crew):
    """Processes, each with a model of its own, and a pipe to each.

    A pipe that ends says that its process has died; the other processes go on.
    """

    def __init__(self, task: Task, workers: int):
        self._task = replace(task, threads=task.threads or _threads(workers))
        self._workers = workers
        self._context = multiprocessing.get_context("spawn")  # a forked torch may hang
        self._children: dict[int, _Child] = {}

    @property
    def wanted(self) -> int:
        return self._workers

    def hire(self, worker: int) -> None:
        taken = {child.place for child in self._children.values()}
        place = next(place for place in itertools.count() if place not in taken)
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(self._task, place, theirs), name=f"normlens-worker-{place}"
        )
        # Ctrl-C reaches every process of a terminal. What to do then is for this one alone to
        # decide, so workers are born with the signal blocked. Python starts its tracker of
        # resources beside the first process, and unblocks the signal for it: that comes before.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # so that the process holds the only one, and the pipe ends with it
        self._children[worker] = _Child(process, ours, place)

    def ask(self, worker: int, number: int, call: Call) -> None:
        with suppress(OSError):  # it has died, which is the next event of its pipe
            self._children[worker].connection.send((number, *call))

    def events(self) -> list[Event]:
        workers = {child.connection: number for number, child in self._children.items()}
        ready = wait(list(workers), LOOK)
        return [self._event(number) for pipe, number in workers.items() if pipe in ready]

    def _event(self, worker: int) -> Event:
        try:
            number, answer = self._children[worker].connection.recv()
        except (EOFError, OSError):
            return Died(worker, self._buried(worker))
        if number is None:
            raise answer
        return Answered(worker, number, answer)

    def _buried(self, worker: int) -> str:
        """Take leave of a dead process, and say how it ended."""
        child = self._children.pop(worker)
        child.connection.close()
        child.process.join()
        return ending(child.process.exitcode)

    def dismiss(self, worker: int) -> None:
        self._children[worker].process.kill()
        self._buried(worker)

    def close(self, at_once: bool = False) -> None:
        for child in self._children.values():
            if at_once:
                child.process.kill()
            child.connection.close()  # at which a process ends
        for child in self._children.values():
            child.process.join(LAST_WORD)
            if child.process.exitcode is None:
                child.process.kill()
                child.process.join()
        self._children.clear()


def ending(status: int) -> str:
    """How a process ended, from its exit status."""
    if status >= 0:
        return f"the process ended with status {status}"
    name = signal.Signals(-status).name
    return f"{name}, often for want of memory" if name == "SIGKILL" else name


def _threads(workers: int) -> int:
    return max(1, (os.cpu_count() or 1) // workers)


# In a worker process ------------------------------------------------------------------------------


def _serve(task: Task, place: int, connection: Connection) -> None:
    """Answer calls until the pipe ends: the process that asks has stopped, or was killed."""
    hush()
    turn = threading.Lock()
    # Each block has a thread, and the question whether one of them takes too long has another.
    threads = ThreadPoolExecutor(EACH + 1, thread_name_prefix="normlens-block")
    device = _device(task.execution.device, place)
    loading = threads.submit(Worker.load, on_device(task, device))

    def answer(number: int, method: str, arguments: tuple[Any, ...]) -> None:
        told: tuple[int | None, Any]
        try:
            told = number, getattr(loading.result(), method)(*arguments)
        except BaseException as error:
            told = None, _portable(error)
        with turn:
            connection.send(told)

    try:
        while True:
            threads.submit(answer, *connection.recv())
    except (EOFError, OSError):
        os._exit(0)  # whatever other threads are at: nobody waits for it


def _device(device: str, place: int) -> str:
    """Assign the GPUs in turn, where there are several."""
    if device in ("auto", "cuda") and torch.cuda.device_count() > 1:
        return f"cuda:{place % torch.cuda.device_count()}"
    return device


def _portable(error: BaseException) -> BaseException:
    """The error, or one like it where it cannot be sent to another process, or would end it."""
    try:
        pickle.loads(pickle.dumps(error))
        portable = isinstance(error, Exception)
    except Exception:
        portable = False
    if portable:
        return error
    return RunError(f"a worker failed ({type(error).__name__}: {reason_of(error)})")


# Choosing who computes a run.


#: CPUs of a worker, where there are no GPUs to count by.
CPUS_EACH = 4


def open_pool(task: Task, lens: Lens | None = None) -> Pool:
    """Open the workers that were asked for, and load their model."""
    engine, asked = task.execution.engine, task.execution.workers
    if lens is not None and (engine == "ray" or asked not in (1, AUTO)):
        raise InputError(
            "a loaded lens cannot be sent to other processes; pass the model's name or folder"
        )
    if engine == "ray":
        return ray_pool(task)
    workers = 1 if lens is not None else _workers(task.execution)
    return process_pool(task, workers) if workers > 1 else HerePool(task, lens)


def process_pool(task: Task, workers: int) -> Pool:
    """Open so many processes of this machine."""
    execution = task.execution
    return Pool(ProcessCrew(task, workers), execution.attempts, execution.sequence_timeout)


def _workers(execution: Execution) -> int:
    """How many workers this machine has room for, unless a number was asked for."""
    if execution.workers != AUTO:
        return int(execution.workers)
    if execution.device in (AUTO, "cuda") and torch.cuda.is_available():
        return torch.cuda.device_count()
    return max(1, (os.cpu_count() or 1) // CPUS_EACH)
