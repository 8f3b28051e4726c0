"""Which recording a batch is lent, with recordings that hold no kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
from heads import headed
from one_case import in_one_case
from torch import nn

import normlens
from normlens.explain import explainer
from normlens.gpu.graphs import ModelState
from normlens.inputs.text import Encoded
from normlens.models.tiny import tiny_model
from normlens.pipeline import call
from normlens.pipeline import recordings as recording
from normlens.pipeline.recordings import BEFORE, FAILURES, Recordings, padded
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


def test_the_second_batch_is_recorded(model, made, record) -> None:
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


def test_more_shapes_than_are_kept_do_not_record_each_other_away(model, made, record) -> None:
    recordings = Recordings()
    for _ in range(20):
        for key in range(2 * recording.RECORDINGS):
            with recordings.acquire(model, key, record):
                pass
    # Each is made again after 1, 2, 4, … more batches, not with every second one.
    assert len(made) <= 5 * 2 * recording.RECORDINGS
    assert len(recordings._recorded) == recording.RECORDINGS
    assert recordings.forget()
    assert not recordings._dropped  # whose keys would keep products of weights in memory


class NoRecordings(Recordings):
    """Records nothing, so that batches run as those of a GPU do, on a CPU."""

    def _find(self, *_: object) -> None:
        return None


PADDED = [("bert", "MaskedLM"), ("roberta", "TokenClassification"), ("gpt2", "CausalLM")]
PADDED += [("llama", "SequenceClassification"), ("mistral", "CausalLM"), ("bloom", "CausalLM")]
PADDED += [("deberta-v2", "SequenceClassification")]


@in_one_case(("family", "task"), PADDED)
def test_padding_up_to_a_size_changes_no_number(family: str, task: str, monkeypatch) -> None:
    """A GPU gives texts of up to 16 tokens one shape, so that they share a recording."""
    lens = normlens.load(headed(family, task), tokenizer=False)
    texts = [[3, 9, 27, 14, 5, 33, 8, 4, 15][:n] for n in (3, 9)]
    place = {} if task == "SequenceClassification" else {"position": 1}
    single = [lens.maps(input_ids=ids, heads=True) for ids in texts]
    backward = [lens.explain(input_ids=ids, target=2, heads=True, **place) for ids in texts]
    sizes: list[int] = []

    def seen(lens_: normlens.Lens, items: list[Encoded]) -> list[Encoded]:
        given = padded(lens_, items)
        sizes.extend(map(len, given))
        return given

    for each in (call.Call, explainer.Explainer):
        monkeypatch.setattr(each, "_may_record", lambda *_: True)
    monkeypatch.setattr(call, "padded", seen)
    monkeypatch.setattr(explainer, "padded", seen)
    lens.recordings = NoRecordings()
    found = [lens.maps(input_ids=ids, heads=True) for ids in texts]
    found_back = [lens.explain(input_ids=ids, target=2, heads=True, **place) for ids in texts]
    if family != "mistral":  # whose window ends in the padding
        assert set(sizes) == {16}
    for ours, theirs in zip(found, single, strict=True):
        assert ours.tokens == theirs.tokens
        for group in ("arrays", "mixing", "heads"):
            for name, array in getattr(theirs, group).items():
                assert_close(getattr(ours, group)[name], array)
    for ours, theirs in zip(found_back, backward, strict=True):
        assert ours.value == pytest.approx(theirs.value, rel=1e-6)
        for name in ("contributions", "nodes", "components", "head_flow"):
            assert_close(getattr(ours, name), getattr(theirs, name))
        for name, array in theirs.flows.items():
            assert_close(ours.flows[name], array)


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert np.array_equal(np.isnan(ours), np.isnan(theirs))
    # Some models' softmax is in float32.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * np.nanmax(np.abs(theirs)))


def test_a_window_that_ends_in_padding_is_not_padded() -> None:
    lens = normlens.load(tiny_model("mistral"), tokenizer=False)
    window = min(layer.reach.back for layer in lens.layers if layer.reach.back is not None)
    items = [encode(lens, n) for n in (16 - window - 1, 16 - window)]
    assert [len(padded(lens, [item])[0]) for item in items] == [16 - window - 1, 16]


def test_padding_that_costs_more_than_launches_is_left_out(monkeypatch) -> None:
    lens = normlens.load(tiny_model("bert"), tokenizer=False)
    short, long = encode(lens, 8), encode(lens, 30)
    pair = sum(2 * layer.feed_forward.down.weight.numel() for layer in lens.layers)
    for limit, size in ((pair * (32**2 - 8**2 + 32**2 - 30**2), 32), (pair * 1000, 8)):
        monkeypatch.setattr(recording, "ADDED", limit)
        assert len(padded(lens, [short, long])[0]) == size
    assert len(padded(lens, [long])[0]) == 32


def encode(lens: normlens.Lens, n: int) -> Encoded:
    ids = [*range(1, n + 1)]
    return Encoded(ids, [*map(str, ids)], [False] * n)


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
