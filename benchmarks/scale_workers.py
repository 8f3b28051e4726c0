"""Simulated workers: they write made-up tables where a run's workers write theirs.

They are threads of a few processes beside the driver, so that the driver's process does what a
driver does and nothing else. It talks to them through pipes, as to other workers.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from object_store import CountingStore

from normlens.corpus.engines.block_rows import FAILURES, SEQUENCES, Clock, Gatherer, Prepared
from normlens.corpus.engines.pool import Answered, Call, Crew, Event, Pool
from normlens.corpus.engines.worker import Task
from normlens.corpus.measures import get
from normlens.corpus.measures.base import build
from normlens.corpus.runs import identity, runs
from normlens.corpus.runs.folder import open_folder
from normlens.corpus.runs.ledger import Block, FileSet, Unwritten

LAYERS, WIDTH = 2, 16
TABLES = get("norms").tables
#: Processes that the workers share, and threads of each; more would only wait for the same cores.
PROCESSES, THREADS = 4, 4


class StandIn:
    """Makes the tables of blocks out of nothing, and gathers them as a worker does."""

    def __init__(self, task: Task):
        self.folder = open_folder(task.folder)
        self.identity = {
            "name": task.options.model, "revision": None, "weights": "none", "config": "none",
            "tokenizer": "none", "device": "cpu", "dtype": "float32",
        }  # fmt: skip
        self.by = {
            "host": "here",
            "model": identity.digest(self.identity),
            "versions": identity.software(),
        }
        layers, dimensions = np.divmod(np.arange(LAYERS * WIDTH), WIDTH)
        sums = {
            "sequences": 64,
            "count": 640,
            "sum_input_abs": 0.5 + dimensions,
            "sum_output_abs": 1.5 + dimensions,
            "gamma": 1.0,
            "special": dimensions == 3,
        }
        # The same in every block.
        self.constant = {
            "failures": FAILURES.empty_table(),
            "special_dimensions": TABLES["special_dimensions"].empty_table(),
            "norms_dimensions": build(
                TABLES["norms_dimensions"], {"layer": layers, "dimension": dimensions, **sums}
            ),
        }
        measures, size = [get("norms")], (task.execution.file_size, task.execution.file_minutes)
        self._new = lambda: Gatherer(self.folder, measures, self.by, *size)
        self.gatherers: dict[int, Gatherer] = {}

    def describe(self, worker: int) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.identity, self.by

    def compute(self, worker: int, block: Block, alone: bool) -> FileSet | Unwritten:
        started, n = time.time(), len(block.records)
        index = np.arange(block.first, block.first + n)
        names = pa.array([record.id for record in block.records])
        whole, none = pa.array(np.full(n, 10, np.int32)), pa.nulls(n, pa.int32())
        columns = [index, names, whole, none, pa.array(np.zeros(n)), none, pa.nulls(n, pa.string())]
        norms = {
            "index": np.repeat(index, LAYERS),
            "sequence": names.take(pa.array(np.repeat(np.arange(n), LAYERS))),
            "layer": np.tile(np.arange(LAYERS), n),
            "ff_output_norm": np.repeat(index * 0.1, LAYERS),
            "bypassed_norm": np.repeat(index * 0.3, LAYERS),
        }
        rows = MadeUp(
            {
                "sequences": pa.Table.from_arrays(list(map(pa.array, columns)), schema=SEQUENCES),
                "norms": build(TABLES["norms"], norms),
                **self.constant,
            },
            n,
        )
        prepared: Any = Prepared(replace(block, records=()), [], rows, Clock(), started)  # type: ignore[arg-type]
        return self.gatherer(worker).add(prepared, alone)

    def gatherer(self, worker: int) -> Gatherer:
        return self.gatherers.setdefault(worker, self._new())

    def write(self, worker: int) -> FileSet | None:
        return self.gatherer(worker).write()


@dataclass
class MadeUp:
    """The rows of a block as a worker counts them."""

    _tables: dict[str, pa.Table]
    sequences: int
    failures: int = 0

    @property
    def tokens(self) -> int:
        return 10 * self.sequences

    def tables(self) -> dict[str, pa.Table]:
        return self._tables


class SimulatedCrew(Crew):
    """Workers that share a few processes, each at the other end of a pipe."""

    def __init__(self, task: Task, workers: int, store: Path | None):
        self._size = workers
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for _ in range(PROCESSES):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(task, theirs, store))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    @property
    def wanted(self) -> int:
        return self._size

    def hire(self, worker: int) -> None:
        return  # its process is there

    def ask(self, worker: int, number: int, call: Call) -> None:
        self._pipes[worker % PROCESSES].send((worker, number, call))

    def events(self) -> list[Event]:
        events: list[Event] = []
        ready = wait(self._pipes)
        for pipe in (pipe for pipe in self._pipes if pipe in ready):
            while pipe.poll():
                answer = pipe.recv()
                if isinstance(answer, BaseException):
                    raise answer
                events.append(Answered(*answer))
        return events

    def dismiss(self, worker: int) -> None:
        raise NotImplementedError  # its sequences have no time limit

    def close(self, at_once: bool = False) -> None:
        """Let the workers go, and count what they have asked of the store."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            while not isinstance(requests := pipe.recv(), Counter):
                pass  # answers that nobody waits for any more
            CountingStore.requests.update(requests)
            process.join()


def _serve(task: Task, pipe: Connection, store: Path | None) -> None:
    """Answer calls, in a process of the workers."""
    if store is not None:
        CountingStore.at(store)
    stand_in, turn = StandIn(task), threading.Lock()

    def answer(worker: int, number: int, call: Call) -> None:
        try:
            finished: Any = (
                worker,
                number,
                getattr(stand_in, call.method)(worker, *call.arguments),
            )
        except BaseException as error:
            finished = error
        with turn:
            pipe.send(finished)

    with ThreadPoolExecutor(THREADS) as threads:
        while (asked := pipe.recv()) is not None:
            threads.submit(answer, *asked)
    pipe.send(CountingStore.requests)


def simulate(workers: int, store: Path | None) -> None:
    """From now on, workers of this process are simulated; `store` is where objects lie, if any."""
    runs.open_pool = lambda task, *_: Pool(SimulatedCrew(task, workers, store))  # type: ignore[attr-defined]
