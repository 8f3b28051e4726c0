"""Results that wait on their device: whichever way they come home, they are the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from normlens.pipeline import layer_results
from normlens.pipeline.layer_results import SmallResults

LAYERS = 3
#: By group and name: one layer's result (b, …), of two types.
RESULTS = {
    ("arrays", "a"): torch.arange(12.0).view(2, 2, 3),
    ("numbers", "b"): torch.arange(4).view(2, 2),
    ("numbers", "c"): torch.arange(2.0),
}


class Copies:
    """An outbox that sends numbers when it is waited for."""

    def __init__(self) -> None:
        self.sent: list[tuple[Tensor, Tensor]] = []

    def send_flat(self, tensor: Tensor, into: Tensor) -> None:
        self.sent.append((tensor, into))

    def wait(self) -> None:
        for tensor, into in self.sent:
            into.copy_(tensor)
        self.sent.clear()


def added(outbox: Copies | None = None) -> SmallResults:
    results = SmallResults(outbox)  # type: ignore[arg-type]
    for layer in range(LAYERS):
        for key, tensor in RESULTS.items():
            results.add(key, tensor + 100 * layer)
        results.make_room()
    return results


def check(results: SmallResults) -> None:
    arrived = results.arrived()
    assert set(arrived) == set(RESULTS)
    for key, tensor in RESULTS.items():
        (piece,) = arrived[key]
        expected = np.stack([tensor.numpy() + 100 * layer for layer in range(LAYERS)], axis=1)
        np.testing.assert_array_equal(piece, expected)
        assert piece.dtype == expected.dtype
    assert not results.arrived()


def as_they_are(results: SmallResults) -> SmallResults:
    return results


def settled(results: SmallResults) -> SmallResults:
    results.settle()
    return results


def brought_home(results: SmallResults) -> SmallResults:
    results.settle()
    results.bring_home()
    return results


def replayed(results: SmallResults) -> SmallResults:
    """As the results of a recorded batch, which the next replay writes over."""
    recorded = brought_home(results)
    others = SmallResults(None)
    others.replayed(recorded)
    others.take()
    for flat, _ in recorded._settled:
        flat.zero_()
    return others


@pytest.mark.parametrize("way", [as_they_are, settled, brought_home, replayed])
def test_results_come_home(way: Callable[[SmallResults], SmallResults]) -> None:
    check(way(added()))


def test_results_are_sent_off_before_they_are_asked_for() -> None:
    outbox = Copies()
    results = settled(added(outbox))
    results.leave()
    assert len(outbox.sent) == 2  # one for each type
    outbox.wait()
    check(results)
    assert not outbox.sent


def test_nothing_comes_of_nothing() -> None:
    results = SmallResults(None)
    results.settle()
    results.bring_home()
    assert not results.arrived()


def test_what_takes_too_much_room_comes_home_in_pieces() -> None:
    results, key = SmallResults(Copies()), ("arrays", "a")  # type: ignore[arg-type]
    for layer in range(LAYERS):
        results.add(key, RESULTS[key] + 100 * layer)
        results._held = layer_results.HELD_ON_DEVICE + layer  # as if a GPU held so much
        results.make_room()
    pieces = results.arrived()[key]
    assert [piece.shape[1] for piece in pieces] == [2, 1]  # the first layer alone fitted
    whole = np.concatenate(pieces, axis=1)
    assert whole[0, :, 0, 0].tolist() == [0, 100, 200]


def test_room_is_made_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_results, "HELD_ON_DEVICE", 0)
    check(added(Copies()))
