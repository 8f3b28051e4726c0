"""Workers that are actors of a Ray cluster."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

from normlens.corpus.engines.crew import Answered, Crew, Died, Event, Joined
from normlens.corpus.engines.jobs import Call
from normlens.corpus.engines.ray_cluster import Demand, alive, check_versions, versions_function
from normlens.corpus.engines.station import EACH, Station
from normlens.corpus.engines.worker import Task
from normlens.corpus.runs.errors import RunError
from normlens.errors import NormLensError, reason_of
from normlens.options import AUTO

PATIENCE = 300.0  # seconds without an event before a line says where to look
LOOK = 5.0  # seconds after which a cluster is looked at again


class RayCrew(Crew):
    """Actors that Ray places where there is room.

    An actor for which there is none waits, holds no shard, and joins when the cluster grows. One
    that dies is not restarted by Ray: another is hired.
    """

    def __init__(self, ray: Any, task: Task, demand: Demand, workers: int | str):
        self.ray = ray
        self._task, self._demand, self._workers = task, demand, workers
        self._actor = ray.remote(
            **demand.options(),
            scheduling_strategy="SPREAD",
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=EACH + 1,
        )(Actor)
        self._actors: dict[int, Any] = {}
        self._asked: dict[Any, tuple[int, int | None]] = {}  # reference → worker, call
        self._numbers, self._calls = itertools.count(), itertools.count()
        self._here = versions_function()()
        self._seen, self._room, self._heard = 0.0, 0, time.monotonic()

    @property
    def wanted(self) -> int:
        if self._workers != AUTO:
            return int(self._workers)
        now = time.monotonic()
        if not self._room or now - self._seen > LOOK:
            self._seen = now
            self._room = sum(map(self._demand.room, alive(self.ray)))
        return self._room

    def check_nodes(self) -> None:
        """Raise if a node where workers may come to be has other software than this process."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

        probe = self.ray.remote(num_cpus=0, max_retries=1)(versions_function())
        nodes = [node for node in alive(self.ray) if self._demand.room(node)]
        asked = [
            probe.options(scheduling_strategy=OnNode(node["NodeID"], soft=False)).remote()
            for node in nodes
        ]
        for node, reference in zip(nodes, asked, strict=True):
            try:
                there = self.ray.get(reference, timeout=PATIENCE)
            except self.ray.exceptions.RayError:
                continue  # it has left; a worker is compared again when it joins
            check_versions(node["NodeManagerHostname"], self._here, there)

    def hire(self) -> int:
        number = next(self._numbers)
        actor = self._actors[number] = self._actor.remote(self._task)
        self._asked[actor.describe.remote()] = number, None
        return number

    def ask(self, worker: int, call: Call) -> int:
        number = next(self._calls)
        reference = self._actors[worker].call.remote(call.method, *call.arguments)
        self._asked[reference] = worker, number
        return number

    def events(self) -> list[Event]:
        asked = list(self._asked)
        ready, _ = self.ray.wait(asked, num_returns=1, timeout=LOOK)
        if not ready:
            self.warn_if_silent()
            return []
        self._heard = time.monotonic()
        ready, _ = self.ray.wait(asked, num_returns=len(asked), timeout=0)
        # Those of a worker that turns out to be dead are forgotten on the way.
        return [self._event(reference) for reference in ready if reference in self._asked]

    def _event(self, reference: Any) -> Event:
        worker, number = self._asked.pop(reference)
        try:
            with unwrapped(self.ray):
                answer = self.ray.get(reference)
        except self.ray.exceptions.RayActorError as error:
            self._forget(worker)
            return Died(worker, ending(error))
        if number is not None:
            return Answered(worker, number, answer)
        identity, by, versions = answer
        check_versions(by["host"], self._here, versions)  # a node that joined after the others
        return Joined(worker, identity, by)

    def _forget(self, worker: int) -> None:
        self._asked = {ref: of for ref, of in self._asked.items() if of[0] != worker}
        # It may be alive, on a node that cannot be reached.
        self.ray.kill(self._actors.pop(worker))

    def dismiss(self, worker: int) -> None:
        self._forget(worker)

    def warn_if_silent(self) -> None:
        if time.monotonic() - self._heard > PATIENCE:
            self._heard = time.monotonic()
            print(
                f"no worker has answered for {PATIENCE:.0f} s; `ray status` shows whether workers "
                "wait for resources",
                file=sys.stderr,
            )

    def close(self) -> None:
        for actor in self._actors.values():
            self.ray.kill(actor)
        self._actors.clear()


class Actor:
    """A worker that Ray starts on some node."""

    def __init__(self, task: Task):
        self.station: Station | None = None
        self.error: NormLensError | None = None
        try:
            self.station = Station.load(task)
        except NormLensError as error:
            self.error = error  # raised here, it would be the death of the actor

    def describe(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, str | None]]:
        """The identity of the model, where it runs, and the versions there."""
        return *self._ready().describe(), versions_function()()

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the station."""
        return getattr(self._ready(), method)(*arguments)

    def _ready(self) -> Station:
        if self.station is None:
            raise self.error or RunError("the worker was not started")
        return self.station


def ending(error: BaseException) -> str:
    """How an actor ended, from Ray's long description of it."""
    text = str(error).lower()
    if "node has died" in text or "node died" in text or "node is dead" in text:
        return "its node was lost"
    if "running low on memory" in text or "memory monitor" in text:
        return "Ray ended it because its node ran low on memory"
    if "creation task" in text or getattr(error, "actor_init_failed", False):
        return reason_of(error)
    return "its process died, often for want of memory"


class unwrapped:
    """Raise what a worker raised, without Ray's traceback around it; deaths stay as they are."""

    def __init__(self, ray: Any):
        self.ray: Any = ray

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, _: Any) -> None:
        known = self.ray.exceptions
        if isinstance(error, known.RayActorError):
            return
        if isinstance(error, known.RayTaskError):
            cause = error.cause
            if isinstance(cause, NormLensError):
                raise cause from None
            reason = f"{type(cause).__name__}: {reason_of(cause)}"
            raise RunError(f"a worker failed ({reason}); what is done is kept") from error
        if isinstance(error, known.RayError):
            raise RunError(f"Ray gave up: {reason_of(error)}; what is done is kept") from error
