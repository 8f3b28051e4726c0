"""Shards on a Ray cluster: Ray places workers, sends shards, and repeats what a lost node held."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

from normlens.corpus.engines.base import Engine
from normlens.corpus.engines.worker import Task, Worker
from normlens.corpus.runs.errors import RunError
from normlens.corpus.runs.options import Execution
from normlens.corpus.runs.shards import Finished, Shard
from normlens.errors import MissingDependencyError, NormLensError, reason_of

#: Shards per worker: it tokenises one while its model works on the other.
EACH = 2
PATIENCE = 300.0  # seconds without a result before a line says where to look


class RayEngine(Engine):
    """Actors that load the model once and come back, wherever there is room, when a node is lost.

    Workers write the tables to the run's folder, which all of them see; records travel to this
    process, which commits them.
    """

    def __init__(self, task: Task, execution: Execution):
        try:
            import ray
        except ImportError as error:
            raise MissingDependencyError(
                "--engine ray needs Ray; run: pip install 'normlens[ray]'"
            ) from error
        self.ray: Any = ray
        self._started_ray = not ray.is_initialized()
        if self._started_ray:
            _connect(ray, execution.address)
        try:
            self._actors = self._hire(task, execution)
            # The first to be ready speaks for all; the others show who they are with each shard.
            self.identity, self.by = self._first([a.describe.remote() for a in self._actors])
        except BaseException:
            self.close()
            raise

    def _hire(self, task: Task, execution: Execution) -> list[Any]:
        resources = self.ray.cluster_resources()
        gpus = execution.gpus_per_worker
        if gpus is None:
            gpus = 1.0 if resources.get("GPU") and task.device in ("auto", "cuda") else 0.0
        if gpus == 0 and task.device == "auto":
            task = replace(task, device="cpu")
        threads = max(1, int(resources.get("CPU", 1)) // execution.workers)
        # A worker holds its GPUs and nothing else. Without GPUs it needs a node with a CPU but does
        # not hold it (so Ray does when no resource is named), and the workers of a lost node
        # always find room on those that are left.
        held = {"num_gpus": gpus, "num_cpus": 0} if gpus else {}
        actor = self.ray.remote(
            **held,
            scheduling_strategy="SPREAD",
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=EACH,
        )(Actor)
        return [
            actor.remote(replace(task, threads=threads if gpus == 0 else None))
            for _ in range(execution.workers)
        ]

    def compute(self, shards: Iterable[Shard]) -> Iterator[Finished]:
        from ray.util import ActorPool

        remaining = iter(shards)
        pool = ActorPool(self._actors * EACH)
        idle: Counter[Any] = Counter()
        for shard in islice(remaining, len(self._actors) * EACH):
            pool.submit(_send, shard)
        while pool.has_next():
            result = self._next(pool)
            for shard in islice(remaining, 1):
                pool.submit(_send, shard)
            yield result
            # Whoever has nothing left to do makes room: the worker of a node that was lost may be
            # waiting for a GPU, with the last shards.
            while (actor := pool.pop_idle()) is not None:
                idle[actor] += 1
                if idle[actor] == EACH:
                    self.ray.kill(actor)

    def _next(self, pool: Any) -> Finished:
        while True:
            try:
                with _unwrapped(self.ray):
                    return pool.get_next_unordered(timeout=PATIENCE)
            except TimeoutError:
                _wonder("shard")

    def _first(self, references: list[Any]) -> Any:
        while True:
            ready, _ = self.ray.wait(references, num_returns=1, timeout=PATIENCE)
            if ready:
                with _unwrapped(self.ray):
                    return self.ray.get(ready[0])
            _wonder("worker")

    def close(self) -> None:
        if self._started_ray:
            self.ray.shutdown()
            return
        for actor in getattr(self, "_actors", ()):
            self.ray.kill(actor)


class Actor:
    """A worker that Ray starts on some node."""

    def __init__(self, task: Task):
        self.worker: Worker | None = None
        self.error: NormLensError | None = None
        # Ray calls `compute` in several threads; the model has one of its own.
        self._model_thread = ThreadPoolExecutor(1, thread_name_prefix="normlens-model")
        try:
            self.worker = self._model_thread.submit(Worker, task).result()
        except NormLensError as error:
            self.error = error  # raised here, Ray would start the worker over and over

    def describe(self) -> tuple[dict[str, Any], dict[str, Any]]:
        worker = self._ready()
        return worker.identity, worker.by

    def compute(self, shard: Shard) -> Finished:
        worker = self._ready()
        prepared = worker.prepare(shard)
        self._model_thread.submit(list, worker.analyse(prepared)).result()
        return worker.finish(prepared)

    def _ready(self) -> Worker:
        if self.worker is None:
            raise self.error or RunError("the worker was not started")
        return self.worker


def _wonder(what: str) -> None:
    print(
        f"no {what} came back for {PATIENCE:.0f} s; `ray status` shows whether workers wait for "
        "resources",
        file=sys.stderr,
    )


def _send(actor: Any, shard: Shard) -> Any:
    return actor.compute.remote(shard)


def _connect(ray: Any, address: str | None) -> None:
    local = address in (None, "local")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if local:
            ray.init(address="local", include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, OSError, ValueError, RuntimeError) as error:
        raise RunError(
            f"cannot reach the Ray cluster at {address or 'this machine'!r}: {reason_of(error)}; "
            "start one with `ray start --head`, or leave --address out to use this machine"
        ) from error


class _unwrapped:
    """Raise what a worker raised, without Ray's traceback around it."""

    def __init__(self, ray: Any):
        self.ray: Any = ray

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, _: Any) -> None:
        if isinstance(error, self.ray.exceptions.RayTaskError):
            cause = error.cause
            if isinstance(cause, NormLensError):
                raise cause from None
            reason = f"{type(cause).__name__}: {reason_of(cause)}"
            raise RunError(f"a worker failed ({reason}); what is done is kept") from error
        if isinstance(error, self.ray.exceptions.RayError):
            raise RunError(f"Ray gave up: {reason_of(error)}; what is done is kept") from error
