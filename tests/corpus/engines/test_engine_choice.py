"""Which engine a run gets, and with how many workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from normlens.corpus.engines import local
from normlens.corpus.engines.local import open_pool
from normlens.corpus.engines.worker import Task
from normlens.corpus.runs.options import Execution, RunOptions
from normlens.errors import InputError


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was opened: the names of crews and their arguments beside the task."""
    calls: list[tuple[Any, ...]] = []
    for name in ("HerePool", "ProcessCrew", "ray_pool"):

        def crew(task: Task, *given: Any, name: str = name) -> None:
            calls.append((name, *given))

        monkeypatch.setattr(local, name, crew)
    monkeypatch.setattr(local, "Pool", lambda crew, *given: calls.append(given))
    return calls


def task(**execution: Any) -> Task:
    how = Execution(**execution)
    return Task(RunOptions("model", "data"), ("mixing",), "folder", execution=how)


def machine(monkeypatch: pytest.MonkeyPatch, cpus: int, gpus: int) -> None:
    cuda = SimpleNamespace(is_available=lambda: gpus > 0, device_count=lambda: gpus)
    monkeypatch.setattr(local, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(local, "os", SimpleNamespace(cpu_count=lambda: cpus))


@pytest.mark.parametrize(
    ("cpus", "gpus", "device", "workers"),
    [(16, 0, "auto", 4), (2, 0, "auto", 1), (16, 8, "auto", 8), (16, 8, "cpu", 4)],
)
def test_auto_takes_what_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
    opened: list[tuple[Any, ...]],
    cpus: int,
    gpus: int,
    device: str,
    workers: int,
) -> None:
    machine(monkeypatch, cpus, gpus)
    open_pool(task(device=device, workers="auto", attempts=5, sequence_timeout=None))
    several = [("ProcessCrew", workers), (5, None)]
    assert opened == ([("HerePool", None)] if workers == 1 else several)


def test_a_loaded_lens_stays_in_its_process(
    monkeypatch: pytest.MonkeyPatch, opened: list[tuple[Any, ...]]
) -> None:
    machine(monkeypatch, 16, 8)
    lens: Any = object()
    open_pool(task(workers="auto"), lens)
    open_pool(task(workers=1), lens)
    assert opened == [("HerePool", lens)] * 2
    for given in ({"workers": 2}, {"engine": "ray"}):
        with pytest.raises(InputError, match="loaded lens cannot be sent"):
            open_pool(task(**given), lens)
