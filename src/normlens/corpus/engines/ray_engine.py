"""Blocks on a Ray cluster: reaching it, workers that are its actors, and what its nodes have."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from normlens.corpus.engines.pool import EACH, Answered, Call, Crew, Died, Event, Pool
from normlens.corpus.engines.worker import Task, Worker, on_device
from normlens.corpus.runs.folder import RunError
from normlens.corpus.runs.options import CPU, GPU, MEMORY, Execution, named, parse_resources
from normlens.errors import MissingDependencyError, NormLensError, reason_of
from normlens.options import AUTO

# A Ray cluster: reaching it, and what its nodes have for workers.


#: Ray's names of the resources that every cluster has.
RAY_NAMES = {CPU: "CPU", GPU: "GPU", MEMORY: "memory"}
#: CPUs of a worker that holds none, where workers are counted by them.
CPUS_EACH = 4
REACHED_WITHIN = 10.0  # seconds; Ray itself would try for minutes
_ADDRESS = re.compile(r"(?:ray://)?(?P<host>[^:/]+|\[[^]]+\]):(?P<port>\d+)")


def connect(ray: Any, address: str | None) -> None:
    """Start Ray on this machine, or join the cluster at an address."""
    # Ray prints every attempt to connect; the error that follows says the same in one line.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    refused = getattr(ray.exceptions, "AuthenticationError", ConnectionRefusedError)
    try:
        if address in (None, "local"):
            ray.init(address="local", include_dashboard=False, **quiet)
        else:
            check_reachable(str(address))
            ray.init(address=address, **quiet)
    except refused as error:
        raise RunError(
            f"the Ray cluster at {address!r} wants a token: set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) to the cluster's own"
        ) from error
    except Exception as error:  # of any class: one of Ray's is a plain `Exception`
        raise RunError(_unreached(address, error)) from error


def check_reachable(address: str) -> None:
    """Raise a ConnectionError if nothing answers at ``host:port`` or ``ray://host:port``."""
    place = _ADDRESS.fullmatch(address)
    if place is not None:
        target = place["host"].strip("[]"), int(place["port"])
        socket.create_connection(target, timeout=REACHED_WITHIN).close()


def _unreached(address: str | None, error: BaseException) -> str:
    where, reason = repr(address), reason_of(error)
    if address in (None, "local"):
        return (
            f"Ray could not be started on this machine: {reason}; if the machine is busy, try "
            "again; if it stays so, see the logs in /tmp/ray/session_latest/logs, start Ray with "
            "`ray start --head` and give --address auto, or leave --engine ray out"
        )
    if "Version mismatch" in reason:
        return (
            f"the Ray cluster at {where} has another Ray or Python than this process ({reason}); "
            "Ray needs the same Ray, and the same Python, on both"
        )
    if "Failed to connect to Ray cluster" in reason:
        return (
            f"the Ray cluster at {where} does not let this process in; if it wants a token, set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the cluster's own, and see that both run "
            "the same Ray"
        )
    return (
        f"cannot reach the Ray cluster at {where}: {reason}; start one with `ray start --head`, or "
        "leave --address out to use this machine"
    )


@dataclass(frozen=True)
class Demand:
    """What a worker takes of a node. A worker that holds nothing needs a node with a CPU."""

    amounts: dict[str, float]  # by the names that are typed

    @classmethod
    def of(cls, execution: Execution, resources: Mapping[str, float]) -> Demand:
        """What was asked for, and a GPU where the cluster has some and the device may be one."""
        amounts = parse_resources(execution.resources)
        if resources.get("GPU") and execution.device in (AUTO, "cuda"):
            amounts.setdefault(GPU, 1.0)
        return cls({name: amount for name, amount in amounts.items() if amount})

    @property
    def gpus(self) -> float:
        return self.amounts.get(GPU, 0.0)

    def options(self) -> dict[str, Any]:
        """The same as options of a Ray actor.

        A worker holds what it demands and nothing else. Where no resource is named, Ray looks for a
        node with a CPU, but the worker does not hold it: those of a lost node always find room on
        the nodes that are left.
        """
        if not self.amounts:
            return {}
        own = {name: amount for name, amount in self.amounts.items() if name not in RAY_NAMES}
        memory = {"memory": int(self.amounts[MEMORY])} if MEMORY in self.amounts else {}
        cpus, gpus = self.amounts.get(CPU, 0.0), self.gpus
        return {"num_cpus": cpus, "num_gpus": gpus, "resources": own, **memory}

    def room(self, node: Mapping[str, Any]) -> int:
        """How many workers a node has room for, if there is nothing else on it."""
        has = node["Resources"]
        if not self.amounts:
            cpus = int(has.get("CPU", 0))
            return max(1, cpus // CPUS_EACH) if cpus else 0
        return min(
            int(has.get(RAY_NAMES.get(name, name), 0.0) / amount + 1e-9)
            for name, amount in self.amounts.items()
        )


def alive(ray: Any) -> list[dict[str, Any]]:
    """The nodes that the cluster has at the moment."""
    return [node for node in ray.nodes() if node["Alive"]]


def check_room(demand: Demand, nodes: list[dict[str, Any]]) -> None:
    """Raise if no node has what a worker demands, however many there are."""
    if any(demand.room(node) for node in nodes):
        return
    wanted = named(demand.amounts) or "a CPU"
    raise RunError(
        f"no node of the Ray cluster has room for a worker ({wanted}); they have "
        f"{'; '.join(sorted({_described(node) for node in nodes})) or 'nothing'}: change "
        "--resources, or add a node"
    )


def _described(node: Mapping[str, Any]) -> str:
    typed = {theirs: ours for ours, theirs in RAY_NAMES.items()}
    # Ray gives every node a resource of its address, and objects memory, which no worker asks for.
    listed = {
        typed.get(name, name): amount
        for name, amount in sorted(node["Resources"].items())
        if not name.startswith(("node:", "object_store"))
    }
    return named(listed) or "nothing"


# Versions of the software on the nodes.


def versions_function() -> Callable[[], dict[str, str | None]]:
    """A function that lists versions where it runs; Ray sends it whole.

    A node without NormLens can run it, because it is no part of a module there.
    """

    def versions_here() -> dict[str, str | None]:
        import platform
        import socket
        from importlib import metadata

        versions: dict[str, str | None] = {
            "host": socket.gethostname(),
            "python": platform.python_version(),
        }
        try:
            from normlens._version import __version__

            versions["normlens"] = __version__
        except ImportError:
            versions["normlens"] = None
        for name in ("torch", "transformers", "pyarrow"):
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                versions[name] = None
        return versions

    return versions_here


def check_versions(host: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    """Raise if a worker's host lacks a package, or has another version than this process."""
    for name in ("normlens", "torch", "transformers", "pyarrow"):
        if there[name] is None:
            raise RunError(
                f"the Ray node {host} has no {name}; install there what is installed here "
                f"(pip install '{name}=={_public(here[name])}')"
            )
    for name in ("python", "normlens", "torch", "transformers"):
        if _compared(name, here[name]) != _compared(name, there[name]):
            raise RunError(
                f"the Ray node {host} has {name} {there[name]}, and this process has {here[name]}; "
                "give every node the same versions"
            )


def _public(version: str) -> str:
    """A version without what it was built for: 2.6.0+cu126 and 2.6.0+cpu are the same."""
    return str(version).partition("+")[0]


def _compared(name: str, version: str) -> str:
    """What has to be the same; of Python that is 3.11 of 3.11.9."""
    return ".".join(version.split(".")[:2]) if name == "python" else _public(version)


# Workers that are actors of a Ray cluster.


PATIENCE = 300.0  # seconds without an event before a line says where to look
LOOK = 5.0  # seconds after which a cluster is looked at again


class RayCrew(Crew):
    """Actors that Ray places where there is room.

    An actor for which there is none waits, holds no block, and joins when the cluster grows. One
    that dies is not restarted by Ray: another is hired.
    """

    def __init__(self, ray: Any, task: Task, demand: Demand, started_ray: bool = False):
        self.ray, self._started_ray = ray, started_ray
        self._task, self._demand, self._workers = task, demand, task.execution.workers
        self._actor = ray.remote(
            **demand.options(),
            scheduling_strategy="SPREAD",
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=EACH + 1,
        )(Actor)
        self._actors: dict[int, Any] = {}
        self._asked: dict[Any, tuple[int, int, str]] = {}  # reference → worker, call, its method
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

    def hire(self, worker: int) -> None:
        self._actors[worker] = self._actor.remote(self._task)

    def ask(self, worker: int, number: int, call: Call) -> None:
        reference = self._actors[worker].call.remote(call.method, *call.arguments)
        self._asked[reference] = worker, number, call.method

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
        worker, number, method = self._asked.pop(reference)
        known = self.ray.exceptions
        try:
            answer = self.ray.get(reference)
        except known.RayActorError as error:
            self.dismiss(worker)
            return Died(worker, ending(error))
        except known.RayTaskError as error:  # what the worker raised, in Ray's traceback
            cause = error.cause
            if isinstance(cause, NormLensError):
                raise cause from None
            reason = f"{type(cause).__name__}: {reason_of(cause)}"
            raise RunError(f"a worker failed ({reason}); what is done is kept") from error
        except known.RayError as error:
            raise RunError(f"Ray gave up: {reason_of(error)}; what is done is kept") from error
        if method == "describe":  # on a node that may have joined after the others
            _, by = answer
            check_versions(by["host"], self._here, by["versions"])
        return Answered(worker, number, answer)

    def dismiss(self, worker: int) -> None:
        self._asked = {ref: of for ref, of in self._asked.items() if of[0] != worker}
        # It may be alive, on a node that cannot be reached.
        self.ray.kill(self._actors.pop(worker))

    def warn_if_silent(self) -> None:
        if time.monotonic() - self._heard > PATIENCE:
            self._heard = time.monotonic()
            print(
                f"no worker has answered for {PATIENCE:.0f} s; `ray status` shows whether workers "
                "wait for resources",
                file=sys.stderr,
            )

    def close(self, at_once: bool = False) -> None:
        if self._started_ray:
            self.ray.shutdown()
            return
        for actor in self._actors.values():
            self.ray.kill(actor)
        self._actors.clear()


class Actor:
    """A worker that Ray starts on some node."""

    def __init__(self, task: Task):
        self.worker: Worker | NormLensError
        try:
            self.worker = Worker.load(task)
        except NormLensError as error:
            self.worker = error  # raised here, it would be the death of the actor

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker."""
        if isinstance(self.worker, NormLensError):
            raise self.worker
        return getattr(self.worker, method)(*arguments)


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


# Blocks on a Ray cluster: Ray places workers and sends blocks; workers may join, leave and die.


def ray_pool(task: Task) -> Pool:
    """Actors that load the model once, and others in their place when a node is lost.

    Workers write the tables to the run's folder, which all of them see; what they tell of their
    files travels to this process, which commits it.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(
            "--engine ray needs Ray; run: pip install 'normlens[ray]'"
        ) from error
    execution, started_ray = task.execution, not ray.is_initialized()
    if started_ray:
        connect(ray, execution.address)
    try:
        crew = _hired(ray, task, started_ray)
    except BaseException:
        if started_ray:
            ray.shutdown()
        raise
    return Pool(crew, execution.attempts, execution.sequence_timeout)


def _hired(ray: Any, task: Task, started_ray: bool) -> RayCrew:
    execution, resources = task.execution, ray.cluster_resources()
    demand, nodes = Demand.of(execution, resources), alive(ray)
    check_room(demand, nodes)
    if not demand.gpus:
        task = replace(task, threads=_threads(demand, execution.workers, nodes))
        task = on_device(task, "cpu" if execution.device == AUTO else execution.device)
    crew = RayCrew(ray, task, demand, started_ray)
    if not (started_ray and execution.address in (None, "local")):
        crew.check_nodes()  # this machine has the software of this process
    return crew


def _threads(demand: Demand, workers: int | str, nodes: list[dict[str, Any]]) -> int:
    """Threads of torch in a worker on a CPU: its CPUs, or its share of them."""
    if CPU in demand.amounts:
        return max(1, int(demand.amounts[CPU]))
    cpus = [int(node["Resources"].get("CPU", 0)) for node in nodes if demand.room(node)]
    share = min([CPUS_EACH, *cpus]) if workers == AUTO else sum(cpus) // int(workers)
    return max(1, share)
