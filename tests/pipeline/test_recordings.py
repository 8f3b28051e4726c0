"""Which recording a batch is lent, with recordings that hold no kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from torch import nn

from normlens.gpu.graphs import ModelState
from normlens.pipeline import recordings as recording
from normlens.pipeline.recordings import BEFORE, FAILURES, Recordings
from normlens.trace.locking import exclusive


class Fake:
    """What `Recordings` asks of a recording."""

    def __init__(self, state: ModelState, size: int = 1):
        self.state, self.used, self.bytes, self.pending = state, threading.Lock(), size, False


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(2, 3)


@pytest.fixture
def made() -> list[Fake]:
    return []


@pytest.fixture
def record(made: list[Fake]) -> Callable[[ModelState], Fake]:
    def make(state: ModelState) -> Fake:
        made.append(Fake(state))
        return made[-1]

    return make


def lend(recordings: Recordings, model: nn.Module, record: Callable[[ModelState], Fake]) -> object:
    with recordings.acquire(model, "key", record) as acquire:
        return acquire


def test_the_third_batch_is_recorded(model, made, record) -> None:
    recordings = Recordings()
    acquire = [lend(recordings, model, record) for _ in range(BEFORE + 2)]
    assert acquire == [None] * BEFORE + made * 2
    assert len(made) == 1


def test_batches_that_follow_each_other_have_two_recordings_in_turn(model, made, record) -> None:
    recordings = Recordings()
    for _ in range(BEFORE + 1):
        lend(recordings, model, record)
    made[0].pending = True
    second = lend(recordings, model, record)
    assert second is made[1]
    made[0].pending, made[1].pending = False, True
    assert lend(recordings, model, record) is made[0]
    made[0].pending = True
    assert lend(recordings, model, record) is made[1]  # it waits for the older one itself
    assert len(made) == 2


def test_a_recording_that_takes_too_much_memory_is_not_kept(model, made) -> None:
    recordings = Recordings()

    def record(state: ModelState) -> Fake:
        made.append(Fake(state, recording.KEPT + 1))
        return made[-1]

    assert [lend(recordings, model, record) for _ in range(BEFORE + 3)] == [None] * (BEFORE + 3)
    assert len(made) == 1  # nor made again


def test_another_thread_takes_the_other_recording_and_a_third_waits(model, made, record) -> None:
    recordings = Recordings()
    for _ in range(BEFORE + 1):
        lend(recordings, model, record)
    taken: list[object] = []

    def third() -> None:
        with recordings.acquire(model, "key", record) as acquire:
            taken.append(acquire)

    with recordings.acquire(model, "key", record) as first:
        assert first is made[0]
        other: list[object] = []
        thread = threading.Thread(target=lambda: other.append(lend(recordings, model, record)))
        thread.start()
        thread.join()
        assert other == [made[1]]
        with made[1].used:
            waiting = threading.Thread(target=third)
            waiting.start()
            waiting.join(0.2)
            assert waiting.is_alive()
        waiting.join()
    assert taken == [made[1]]


def test_a_shape_that_fails_twice_is_not_tried_again(model) -> None:
    recordings, tried = Recordings(), []

    def record(state: ModelState) -> Fake:
        tried.append(state)
        raise RuntimeError("operation not permitted when stream is capturing")

    for _ in range(BEFORE + 5):
        assert lend(recordings, model, record) is None
    assert len(tried) == FAILURES


def test_weights_that_moved_drop_all_recordings(model, made, record) -> None:
    recordings = Recordings()
    for _ in range(BEFORE + 1):
        lend(recordings, model, record)
    model.weight.data = model.weight.data.clone()
    assert lend(recordings, model, record) is None
    for _ in range(BEFORE):
        lend(recordings, model, record)
    assert len(made) == 2


class Analysing:
    """Another thread that analyses with a model, with a hook on it, for as long as it is told."""

    def __init__(self, model: nn.Module):
        self._model, self._begun, self._enough = model, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: exclusive(model, self._work))

    def _work(self) -> None:
        hook = self._model.register_forward_hook(lambda *_: None)
        self._begun.set()
        self._enough.wait(30)
        hook.remove()

    def __enter__(self) -> Analysing:
        self._thread.start()
        assert self._begun.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()


def test_an_analysis_in_another_thread_is_no_change_of_the_model(model) -> None:
    state = ModelState.of(model)
    with Analysing(model) as other, ThreadPoolExecutor(2) as threads:
        asked = threads.submit(state.holds), threads.submit(ModelState.of, model)
        assert wait(asked, timeout=0.2).not_done == set(asked)  # while the hook is there
        other.__exit__()
        assert asked[0].result(30) is True
        assert asked[1].result(30) is not None
