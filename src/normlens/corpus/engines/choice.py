"""Choosing the engine that computes a run."""

from __future__ import annotations

from normlens.corpus.engines.base import Engine
from normlens.corpus.engines.local import ProcessEngine, ThreadEngine
from normlens.corpus.engines.ray_engine import RayEngine
from normlens.corpus.engines.worker import Task
from normlens.corpus.runs.options import Execution
from normlens.errors import InputError
from normlens.lens import Lens


def open_engine(task: Task, execution: Execution, lens: Lens | None = None) -> Engine:
    """Open the engine that was asked for, and load its model."""
    if lens is not None and (execution.engine, execution.workers) != ("local", 1):
        raise InputError(
            "a loaded lens cannot be sent to other processes; pass the model's name or folder"
        )
    if execution.engine == "ray":
        return RayEngine(task, execution)
    if execution.workers > 1:
        return ProcessEngine(task, execution.workers)
    return ThreadEngine(task, lens)
