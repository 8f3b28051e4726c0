"""Shards on a Ray cluster: Ray places workers and sends shards; workers may join, leave and die."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from normlens.corpus.engines.attempts import Attempts
from normlens.corpus.engines.base import Engine
from normlens.corpus.engines.dispatch import opened
from normlens.corpus.engines.ray_cluster import CPUS_EACH, Demand, alive, check_room, connect
from normlens.corpus.engines.ray_crew import RayCrew
from normlens.corpus.engines.worker import Task
from normlens.corpus.runs.options import Execution
from normlens.corpus.runs.resources import CPU
from normlens.corpus.runs.shards import Finished, Shard
from normlens.errors import MissingDependencyError
from normlens.options import AUTO


class RayEngine(Engine):
    """Actors that load the model once, and others in their place when a node is lost.

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
        self._crew: RayCrew | None = None
        self._started_ray = not ray.is_initialized()
        if self._started_ray:
            connect(ray, execution.address)
        try:
            self._crew = self._hired(task, execution)
            self._dispatcher, self.identity, self.by = opened(
                self._crew, execution.attempts, task.sequence_timeout
            )
        except BaseException:
            self.close()
            raise

    def _hired(self, task: Task, execution: Execution) -> RayCrew:
        resources = self.ray.cluster_resources()
        demand, nodes = Demand.of(execution, resources, task.device), alive(self.ray)
        check_room(demand, nodes)
        if not demand.gpus:
            device = "cpu" if task.device == AUTO else task.device
            threads = _threads(demand, execution.workers, nodes)
            task = replace(task, device=device, threads=threads)
        crew = RayCrew(self.ray, task, demand, execution.workers)
        alone = self._started_ray and execution.address in (None, "local")
        if not alone:  # with this machine, which has the software of this process
            crew.check_nodes()
        return crew

    def compute(
        self, shards: Iterable[Shard], attempts: Attempts | None = None
    ) -> Iterator[Finished]:
        return self._dispatcher.compute(shards, attempts or Attempts())

    def has_result(self) -> bool:
        return bool(self._dispatcher.results)

    def close(self) -> None:
        if self._started_ray:
            self.ray.shutdown()
        elif self._crew is not None:
            self._crew.close()


def _threads(demand: Demand, workers: int | str, nodes: list[dict[str, Any]]) -> int:
    """Threads of torch in a worker on a CPU: its CPUs, or its share of them."""
    if CPU in demand.amounts:
        return max(1, int(demand.amounts[CPU]))
    cpus = [int(node["Resources"].get("CPU", 0)) for node in nodes if demand.room(node)]
    share = min([CPUS_EACH, *cpus]) if workers == AUTO else sum(cpus) // int(workers)
    return max(1, share)
