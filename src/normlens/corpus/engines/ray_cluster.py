"""A Ray cluster: reaching it, and what its nodes have for workers."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from normlens.corpus.runs.errors import RunError
from normlens.corpus.runs.options import Execution
from normlens.corpus.runs.resources import CPU, GPU, MEMORY, named, parse_resources
from normlens.errors import reason_of

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
    def of(cls, execution: Execution, resources: Mapping[str, float], device: str) -> Demand:
        """What was asked for, and a GPU where the cluster has some and the device may be one."""
        amounts = parse_resources(execution.resources)
        if execution.gpus_per_worker is not None:
            amounts[GPU] = execution.gpus_per_worker
        elif resources.get("GPU") and device in ("auto", "cuda"):
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
        "--resources or --gpus-per-worker, or add a node"
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


# Versions -----------------------------------------------------------------------------------------


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
