"""Workers that are processes of this machine."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from normlens.corpus.engines.base import Answered, Call, Crew, Died, Event, Joined
from normlens.corpus.engines.worker import EACH, Station, Task
from normlens.corpus.runs.folder import RunError
from normlens.errors import reason_of
from normlens.loading.hub import hush

LAST_WORD = 10.0  # seconds that a process has to end by itself
LOOK = 1.0  # seconds without an event after which the driver looks at its workers


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
        self._numbers, self._calls = itertools.count(), itertools.count()

    @property
    def wanted(self) -> int:
        return self._workers

    def hire(self) -> int:
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
        number = next(self._numbers)
        self._children[number] = _Child(process, ours, place)
        return number

    def ask(self, worker: int, call: Call) -> int:
        number = next(self._calls)
        with suppress(OSError):  # it has died, which is the next event of its pipe
            self._children[worker].connection.send((number, call.method, call.arguments))
        return number

    def events(self) -> list[Event]:
        workers = {child.connection: number for number, child in self._children.items()}
        ready = wait(list(workers), LOOK)
        return [self._event(number) for pipe, number in workers.items() if pipe in ready]

    def _event(self, worker: int) -> Event:
        try:
            kind, *content = self._children[worker].connection.recv()
        except (EOFError, OSError):
            return Died(worker, self._buried(worker))
        if kind == "raised":
            raise content[0]
        return Joined(worker, *content) if kind == "joined" else Answered(worker, *content)

    def _buried(self, worker: int) -> str:
        """Take leave of a dead process, and say how it ended."""
        child = self._children.pop(worker)
        child.connection.close()
        child.process.join()
        return ending(child.process.exitcode)

    def dismiss(self, worker: int) -> None:
        self._children[worker].process.kill()
        self._buried(worker)

    def abandon(self) -> None:
        for child in self._children.values():
            child.process.kill()

    def close(self) -> None:
        for child in self._children.values():
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

    def send(*message: Any) -> None:
        with turn:
            connection.send(message)

    station: list[Station] = []

    def load() -> None:
        try:
            station.append(Station.load(replace(task, device=_device(task.device, place))))
            send("joined", *station[0].describe())
        except BaseException as error:
            send("raised", _portable(error))

    def answer(number: int, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            send("answered", number, getattr(station[0], method)(*arguments))
        except BaseException as error:
            send("raised", _portable(error))

    # Each shard has a thread, and the question whether one of them takes too long has another.
    threads = ThreadPoolExecutor(EACH + 1, thread_name_prefix="normlens-shard")
    threads.submit(load)
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
