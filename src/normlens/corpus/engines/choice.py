"""Choosing the engine that computes a run."""

from __future__ import annotations

import os

import torch

from normlens.corpus.engines.base import Engine
from normlens.corpus.engines.local import ProcessEngine, ThreadEngine
from normlens.corpus.engines.ray_engine import RayEngine
from normlens.corpus.engines.worker import Task
from normlens.corpus.runs.options import Execution
from normlens.errors import InputError
from normlens.lens import Lens
from normlens.options import AUTO

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
